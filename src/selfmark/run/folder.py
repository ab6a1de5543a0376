"""The run folder: where a discovery keeps everything, so that it can be looked at, resumed and loaded.

config.yaml            every setting
run.json               format and version, the inputs as given
images.json            the images used, in order
landmark_count.json    the K chosen and what it was chosen from, where it was left open
log.jsonl              one line per event: what a plot, a progress bar and a test all read
points/                first keypoints, labels of each round, landmarks of Stage 2
checkpoints/           training state of each stage, and the one before it
model/                 what `selfmark.load` needs
report/index.html
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from selfmark._version import __version__
from selfmark.config import Config, override, with_landmarks
from selfmark.errors import DamagedFile, DiskError, InputError
from selfmark.image_ref import ImageRef
from selfmark.points import Keypoints, LabeledPoints
from selfmark.run.config_file import read_config, write_config
from selfmark.run.files import FORMAT, open_for_append, read_json, require_format, write_json
from selfmark.run.image_list import refs_from_json, refs_to_json
from selfmark.run.locks import exclusive
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from selfmark.run.tensor_files import read_tensors, write_tensors

Event = dict[str, Any]
Listener = Callable[[Event], None]
Stored = tuple[dict[str, torch.Tensor], dict[str, str]]  # tensors and metadata of a file

_PARTS = ("points", "checkpoints")
_FIRST = {*_PARTS, "config.yaml", "images.json", ".lock"}  # all there is before run.json makes it a run
# What may still change when a run goes on: nothing that was computed so far follows from it.
_CHANGEABLE = ("runtime.", "optimizer.", "guards.", "evaluation.", "stage2.batch")


class Run:
    """One run folder. Make it with `create`, come back to it with `open`."""

    def __init__(
        self,
        path: Path,
        config: Config,
        listener: Listener | None = None,
        group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self.path = path
        self.config = config
        self.group = group
        self._listener = listener

    @classmethod
    def create(
        cls,
        path: Path,
        config: Config,
        inputs: Sequence[str],
        refs: Sequence[ImageRef],
    ) -> None:
        """Start a new run in a folder that holds none yet; `open` it to work on it."""
        if path.exists() and not (path / "run.json").exists() and not _is_free(path):
            raise InputError(f"{path} exists and is not an empty folder: choose another output folder")
        try:
            for part in _PARTS:
                (path / part).mkdir(parents=True, exist_ok=True)
            with exclusive(path):  # Another process may be creating a run here, too.
                if (path / "run.json").exists():
                    raise InputError(
                        f"{path} already holds a run: add --resume to go on with it, or choose another "
                        "output folder"
                    )
                write_config(config, path / "config.yaml")
                write_json(refs_to_json(refs), path / "images.json")
                values = {"format": FORMAT, "selfmark": __version__, "inputs": list(inputs)}
                write_json(values, path / "run.json")
        except OSError as error:
            raise InputError(f"cannot write to {path}: {error.strerror}") from error

    @classmethod
    def open(cls, path: Path, listener: Listener | None = None, group: ProcessGroup = SINGLE_PROCESS) -> Run:
        if not (path / "run.json").exists():
            raise InputError(f"{path} holds no run")
        require_format(read_json(path / "run.json"), path / "run.json")
        run = cls(path, read_config(path / "config.yaml"), listener, group)
        if run.config.K == 0 and run._count.exists():
            run._take_count()
        return run

    def change_settings(self, settings: Mapping[str, Any]) -> None:
        """Go on with other settings, of those that may change in a run that has begun."""
        fixed = [name for name in settings if not name.startswith(_CHANGEABLE)]
        if fixed:
            raise InputError(
                f"'{fixed[0]}' cannot change in a run that has begun: start another one, or leave it out; "
                f"only {', '.join(name.rstrip('.') for name in _CHANGEABLE)} can"
            )
        if settings:
            self.config = override(self.config, settings)
            with self.report_disk_errors():
                if self.group.is_leader:
                    write_config(self.config, self.path / "config.yaml")
            self.log("changed", settings={name: str(value) for name, value in settings.items()})

    @property
    def model_folder(self) -> Path:
        return self.path / "model"

    def refs(self) -> list[ImageRef]:
        """The images this run was started on."""
        path = self.path / "images.json"
        entries = read_json(path)
        with _fitting(path):
            return refs_from_json(entries)

    # --- events ---------------------------------------------------------------------------------

    def log(self, event: str, **fields: Any) -> None:
        """Append one event to log.jsonl and show it to whoever listens; one process of a job does so."""
        if not self.group.is_leader:
            return
        entry: Event = {"time": round(time.time(), 3), "event": event, **fields}
        with self.report_disk_errors(), open_for_append(self.path / "log.jsonl") as handle:
            handle.write(json.dumps(entry) + "\n")
        if self._listener is not None:
            self._listener(entry)

    def progress(self, stage: str, round: int = 0) -> Callable[[int, int], None]:
        """A function (done, of) that logs progress at most once a second, and always the end."""
        last = 0.0

        def report(done: int, of: int) -> None:
            nonlocal last
            if done == of or time.monotonic() - last > 1:
                last = time.monotonic()
                self.log("progress", stage=stage, round=round, done=done, of=of)

        return report

    def events(self) -> list[Event]:
        """All events so far; a line cut short by a kill is left out."""
        path = self.path / "log.jsonl"
        events: list[Event] = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                events.append(json.loads(line))
            except ValueError:
                continue
        return events

    # --- what a run has computed so far ---------------------------------------------------------

    def load_or_compute_keypoints(self, name: str, compute: Callable[[], Keypoints]) -> Keypoints:
        """Keypoints computed once, by one process: from points/NAME if there, else computed and written.

        They follow from images and settings alone, so damaged ones are simply computed anew.
        """
        path = self.path / "points" / f"{name}.safetensors"

        def settle() -> None:
            if self._stored(path) is None:
                tensors = _keypoint_tensors(compute())
                with self.report_disk_errors():
                    write_tensors(tensors, {}, path)

        self.group.run_on_leader(settle)
        tensors, _ = read_tensors(path)
        with _fitting(path):
            return Keypoints(**tensors)

    def load_or_compute_labels(
        self,
        name: str,
        device: torch.device,
        compute: Callable[[], LabeledPoints],
        repeatable: bool = True,
    ) -> LabeledPoints:
        """Labeled points computed once, by all processes together, and read back on the given device.

        Damaged ones are computed anew where that gives the same again, else refused: `repeatable` says
        whether the network is still the one they came from.
        """
        path = self.path / "points" / f"{name}.safetensors"
        stored = self._stored(path) if repeatable or not path.exists() else _intact(path)
        self.group.barrier()  # all have looked before one of them writes
        if stored is None:
            labeled = compute()
            tensors = _keypoint_tensors(labeled.points)
            tensors |= {"label": labeled.label, "mirrored_label": labeled.mirrored_label}
            if labeled.centroids is not None:
                tensors["centroids"] = labeled.centroids

            def write() -> None:
                with self.report_disk_errors():
                    write_tensors(tensors, {"clusters": str(labeled.clusters)}, path)

            self.group.run_on_leader(write)
            stored = read_tensors(path)
        tensors, metadata = stored
        with _fitting(path):
            label, mirrored = tensors.pop("label").to(device), tensors.pop("mirrored_label").to(device)
            centroids = tensors.pop("centroids").to(device) if "centroids" in tensors else None
            points = Keypoints(**tensors).to(device)
            return LabeledPoints(points, label, mirrored, int(metadata["clusters"]), centroids)

    def _stored(self, path: Path) -> Stored | None:
        """What a file holds; None where there is none or, which is logged, a damaged one."""
        if not path.exists():
            return None
        try:
            return read_tensors(path)
        except DamagedFile as error:
            self.log("damaged", path=str(path), reason=str(error), instead="computed anew")
            return None

    def choose_landmark_count(self, compute: Callable[[], Mapping[str, Any]]) -> None:
        """Where K was left open, let one process choose it, keep the choice, and take it everywhere.

        Args:
            compute: returns what is kept in landmark_count.json and logged; "K" is the choice.
        """

        def settle() -> None:
            chosen = compute()
            self.log("landmark_count", **chosen)  # before it is kept: rather twice than never
            with self.report_disk_errors():
                write_json({"format": FORMAT, **chosen}, self._count)

        self.group.run_on_leader(settle)
        self._take_count()

    @property
    def _count(self) -> Path:
        return self.path / "landmark_count.json"

    def _take_count(self) -> None:
        chosen = read_json(self._count)
        require_format(chosen, self._count)
        with _fitting(self._count):
            self.config = with_landmarks(self.config, int(chosen["K"]))

    def restore_checkpoint(self, stage: str, load: Callable[[Path], int]) -> None:
        """Load the newest intact checkpoint of a stage, if there is one.

        Args:
            stage: `stage1` or `stage2`.
            load: loads the training state from a file and returns its iteration.
        """
        damaged: DamagedFile | None = None
        for path in self._generations(stage):
            if not path.exists():
                continue
            try:
                iteration = load(path)
            except DamagedFile as error:
                damaged = error
                self.log("damaged", path=str(path), reason=str(error), instead="the checkpoint before it")
                continue
            self.log("resumed", stage=stage, iteration=iteration)
            return
        if damaged is not None:
            raise InputError(
                f"{damaged}; no sound checkpoint of {stage} is left: delete those in "
                f"{self.path / 'checkpoints'} to train it anew"
            ) from damaged

    def write_checkpoint(self, stage: str, iteration: int, save: Callable[[Path, Path], None]) -> None:
        """Write a checkpoint of a stage; all processes have the same weights, so one of them writes.

        Args:
            stage: `stage1` or `stage2`.
            iteration: number of iterations the state has been trained for.
            save: writes the training state to the first path and moves the file that was there to the second.
        """
        if self.group.is_leader:
            newest, before = self._generations(stage)
            with self.report_disk_errors():
                save(newest, before)
        self.log("checkpoint", stage=stage, iteration=iteration)

    def write_round_weights(self, number: int, network: torch.nn.Module) -> None:
        """Keep the weights of a round for ever; a checkpoint keeps only the newest."""
        if self.group.is_leader:
            with self.report_disk_errors():
                write_tensors(dict(network.state_dict()), {}, self.round_weights_path(number))

    def round_weights_path(self, number: int) -> Path:
        """Where the weights of a round are, if `rounds.keep_weights` asked for them."""
        return self.path / "checkpoints" / f"round-{number:02d}.safetensors"

    def _generations(self, stage: str) -> tuple[Path, Path]:
        """Where the newest checkpoint of a stage is, and the one before it."""
        folder = self.path / "checkpoints"
        return folder / f"{stage}.safetensors", folder / f"{stage}.previous.safetensors"

    # --- the folder itself ----------------------------------------------------------------------

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Only one job at a time may work on a run; its first process holds the lock."""
        if not self.group.is_leader:
            yield
            return
        with ExitStack() as stack:
            with self.report_disk_errors():
                stack.enter_context(exclusive(self.path))
            self._end_last_line()
            yield

    @contextmanager
    def report_disk_errors(self) -> Iterator[None]:
        """What the disk refuses within is said in one sentence."""
        try:
            yield
        except OSError as error:
            reason = error.strerror if self.path.is_dir() else "the folder is no longer there"
            raise DiskError(
                f"cannot write to {self.path}: {reason}; what is there is kept: mend that, then go on with "
                f"'selfmark discover -o {self.path} --resume'"
            ) from error

    def _end_last_line(self) -> None:
        """A kill or a full disk may have cut the log short; what follows must not share that line."""
        with self.report_disk_errors(), open_for_append(self.path / "log.jsonl") as handle:
            if handle.tell() and (self.path / "log.jsonl").read_bytes()[-1:] != b"\n":
                handle.write("\n")

    def discard(self) -> None:
        """Remove a run that came to nothing."""
        shutil.rmtree(self.path, ignore_errors=True)


def _keypoint_tensors(points: Keypoints) -> dict[str, torch.Tensor]:
    tensors = {"xy": points.xy, "image_index": points.image_index, "score": points.score}
    if points.descriptor is not None:
        tensors["descriptor"] = points.descriptor
    return tensors


def _is_free(folder: Path) -> bool:
    """Whether a folder is empty, or holds no more than a start that was cut short left there."""
    if not folder.is_dir():
        return False
    names = {path.name.removesuffix(".part") for path in folder.iterdir()}
    return names <= _FIRST and not any(any((folder / part).glob("*")) for part in _PARTS)


def _intact(path: Path) -> Stored:
    """Labels that cannot be made again as they were; without them the run cannot go on as it was."""
    try:
        return read_tensors(path)
    except DamagedFile as error:
        raise DamagedFile(
            f"{error}; put a copy back, or delete it to have these labels made anew by the network as it is "
            "now, which gives another result than an undisturbed run"
        ) from error


@contextmanager
def _fitting(path: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{path} does not belong to this run: {error}") from error
