"""Before the method begins: a run folder, made anew or opened again, locked while somebody works in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from selfmark.config import Config, choose, override
from selfmark.devices import pick
from selfmark.errors import InputError
from selfmark.group import Group, restarted
from selfmark.objects.place import Where, locate
from selfmark.run import Listener, Run


class Named(NamedTuple):
    """What the user asks landmarks for, as they say it."""

    inputs: Sequence[str | Path]
    every: int
    where: Where | None


@contextmanager
def at_work(
    named: Named,
    landmarks: int | Literal["auto"] | None,
    output: str | Path | None,
    preset: str,
    settings: Mapping[str, Any],
    resume: bool,
    device: str,
    listener: Listener | None,
) -> Iterator[tuple[Run, torch.device, bool]]:
    """A new run or one to go on with, locked; where to compute, and whether it is new."""
    processor = pick(device)
    group = Group.of_environment(processor)
    path = _run_folder(named.inputs, output, resume)
    # Processes that torchrun has started again go on where the last checkpoint stands.
    resume = resume or (restarted() and (path / "run.json").exists())
    if not resume:
        group.first(lambda: _new_run(path, named, landmarks, preset, settings, processor, listener))
    run = Run.open(path, listener, group)
    if (
        resume
        and named.inputs
        and locate(named.inputs, named.every, named.where, run.config.tracking) != run.refs()
    ):
        raise InputError(f"{run.path} was started on other images: leave the inputs out to resume it")
    try:
        with run.locked():
            if resume:
                run.change(settings)
            yield run, processor, not resume
    finally:
        group.close()


def _run_folder(given: Sequence[str | Path], output: str | Path | None, resume: bool) -> Path:
    if output is not None:
        return Path(output)
    if resume:
        raise InputError("say which run to resume with --output")
    if not given:
        raise InputError("no images given: name a folder, image files or a video")
    return Path("runs") / (Path(given[0]).stem or "discovery")


def _new_run(
    path: Path,
    named: Named,
    landmarks: int | Literal["auto"] | None,
    preset: str,
    settings: Mapping[str, Any],
    device: torch.device,
    listener: Listener | None,
) -> None:
    if not named.inputs:
        raise InputError("no images given: name a folder, image files or a video")
    if landmarks is not None and landmarks != "auto" and not (isinstance(landmarks, int) and landmarks >= 1):
        raise InputError(f"the number of landmarks must be at least 1, or 'auto', not {landmarks!r}")
    about_tracking = {name: value for name, value in settings.items() if name.startswith("tracking.")}
    tracking = override(Config(), about_tracking).tracking

    def looked(done: int, of: int) -> None:
        if listener is not None and (done % 25 == 0 or done == of):
            listener({"event": "progress", "stage": "finding animals", "round": 0, "done": done, "of": of})

    notes: list[str] = []
    refs = locate(named.inputs, named.every, named.where, tracking, looked, notes.append)
    config, why = choose(preset, device.type == "cuda", len(refs), landmarks)
    if named.where is not None and named.where.animals:
        config = replace(config, augment=replace(config.augment, rotation=tracking.rotation))
    config = override(config, settings)
    Run.create(path, config, [str(one) for one in named.inputs], refs)
    run = Run.open(path, listener)
    for note in notes:
        run.log("note", text=note)
    run.log(
        "start",
        preset=config.preset,
        why=why,
        device=str(device),
        images=len(refs),
        K=config.K or "auto",
        M=config.M,
        output=str(path),
    )
