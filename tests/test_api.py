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
    expected, actual = selfmark.load(run)(image), selfmark.load(run, runtime="onnx")(image)
    np.testing.assert_allclose(actual.xy, expected.xy, atol=0.02)
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


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("inputs", None, "str, Path, or sequence of str or Path"),
        ("inputs", 5, "str, Path, or sequence"),
        ("inputs", [None], "str, Path, or sequence"),
        ("inputs", np.zeros((4, 4, 3), np.uint8), "str, Path, or sequence"),
        ("landmarks", 2.5, "int, 'auto' or None"),
        ("landmarks", True, "int, 'auto' or None"),
        ("output", 5, "str, Path or None"),
        ("preset", None, "str"),
        ("settings", [("M", 3)], "mapping or None"),
        ("settings", {5: 3}, "mapping or None"),
        ("every", "2", "int"),
        ("every", True, "int"),
        ("regions", (1, 2, 3, 4), "Regions or None"),
        ("listener", "print", "callable or None"),
        ("features", 5, "str or None"),
        ("method", 5, "'self-training' or "),
        ("resume", "yes", "bool"),
    ],
)
def test_arguments_of_wrong_types_give_one_sentence(name: str, value: object, expected: str) -> None:
    with pytest.raises(selfmark.InputError) as caught:
        selfmark.discover(**{"inputs": "photos", name: value})
    assert str(caught.value).startswith(f"discover: '{name}' must be {expected}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("function", "arguments", "problem"),
    [
        ("load", (None,), "load: 'folder' must be str or Path, not None"),
        ("load", ("a\0b",), "load: 'folder' contains a null character"),
        ("load", ("demo", None), "unknown device 'None'"),
        ("discover", ("photos", 4, "a\0b"), "discover: 'output' contains a null character"),
        (
            "evaluate",
            ("run", None),
            "evaluate: 'images' must be str, Path, or sequence of str or Path, not None",
        ),
        ("map_points", ("run", 5), "map_points: 'labels' must be str or Path, not 5"),
        ("Regions", (5,), "Regions: 'boxes' must be str, Path or None, not 5"),
        ("Regions", (None, (1, 2, 3)), r"the crop must be x, y, width and height in pixels, not \(1, 2, 3\)"),
        ("Regions", (None, "0,0,9,9"), "Regions: 'crop' must be sequence of float or None"),
        ("Regions", (None, None, "2"), "Regions: 'animals' must be int, not '2'"),
    ],
)
def test_unusable_arguments_give_one_sentence(
    function: str, arguments: tuple[object, ...], problem: str
) -> None:
    with pytest.raises(selfmark.InputError, match=problem):
        getattr(selfmark, function)(*arguments)


def test_arguments_of_similar_types_are_accepted(photos: Path) -> None:
    files = (path for path in photos.iterdir())
    with pytest.raises(selfmark.InputError, match="unknown preset 'none'"):
        selfmark.discover(
            files, 4, preset="none", every=np.int32(1), regions=selfmark.Regions(crop=[0, 0, 9, 9])
        )
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        selfmark.load("demo", devices="cpu")
