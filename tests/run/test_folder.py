"""Test the run folder: settings that a run decides itself, and results that are computed only once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from selfmark.config import override, preset, with_features
from selfmark.errors import DiskError, InputError, report_write_errors
from selfmark.run.folder import Run
from selfmark.run.processes import ProcessGroup

CPU = torch.device("cpu")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    config = with_features(preset("tiny"), "efficientnet-lite0")
    Run.create(tmp_path / "run", config, ["photos"], [])
    return Run.open(tmp_path / "run")


# --- settings --------------------------------------------------------------------------------------


def test_settings_that_the_run_decides_itself_are_stored(run: Run) -> None:
    before = run.config
    settings = {"features.orientation": "any", "augment.rotation": 180.0}
    run.settle_settings(settings)
    assert run.config == override(before, settings)
    assert Run.open(run.path).config == run.config


def test_only_rank_0_stores_settings_that_the_run_decides_itself(run: Run) -> None:
    before = (run.path / "config.yaml").read_bytes()
    follower = Run(run.path, run.config, group=ProcessGroup(1, 2))
    follower.settle_settings({"features.orientation": "upright"})
    assert follower.config.features.orientation == "upright"
    assert (run.path / "config.yaml").read_bytes() == before


@pytest.mark.parametrize("name", ["student.batch", "student.lr", "runtime.predict_batch"])
def test_some_settings_can_change_when_a_run_is_resumed(name: str, run: Run) -> None:
    run.change_settings({name: 1})
    section, _, setting = name.partition(".")
    assert getattr(getattr(Run.open(run.path).config, section), setting) == 1
    assert run.events()[-1]["event"] == "changed"


def test_settings_may_be_repeated_when_a_run_is_resumed(run: Run) -> None:
    before = run.config
    run.change_settings({"M": before.M, "images.size": before.images.size})
    assert run.config == before
    assert not run.events()


@pytest.mark.parametrize("name", ["method", "features.name", "features.sharpness", "student.rounds"])
def test_settings_that_stored_results_depend_on_cannot_change(name: str, run: Run) -> None:
    before = (run.path / "config.yaml").read_bytes()
    with pytest.raises(InputError, match=rf"'{name}' cannot change when a run is resumed"):
        run.change_settings({name: "5"})
    assert (run.path / "config.yaml").read_bytes() == before


# --- stored tensors --------------------------------------------------------------------------------


class _Computation:
    """Counts how often tensors are computed."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, torch.Tensor]:
        self.calls += 1
        return {"xy": torch.arange(6.0).view(3, 2), "label": torch.tensor([2, 0, 1])}


def test_tensors_are_computed_once(run: Run) -> None:
    compute = _Computation()
    assert not run.has_points("zero-shot")
    for _ in range(2):
        tensors = run.load_or_compute_tensors("zero-shot", CPU, compute)
        assert tensors.keys() == {"xy", "label"}
        assert all(torch.equal(tensors[name], value) for name, value in _Computation()().items())
    assert compute.calls == 1
    assert run.has_points("zero-shot")
    assert not run.has_points("first")


def test_damaged_tensors_are_computed_again(run: Run) -> None:
    compute = _Computation()
    run.load_or_compute_tensors("zero-shot", CPU, compute)
    path = run.path / "points" / "zero-shot.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    recomputed = run.load_or_compute_tensors("zero-shot", CPU, compute)
    assert compute.calls == 2
    assert torch.equal(recomputed["xy"], _Computation()()["xy"])
    assert run.events()[-1]["event"] == "damaged"
    assert path.read_bytes() != bytes(content)


def test_a_failed_computation_stores_nothing(run: Run) -> None:
    def fail() -> dict[str, torch.Tensor]:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        run.load_or_compute_tensors("zero-shot", CPU, fail)
    assert not run.has_points("zero-shot")


def test_disk_errors_say_how_to_resume_the_run(run: Run) -> None:
    """They do so even if a function in the context has already converted the OSError."""
    message = "No space left on device; fix this, then resume the run with .* --resume"
    with pytest.raises(DiskError, match=message), run.report_disk_errors(), report_write_errors("to model"):
        raise OSError(28, "No space left on device", "weights.safetensors")
    with pytest.raises(DiskError, match="other"), run.report_disk_errors():
        raise DiskError("other")
