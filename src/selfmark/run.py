"""The run folder: where a discovery keeps everything, so that it can be looked at, resumed and loaded.

config.yaml            every setting
run.json               format and version, the inputs as given
images.json            the images used, in order
landmark_count.json    the K chosen and what it was chosen from, where it was left open
log.jsonl              one line per event: what a plot, a progress bar and a test all read
points/                first keypoints, labels of each round, landmarks of Stage 2
checkpoints/           training state of each stage
model/                 what `selfmark.load` needs
report/index.html
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from selfmark import config as configuration
from selfmark._version import __version__
from selfmark.config import Config
from selfmark.errors import InputError
from selfmark.group import ALONE, Group
from selfmark.images.sources import ImageRef
from selfmark.points import Keypoints, LabelledPoints
from selfmark.train.checkpoint import load_state, read_tensors, save_state, write_tensors
from selfmark.train.engine import TrainState

FORMAT = 1  # of run folders and models; raised when an older selfmark could not read them

Event = dict[str, Any]
Listener = Callable[[Event], None]


def write_json(value: Any, path: Path) -> None:
    """Write JSON, whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "w", encoding="utf-8") as handle:
        json.dump(value, handle, indent=1)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(temporary, path)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error


def require_format(values: Any, path: Path) -> None:
    """Refuse what a newer selfmark wrote, and what no selfmark wrote."""
    written = values.get("format") if isinstance(values, dict) else None
    if not isinstance(written, int):
        raise InputError(f"{path} was not written by selfmark")
    if written > FORMAT:
        raise InputError(
            f"{path} was made by a newer selfmark ({values.get('selfmark', 'version unknown')}); "
            f"this is {__version__}: upgrade with 'pip install -U selfmark'"
        )


class Run:
    """One run folder. Make it with `create`, come back to it with `open`."""

    def __init__(
        self, path: Path, config: Config, listener: Listener | None = None, group: Group = ALONE
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
        if (path / "run.json").exists():
            raise InputError(
                f"{path} already holds a run: add --resume to go on with it, or choose another output folder"
            )
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InputError(f"{path} exists and is not an empty folder: choose another output folder")
        try:
            for part in ("points", "checkpoints"):
                (path / part).mkdir(parents=True, exist_ok=True)
            configuration.write_yaml(config, path / "config.yaml")
            write_json(
                [
                    {"path": str(ref.path), "frame": ref.frame, "box": ref.box, "track": ref.track}
                    for ref in refs
                ],
                path / "images.json",
            )
            write_json({"format": FORMAT, "selfmark": __version__, "inputs": list(inputs)}, path / "run.json")
        except OSError as error:
            raise InputError(f"cannot write to {path}: {error.strerror}") from error

    @classmethod
    def open(cls, path: Path, listener: Listener | None = None, group: Group = ALONE) -> Run:
        if not (path / "run.json").exists():
            raise InputError(f"{path} holds no run")
        require_format(read_json(path / "run.json"), path / "run.json")
        run = cls(path, configuration.read_yaml(path / "config.yaml"), listener, group)
        if run.config.K == 0 and run._count.exists():
            run._take_count()
        return run

    @property
    def model(self) -> Path:
        return self.path / "model"

    def refs(self) -> list[ImageRef]:
        """The images this run was started on."""
        entries = read_json(self.path / "images.json")
        return [
            ImageRef(
                Path(entry["path"]),
                entry["frame"],
                tuple(entry["box"]) if entry["box"] else None,
                entry.get("track"),  # runs from before there were tracks have none
            )
            for entry in entries
        ]

    # --- events ---------------------------------------------------------------------------------

    def log(self, event: str, **fields: Any) -> None:
        """Append one event to log.jsonl and show it to whoever listens; one process of a job does so."""
        if not self.group.leads:
            return
        entry: Event = {"time": round(time.time(), 3), "event": event, **fields}
        with open(self.path / "log.jsonl", "a", encoding="utf-8") as handle:
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

    def keypoints(self, name: str, compute: Callable[[], Keypoints]) -> Keypoints:
        """Keypoints computed once, by one process: from points/NAME if there, else computed and written."""
        path = self.path / "points" / f"{name}.safetensors"

        def settle() -> None:
            if not path.exists():
                write_tensors(_keypoint_tensors(compute()), {}, path)

        self.group.first(settle)
        tensors, _ = read_tensors(path)
        return Keypoints(**tensors)

    def labelled(
        self, name: str, device: torch.device, compute: Callable[[], LabelledPoints]
    ) -> LabelledPoints:
        """Labelled points computed once, by all processes together, and read back on the given device."""
        path = self.path / "points" / f"{name}.safetensors"
        there = path.exists()
        self.group.barrier()  # all have looked before one of them writes
        if not there:
            labelled = compute()
            tensors = _keypoint_tensors(labelled.points)
            tensors |= {"label": labelled.label, "mirrored_label": labelled.mirrored_label}
            if labelled.centroids is not None:
                tensors["centroids"] = labelled.centroids
            self.group.first(lambda: write_tensors(tensors, {"clusters": str(labelled.clusters)}, path))
        tensors, metadata = read_tensors(path)
        label, mirrored = tensors.pop("label").to(device), tensors.pop("mirrored_label").to(device)
        centroids = tensors.pop("centroids").to(device) if "centroids" in tensors else None
        points = Keypoints(**tensors).to(device)
        return LabelledPoints(points, label, mirrored, int(metadata["clusters"]), centroids)

    def settle_landmarks(self, compute: Callable[[], Mapping[str, Any]]) -> None:
        """Where K was left open, let one process choose it, keep the choice, and take it everywhere.

        Args:
            compute: returns what is kept in landmark_count.json and logged; "K" is the choice.
        """

        def settle() -> None:
            chosen = compute()
            self.log("landmark_count", **chosen)  # before it is kept: rather twice than never
            write_json({"format": FORMAT, **chosen}, self._count)

        self.group.first(settle)
        self._take_count()

    @property
    def _count(self) -> Path:
        return self.path / "landmark_count.json"

    def _take_count(self) -> None:
        chosen = read_json(self._count)
        require_format(chosen, self._count)
        self.config = configuration.with_landmarks(self.config, int(chosen["K"]))

    def restore(self, stage: str, state: TrainState) -> None:
        """Bring the state to this stage's last checkpoint, if there is one."""
        path = self.path / "checkpoints" / f"{stage}.safetensors"
        if path.exists():
            load_state(state, path)
            self.log("resumed", stage=stage, iteration=state.iteration)

    def checkpoint(self, stage: str, state: TrainState) -> None:
        """Keep the state; all processes have the same weights, so one of them writes."""
        if self.group.leads:
            save_state(state, self.path / "checkpoints" / f"{stage}.safetensors")
        self.log("checkpoint", stage=stage, iteration=state.iteration)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one job at a time may work on a run; its first process holds the lock."""
        if not self.group.leads:
            yield
            return
        with open(self.path / ".lock", "w", encoding="utf-8") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InputError(f"another process is working on {self.path}") from error
            yield

    def discard(self) -> None:
        """Remove a run that came to nothing."""
        shutil.rmtree(self.path, ignore_errors=True)


def _keypoint_tensors(points: Keypoints) -> dict[str, torch.Tensor]:
    tensors = {"xy": points.xy, "image_index": points.image_index, "score": points.score}
    if points.descriptor is not None:
        tensors["descriptor"] = points.descriptor
    return tensors
