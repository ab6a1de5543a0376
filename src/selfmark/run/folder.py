"""Manage the run folder, which stores everything about one discovery.

config.yaml            all settings
run.json               format, version of selfmark, inputs and options as given by the user
images.json            references to the training images, in order
held_out.json          references to the held-out images (only of verified runs)
verification/          run folder of the second run (deleted when verification.json is written)
verification.json      agreement with a second run (only of verified runs)
landmark_count.json    number of landmarks and how it was found (only if K was "auto", or with the method
                       mallis2020)
start/                 copy of the detector that the training starts from (only with --start-from)
log.jsonl              one event per line, read by progress displays, reports and tests
points/                sizes of the images, keypoints, pseudo-labels of each round, landmarks
checkpoints/           the two newest training states of each stage; the weights of each round (only with
                       rounds.keep_weights)
preview/               pictures of the landmarks after each step
model/                 the trained detector, read by `selfmark.load`
model-original/        the detector before `selfmark refine`
metrics.json           checks and metrics of the finished run
predictions/           cached results of the networks, for evaluations and reports
report/index.html      the report
naming/                cached landmarks of the images on the naming page
corrections/           landmarks that the user corrected
tensorboard/           losses and pictures (only with --logger tensorboard)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from selfmark._version import __version__
from selfmark.config import Config, current_name, override, with_landmarks
from selfmark.errors import DamagedFile, DiskError, InputError, describe_os_error, report_write_errors
from selfmark.image_ref import ImageRef
from selfmark.points import Keypoints, LabeledPoints
from selfmark.run.config_file import read_config, write_config
from selfmark.run.event_log import LOG_NAME, Event, parse_events
from selfmark.run.files import (
    FORMAT,
    open_for_append,
    read_json,
    read_text,
    require_format,
    require_run,
    strip_temporary,
    to_json,
    write_json,
)
from selfmark.run.guarded_files import make_folders, open_to_read, remove_folder, sync
from selfmark.run.image_list import refs_from_json, refs_to_json
from selfmark.run.json_schema import (
    Check,
    is_count,
    is_list_of,
    is_none_or,
    is_number,
    is_text,
    report_content_errors,
    require_fields,
)
from selfmark.run.locks import exclusive, was_replaced
from selfmark.run.point_files import (
    TensorFile,
    keypoints_from_tensors,
    keypoints_to_tensors,
    labels_from_tensors,
    labels_to_tensors,
    read_irreplaceable,
)
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from selfmark.run.tensor_files import read_tensors, write_tensors

Listener = Callable[[Event], None]

START_FOLDER = "start"
"""Name of the folder in a run folder that contains the detector from which training starts."""

VERIFICATION_FIELDS: dict[str, Check] = {
    "images": is_count,
    "forward": is_number,
    "guessing_forward": is_number,
    "backward": is_number,
    "guessing_backward": is_number,
    "backward_shares": is_list_of(is_none_or(is_number)),
    "second_run_images": is_count,
}
"""Fields of verification.json and their checks; see `evaluation.second_run`. metrics.json repeats them."""
_FREQUENT_EVENTS = ("progress", "train")  # events after which the log is not synced to the disk
_SUBFOLDERS = ("points", "checkpoints")
# Names of everything that `create` may leave behind if it is killed, without the suffix of temporary files.
# `create` writes run.json last, so only the temporary file of run.json can be left. Folders with a complete
# run.json are refused before these names are checked.
_UNFINISHED_NAMES = {
    *_SUBFOLDERS,
    START_FOLDER,
    "config.yaml",
    "images.json",
    "held_out.json",
    "run.json",
    ".lock",
}
# Settings that may change when a run is resumed, because the stored results stay valid.
_CHANGEABLE = (
    "runtime.",
    "optimizer.",
    "guards.",
    "evaluation.",
    "stage2.batch",
    "student.batch",
    "student.lr",
)


@dataclass(frozen=True)
class StartingPoint:
    """A detector that a training starts from.

    Attributes:
        model: name of the detector, as the user gave it.
        sha256: checksum that identifies the detector.
        copy: copies the detector to a folder.
    """

    model: str
    sha256: str
    copy: Callable[[Path], None]


class Run:
    """A run folder; `create` makes a new one and `open` opens an existing one."""

    def __init__(
        self,
        path: Path,
        config: Config,
        listener: Listener | None = None,
        group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        """Wrap an existing folder without checking it; use `open` instead.

        Args:
            path: the folder.
            config: settings of the run.
            listener: called with every log event.
            group: the processes that work on the run together.
        """
        self.path = path
        self.config = config
        self.group = group
        self._listener = listener
        self._lock: int | None = None  # descriptor of the lock file while this process holds the lock

    @classmethod
    def create(
        cls,
        path: Path,
        config: Config,
        inputs: Sequence[str],
        refs: Sequence[ImageRef],
        held_out: Sequence[ImageRef] = (),
        start: StartingPoint | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Create a run in a new or empty folder.

        Args:
            path: the folder.
            config: settings of the run.
            inputs: the inputs as given by the user.
            refs: the training images.
            held_out: images for the verification, on which the run is not trained.
            start: the detector that the training starts from; None for random weights.
            options: options of the command that are not in config.yaml: a mapping from names to JSON values.

        Raises:
            InputError: if the folder already contains a run or other files, or cannot be written.
        """
        cls.require_unused(path)
        with report_write_errors(f"to {path}"):
            for name in _SUBFOLDERS:
                make_folders(path / name)
            with exclusive(path):  # Another process may be creating a run here too.
                _require_no_run(path)
                write_config(config, path / "config.yaml")
                write_json(refs_to_json(refs), path / "images.json")
                if held_out:
                    write_json(refs_to_json(held_out), path / "held_out.json")
                values = {"format": FORMAT, "selfmark": __version__, "inputs": list(inputs)}
                if start is not None:
                    start.copy(path / START_FOLDER)
                    values["start_from"] = {"model": start.model, "sha256": start.sha256}
                write_json(values | {"options": dict(options or {})}, path / "run.json")

    @staticmethod
    def require_unused(path: Path) -> None:
        """Raise if a folder contains a run or other files, so that `create` would refuse it."""
        _require_no_run(path)
        if path.exists() and not _is_unused(path):
            raise InputError(f"{path} exists and is not an empty folder: choose another output folder")

    @classmethod
    def open(cls, path: Path, listener: Listener | None = None, group: ProcessGroup = SINGLE_PROCESS) -> Run:
        """Open a run folder; see `__init__` for the arguments."""
        require_run(path)
        run = cls(path, read_config(path / "config.yaml"), listener, group)
        if run._landmark_count_path.exists():
            run.apply_landmark_count()
        return run

    def change_settings(self, settings: Mapping[str, Any]) -> None:
        """Change settings when a run is resumed.

        Args:
            settings: mapping from dotted names to values; values that the run already has are allowed.

        Raises:
            InputError: if a setting would change on which stored results depend.
        """
        changeable = {
            name: value for name, value in settings.items() if current_name(name).startswith(_CHANGEABLE)
        }
        fixed_names = [
            name for name in settings if name not in changeable and not self._has(name, settings[name])
        ]
        if fixed_names:
            names = ", ".join(name.rstrip(".") for name in _CHANGEABLE)
            raise InputError(
                f"'{fixed_names[0]}' cannot change when a run is resumed: leave it out or start a new run; "
                f"only {names} can change"
            )
        if changeable:
            self.settle_settings(changeable)
            self.log("changed", settings={name: str(value) for name, value in changeable.items()})

    def _has(self, name: str, value: Any) -> bool:
        """Return True if a setting has this value already."""
        with suppress(InputError):
            return override(self.config, {name: value}) == self.config
        return False

    def settle_settings(self, settings: Mapping[str, Any]) -> None:
        """Replace settings, e.g. `auto` by a value that was found from the images, and update config.yaml.

        Args:
            settings: mapping from dotted names to new values.
        """
        settled_config = override(self.config, settings)
        if settled_config == self.config:
            return
        self.config = settled_config
        with self.report_disk_errors():
            if self.group.is_leader:
                write_config(self.config, self.path / "config.yaml")

    def read_options(self) -> dict[str, Any]:
        """Return a mapping from names to the options that are not in config.yaml; empty for early runs."""
        options = read_json(self.path / "run.json").get("options", {})
        return options if isinstance(options, dict) else {}

    @property
    def model_folder(self) -> Path:
        """Folder of the trained detector."""
        return self.path / "model"

    def refs(self) -> list[ImageRef]:
        """Read the references to the training images."""
        return _read_refs(self.path / "images.json")

    def held_out_refs(self) -> list[ImageRef]:
        """Read the references to the held-out images; empty if the run is not verified."""
        path = self.path / "held_out.json"
        return _read_refs(path) if path.exists() else []

    def start_from(self) -> dict[str, str] | None:
        """Return name and checksum of the detector that the training starts from; None for random weights."""
        path = self.path / "run.json"
        record = read_json(path).get("start_from")
        if record is None:
            return None
        with report_content_errors(path):
            require_fields(record, {"model": is_text, "sha256": is_text})
        return {"model": record["model"], "sha256": record["sha256"]}

    @property
    def verification_path(self) -> Path:
        """Path of verification.json, the agreement with a second run."""
        return self.path / "verification.json"

    def read_verification(self) -> dict[str, Any] | None:
        """Read verification.json, the agreement with a second run; None if the file does not exist.

        Raises:
            InputError: if the file lacks a field, or a field is not valid.
        """
        if not self.verification_path.exists():
            return None
        content: dict[str, Any] = read_json(self.verification_path)
        with report_content_errors(self.verification_path):
            require_fields(content, VERIFICATION_FIELDS)
            if len(content["backward_shares"]) != self.config.K:
                raise ValueError(f"it has {len(content['backward_shares'])} landmarks, not {self.config.K}")
        return content

    # --- log ------------------------------------------------------------------------------------

    def log(self, event: str, **fields: Any) -> None:
        """Append an event to log.jsonl and pass it to the listener, on the leader only."""
        if not self.group.is_leader:
            return
        entry: Event = {"time": round(time.time(), 3), "event": event, **fields}
        with self.report_disk_errors(), open_for_append(self.path / LOG_NAME) as handle:
            handle.write(to_json(entry) + "\n")
            if event not in _FREQUENT_EVENTS:
                handle.flush()
                sync(handle.fileno())
        if self._listener is not None:
            self._listener(entry)

    def progress(self, stage: str, round_number: int = 0) -> Callable[[int, int], None]:
        """Return a callback (done, total) that logs progress at most once a second, and always at the end."""
        last = 0.0

        def report(done: int, total: int) -> None:
            nonlocal last
            if done == total or time.monotonic() - last > 1:
                last = time.monotonic()
                self.log("progress", stage=stage, round=round_number, done=done, of=total)

        return report

    def events(self) -> list[Event]:
        """Read all log events; see `parse_events`."""
        path = self.path / LOG_NAME
        return parse_events(read_text(path)) if path.exists() else []

    # --- stored results -------------------------------------------------------------------------

    def has_points(self, name: str) -> bool:
        """Return True if points/NAME.safetensors exists.

        Some runs with features have no first keypoints, so the file `first` does not exist.
        """
        return (self.path / "points" / f"{name}.safetensors").exists()

    def load_or_compute_keypoints(self, name: str, compute: Callable[[], Keypoints]) -> Keypoints:
        """Load points/NAME.safetensors; if it is missing or damaged, compute and write it.

        All processes compute the keypoints together, and the leader writes them.

        Args:
            name: name of the file without suffix.
            compute: computes the keypoints; the result may depend only on images and settings.
        """
        path = self.path / "points" / f"{name}.safetensors"
        tensors, _ = self._load_or_compute(path, lambda: (keypoints_to_tensors(compute()), {}))
        return keypoints_from_tensors(tensors, path)

    def load_or_compute_labels(
        self,
        name: str,
        device: torch.device,
        compute: Callable[[], LabeledPoints],
        repeatable: bool = True,
    ) -> LabeledPoints:
        """Load points/NAME.safetensors; if it is missing, or damaged and `repeatable`, compute and write it.

        All processes compute the labels together, and the leader writes them.

        Args:
            name: name of the file without suffix.
            device: device to load the points to.
            compute: computes the labels.
            repeatable: whether `compute` would return the same labels again, so that a damaged file can be
                replaced. This is True until the network is trained further.

        Raises:
            DamagedFile: if the file is damaged and `repeatable` is False.
        """
        path = self.path / "points" / f"{name}.safetensors"
        tensors, metadata = self._load_or_compute(path, lambda: labels_to_tensors(compute()), repeatable)
        return labels_from_tensors(tensors, metadata, device, path)

    def load_or_compute_tensors(
        self, name: str, device: torch.device, compute: Callable[[], dict[str, torch.Tensor]]
    ) -> dict[str, torch.Tensor]:
        """Load points/NAME.safetensors; compute it on all processes if it is missing or damaged.

        Args:
            name: name of the file without suffix.
            device: device to load the tensors to.
            compute: computes the tensors, the same in all processes.
        """
        path = self.path / "points" / f"{name}.safetensors"
        tensors, _ = self._load_or_compute(path, lambda: (compute(), {}))
        return {key: value.to(device) for key, value in tensors.items()}

    def _load_or_compute(
        self, path: Path, compute: Callable[[], TensorFile], repeatable: bool = True
    ) -> TensorFile:
        """Read a tensor file; if it is missing, or damaged and `repeatable`, compute and write it.

        All processes compute the content together, and the leader writes the file.
        """
        can_compute = repeatable or not path.exists()
        stored = self._read_if_intact(path) if can_compute else read_irreplaceable(path)
        self.group.barrier()  # No process may write the file before all have tried to read it.
        if stored is not None:
            return stored
        computed = compute()

        def write() -> None:
            with self.report_disk_errors():
                write_tensors(*computed, path)

        self.group.run_on_leader(write)
        return read_tensors(path)

    def _read_if_intact(self, path: Path) -> TensorFile | None:
        """Read a tensor file; return None if it is missing or damaged. Log that a file is damaged."""
        if not path.exists():
            return None
        try:
            return read_tensors(path)
        except DamagedFile as error:
            self.log("damaged", path=str(path), reason=str(error), instead="computing it again")
            return None

    def choose_landmark_count(self, compute: Callable[[], Mapping[str, Any]]) -> None:
        """Choose K on the leader, store the choice, and use it in all processes.

        Args:
            compute: returns the content of landmark_count.json; "K" is the chosen number.
        """

        def choose() -> None:
            chosen = compute()
            # Log before writing: if the process is killed in between, the event is logged twice, not lost.
            self.log("landmark_count", **chosen)
            with self.report_disk_errors():
                write_json({"format": FORMAT, **chosen}, self._landmark_count_path)

        self.group.run_on_leader(choose)
        self.apply_landmark_count()

    @property
    def _landmark_count_path(self) -> Path:
        return self.path / "landmark_count.json"

    def apply_landmark_count(self) -> None:
        """Set K to the number of landmarks that landmark_count.json contains."""
        chosen = read_json(self._landmark_count_path)
        require_format(chosen, self._landmark_count_path)
        with report_content_errors(self._landmark_count_path):
            require_fields(chosen, {"K": is_count})
            self.config = with_landmarks(self.config, chosen["K"])

    # --- checkpoints ----------------------------------------------------------------------------

    def restore_checkpoint(self, stage: str, load: Callable[[Path], int]) -> None:
        """Load the newest intact checkpoint of a stage, if there is one.

        Args:
            stage: name of the checkpoints, e.g. `stage1` or `student-1`.
            load: loads the training state from a file and returns its iteration.

        Raises:
            InputError: if there are checkpoints, but all of them are damaged.
        """
        paths = [path for path in self._checkpoint_paths(stage) if path.exists()]
        for path in paths:
            try:
                iteration = load(path)
            except DamagedFile as error:
                if path == paths[-1]:
                    names = " and ".join(path.name for path in paths)
                    raise InputError(
                        f"{error}; {stage} has no intact checkpoint: delete {names} in "
                        f"{self.path / 'checkpoints'} to train {stage} again from the start"
                    ) from error
                self.log("damaged", path=str(path), reason=str(error), instead="the checkpoint before it")
                continue
            self.log("resumed", stage=stage, iteration=iteration)
            return

    def write_checkpoint(self, stage: str, iteration: int, save: Callable[[Path, Path], None]) -> None:
        """Write a checkpoint of a stage; only the leader writes, since all processes have the same weights.

        Args:
            stage: name of the checkpoints, e.g. `stage1` or `student-1`.
            iteration: number of iterations the state has been trained for.
            save: writes the training state to the first path and moves the old file to the second.
        """
        if self.group.is_leader:
            newest_path, previous_path = self._checkpoint_paths(stage)
            with self.report_disk_errors():
                save(newest_path, previous_path)
        self.log("checkpoint", stage=stage, iteration=iteration)

    def _checkpoint_paths(self, stage: str) -> tuple[Path, Path]:
        """Return the paths of the two newest checkpoints of a stage, the newest first."""
        folder = self.path / "checkpoints"
        return folder / f"{stage}.safetensors", folder / f"{stage}.previous.safetensors"

    def write_round_weights(self, number: int, network: torch.nn.Module) -> None:
        """Write the weights of a round to a file of its own, which later rounds do not overwrite."""
        if self.group.is_leader:
            with self.report_disk_errors():
                write_tensors(dict(network.state_dict()), {}, self.round_weights_path(number))

    def round_weights_path(self, number: int) -> Path:
        """Return the path of the weights of a round, which exist if `rounds.keep_weights` was set."""
        return self.path / "checkpoints" / f"round-{number:02d}.safetensors"

    # --- the folder itself ----------------------------------------------------------------------

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run inside the context; in a group of processes, the leader holds the lock.

        Raises:
            InputError: if another process is working on the run.
        """
        if not self.group.is_leader:
            yield
            return
        with ExitStack() as stack:
            with self.report_disk_errors():
                self._lock = stack.enter_context(exclusive(self.path))
            stack.callback(setattr, self, "_lock", None)
            self._complete_last_line()
            yield

    @contextmanager
    def report_disk_errors(self) -> Iterator[None]:
        """Convert an OSError in the context to a DiskError that says how to resume the run.

        Raises:
            DiskError: also if another folder has been put in the place of the run.
        """
        if self._lock is not None and was_replaced(self.path, self._lock):
            raise DiskError(
                f"{self.path} is not the folder that this process works on: it was renamed, and another "
                "folder is in its place; nothing was written there. Rename both folders back, then resume "
                "the run"
            )
        try:
            yield
        except (OSError, DiskError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError):
                raise
            reason = describe_os_error(cause) if self.path.is_dir() else "the folder is no longer there"
            raise DiskError(
                f"cannot write to {self.path}: {reason}; fix this, then resume the run with "
                f"'selfmark discover -o {self.path} --resume'"
            ) from error

    def _complete_last_line(self) -> None:
        """Terminate the last line of the log, which may have been cut off by a kill or a full disk."""
        with self.report_disk_errors(), open_for_append(self.path / "log.jsonl") as handle:
            if handle.tell() and not _ends_with_newline(self.path / "log.jsonl"):
                handle.write("\n")

    def discard(self) -> None:
        """Delete the run folder, unless the user has made it a link."""
        if not self.path.is_symlink():
            remove_folder(self.path)


def _ends_with_newline(path: Path) -> bool:
    with open_to_read(path) as handle:
        handle.seek(-1, os.SEEK_END)
        return handle.read() == b"\n"


def _read_refs(path: Path) -> list[ImageRef]:
    entries = read_json(path)
    with report_content_errors(path):
        return refs_from_json(entries)


def _require_no_run(folder: Path) -> None:
    if (folder / "run.json").exists():
        raise InputError(
            f"{folder} already contains a run: add --resume to continue it, or choose another output folder"
        )


def _is_unused(folder: Path) -> bool:
    """Return True if a folder is empty or contains only what a killed `create` left behind."""
    if not folder.is_dir() or any(path.is_symlink() for path in folder.iterdir()):
        return False
    names = {strip_temporary(path.name) for path in folder.iterdir()}
    return names <= _UNFINISHED_NAMES and not any(any((folder / name).glob("*")) for name in _SUBFOLDERS)
