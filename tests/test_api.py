"""Test the names that `import selfmark` provides."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import selfmark
from tests.conftest import selfmark as run_command


@pytest.fixture
def run(quick_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(quick_run, tmp_path / "run"))


def test_every_public_name_exists() -> None:
    for name in selfmark.__all__:
        assert getattr(selfmark, name) is not None
    assert set(selfmark.__all__) <= set(dir(selfmark))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        selfmark.nothing  # noqa: B018


def test_importing_selfmark_imports_neither_torch_nor_opencv() -> None:
    code = "import sys, selfmark; sys.exit('torch' in sys.modules or 'cv2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_importing_submodules_hides_no_function() -> None:
    import selfmark.api
    import selfmark.discovery
    import selfmark.evaluation.run_evaluation
    import selfmark.mapping.learning

    for name in ("discover", "evaluate", "load", "map_points"):
        assert callable(getattr(selfmark, name))


def test_evaluate_returns_the_metrics_that_it_writes(run: Path, labeled: Path, tmp_path: Path) -> None:
    metrics = selfmark.evaluate(
        run,
        labeled / "images",
        labeled / "labels.json",
        by=["pose"],
        settings={"draws": 1, "fit_images": [5]},
        output=tmp_path / "out",
        device="cpu",
    )
    assert metrics["headline"]["forward"]["error"] > 0
    assert set(metrics["by"]["pose"]) == {"left", "right"}
    assert json.loads((tmp_path / "out" / "metrics.json").read_text()) == metrics
    unlabeled = selfmark.evaluate(run, [labeled / "images"], device="cpu")
    assert "headline" not in unlabeled
    assert len(unlabeled["unlabelled"]["trust"]) == 4


def test_map_points_returns_and_stores_a_detector_of_the_labeled_points(
    run: Path, labeled: Path, tmp_path: Path
) -> None:
    picture = sorted((labeled / "images").iterdir())[0]
    mapped = selfmark.map_points(run, labeled / "labels.json", labeled / "images", device="cpu")
    assert "nose" in mapped.names
    points = mapped(picture)
    assert points.xy.shape == (1, len(mapped.names), 2)
    reloaded = selfmark.load(run, mapped=True)
    assert reloaded.names == mapped.names
    np.testing.assert_array_equal(reloaded(picture).xy, points.xy)
    assert selfmark.load(run).names != mapped.names


def test_notes_of_a_map_become_warnings(run: Path, labeled: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(labeled, tmp_path / "labeled"))
    broken = sorted((folder / "images").iterdir())[0]
    broken.write_bytes(b"not a picture")
    with pytest.warns(UserWarning, match=broken.name):
        selfmark.map_points(run, folder / "labels.json", folder / "images", device="cpu")


def test_a_run_without_a_map_has_no_mapped_detector(run: Path) -> None:
    with pytest.raises(selfmark.InputError, match="has no map"):
        selfmark.load(run, mapped=True)


def test_load_with_onnx_runtime_finds_the_same_landmarks(run: Path, photos: Path) -> None:
    pytest.importorskip("onnxruntime")
    assert run_command("export", run, "--onnx") == 0
    image = sorted(photos.iterdir())[0]
    expected, found = selfmark.load(run)(image), selfmark.load(run, runtime="onnx")(image)
    np.testing.assert_allclose(found.xy, expected.xy, atol=0.02)
    with pytest.raises(selfmark.InputError, match="abacus"):
        selfmark.load(run, runtime="abacus")


@pytest.mark.parametrize("call", ["load", "load onnx", "Detector.load", "evaluate", "map_points", "discover"])
def test_the_error_for_a_too_long_name_is_one_sentence(call: str, photos: Path) -> None:
    name = "a" * 5000
    calls: dict[str, Callable[[], object]] = {
        "load": lambda: selfmark.load(name),
        "load onnx": lambda: selfmark.load(name, runtime="onnx"),
        "Detector.load": lambda: selfmark.Detector.load(name),
        "evaluate": lambda: selfmark.evaluate(name, photos),
        "map_points": lambda: selfmark.map_points(name, photos),
        "discover": lambda: selfmark.discover(photos, 4, name, device="cpu"),
    }
    with pytest.raises(selfmark.InputError, match=r"^a+ \.\.\. a+(/[a-z.]+)?: File name too long$") as caught:
        calls[call]()
    assert len(str(caught.value)) < 600


def test_errors_of_a_listener_keep_their_type(photos: Path, tmp_path: Path) -> None:
    def listen(event: object) -> None:
        raise ConnectionError("no network")

    with pytest.raises(ConnectionError, match="no network"):
        selfmark.discover(photos, 4, tmp_path / "run", preset="tiny", device="cpu", listener=listen)
