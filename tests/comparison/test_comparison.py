"""Test `selfmark compare`: methods on generated images, resuming, and bad input."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selfmark.comparison import runner
from selfmark.comparison.comparison_page import write_page
from selfmark.comparison.comparison_plan import (
    Comparison,
    MethodJob,
    order_rows,
    parse_duration,
    parse_methods,
)
from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.evaluation.on_object import fraction_on_object
from selfmark.evaluation.protocol import Examples
from selfmark.methods.method_registry import build_method
from selfmark.pipeline_steps import seed_weights
from selfmark.run.folder import Run
from tests.conftest import QUICK, selfmark


def _build_command(labeled: Path, output: Path, *more: Any) -> list[Any]:
    settings = {name: value for name, value in QUICK.items() if not name.endswith("iterations")}
    changes = [f"--set={name}={json.dumps(value)}" for name, value in settings.items() if name != "K"]
    labels = f"--labels={labeled / 'labels.json'}"
    methods = "--methods=self-training"
    return [
        *("compare", labeled / "images", labels, methods, "-k", 4, "--budget=1s", "-o", output),
        *("--preset=tiny", "--device=cpu", "--set=correspondence.iterations=5", *changes, *more),
    ]


def _check_that_changed_inputs_are_refused(
    labeled: Path, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Change the labels, then the images of a finished comparison, and restore them."""
    labels, image = labeled / "labels.json", next((labeled / "images").iterdir())
    added = image.with_name("added.png")
    before = labels.read_text()
    labels.write_text(before.replace("]", " ]", 1))
    assert selfmark(*_build_command(labeled, output)) == 2
    assert "the labels changed after the comparison" in " ".join(capsys.readouterr().err.split())
    labels.write_text(before)
    added.write_bytes(image.read_bytes())
    assert selfmark(*_build_command(labeled, output)) == 2
    assert "the images changed after the comparison" in " ".join(capsys.readouterr().err.split())
    added.unlink()
    content = image.read_bytes()
    image.write_bytes(content[:-1] + b"?")  # another image of the same size, as uncompressed ones often are
    assert selfmark(*_build_command(labeled, output)) == 2
    assert "the images changed after the comparison" in " ".join(capsys.readouterr().err.split())
    # Comparisons of earlier versions have digests of the sizes of the images, or none.
    record = json.loads((output / "comparison.json").read_text())
    names = sorted(path for path in (labeled / "images").iterdir())
    sizes = json.dumps([(str(path), path.stat().st_size) for path in names])
    record["digests"]["images"] = hashlib.sha256(sizes.encode()).hexdigest()
    (output / "comparison.json").write_text(json.dumps(record))
    assert selfmark(*_build_command(labeled, output)) == 0
    image.write_bytes(content + b"?")
    assert selfmark(*_build_command(labeled, output)) == 2
    image.write_bytes(content)
    record = json.loads((output / "comparison.json").read_text())
    del record["digests"]
    (output / "comparison.json").write_text(json.dumps(record))
    assert selfmark(*_build_command(labeled, output)) == 0


def test_methods_are_compared_and_not_repeated(
    labeled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert selfmark(*_build_command(labeled, output)) == 0
    content = json.loads((output / "compare.json").read_text())
    assert {row["method"] for row in content["rows"]} == {"self-training", "untrained"}
    for row in content["rows"]:
        assert row["failure"] == ""
        assert 0 < row["forward"] < 100
        assert 0 <= row["on_object"] <= 1
        assert row["memory_gigabytes"] > 0.05
        assert row["verdict"] in ("good", "usable", "failed")
        assert row["training_minutes"] <= row["minutes"]
    page = (output / "index.html").read_text()
    assert page.count("data:image/jpeg") == 2 * 8, "eight pictures for each of the two rows"
    assert "<td>untrained</td>" in page
    # An image with two boxes shows two objects, and the row of each method has a picture of each object.
    image = str(next((labeled / "images").iterdir()))
    boxes = {"images": [{"id": 1, "file_name": image}], "categories": [{"id": 1, "name": "object"}]}
    annotations = [{"id": n, "image_id": 1, "category_id": 1, "bbox": [n, n, 20, 20]} for n in (1, 2)]
    (tmp_path / "boxes.json").write_text(json.dumps(boxes | {"annotations": annotations}))
    comparison = Comparison((str(tmp_path / "boxes.json"),), labeled / "labels.json", 4, 1.0)
    path = write_page(comparison, content["rows"], output)
    assert path.read_text().count("data:image/jpeg") == 2 * 2
    assert "untrained" in capsys.readouterr().out
    # The untrained network has the weights that the method `equivariance` starts from.
    run = Run.open(output / "untrained" / "run")
    with seed_weights(run.config, "equivariance"):
        expected = build_method(run.config).psi.state_dict()
    weights = Detector.load(run.path).psi.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    # A second call repeats no row.
    times = [path.stat().st_mtime_ns for path in sorted(output.glob("*/result.json"))]
    assert selfmark(*_build_command(labeled, output)) == 0
    assert times == [path.stat().st_mtime_ns for path in sorted(output.glob("*/result.json"))]
    _check_that_changed_inputs_are_refused(labeled, output, capsys)
    # Another comparison needs another folder.
    assert selfmark(*_build_command(labeled, output, "--seed=1")) == 2
    assert "contains another comparison" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--methods=autolnk", "unknown method 'autolnk'. Did you mean 'autolink'?"),
        ("--methods=zero-shot,zero-shot", "is listed twice"),
        ("--budget=4", "a duration such as 90s, 4min or 1h"),
        ("--labels=nowhere.json", "nowhere.json"),
        ("--set=seed=3", "--set seed=... is not possible in a comparison: use --seed instead"),
        ("--set=K=3", "--set K=... is not possible in a comparison: use -k instead"),
    ],
)
def test_bad_input_is_refused_before_any_training(
    change: str, message: str, labeled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert selfmark(*_build_command(labeled, output, change)) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not output.exists()


def test_landmarks_on_the_object_are_counted() -> None:
    square = np.array([[10.0, 10.0], [30.0, 10.0], [30.0, 30.0], [10.0, 30.0], [20.0, 20.0]])
    landmarks = np.array([[20.0, 15.0], [31.0, 20.0], [40.0, 20.0], [10.0, 10.0]])
    visible = np.array([[True] * 5, [True, True, False, False, False]])
    examples = Examples(
        landmarks=np.stack([landmarks, landmarks]),
        truth=np.stack([square, square]),
        visible=visible,
        normalizer=np.ones(2),
    )
    assert fraction_on_object(examples, 0) == pytest.approx(2 / 4)
    assert fraction_on_object(examples, 1.5) == pytest.approx(3 / 4)
    assert fraction_on_object(examples.select(np.array([1])), 0) is None


def test_failed_methods_come_last() -> None:
    rows = [
        {"method": "a", "failure": "x", "forward": None},
        {"method": "b", "failure": "", "forward": 3.0},
        {"method": "c", "failure": "", "forward": 2.0},
    ]
    assert [row["method"] for row in order_rows(rows)] == ["c", "b", "a"]


def test_budgets_and_methods_are_parsed() -> None:
    assert (parse_duration("90s"), parse_duration("0.5h")) == (90, 1800)
    assert parse_methods("")[:2] == ("self-training", "zero-shot")
    for text in ("4", "min", "-3s", "0s"):
        with pytest.raises(InputError):
            parse_duration(text)


@pytest.mark.parametrize("outcome", [{"failure": ""}, KeyboardInterrupt(), InputError("no images")])
def test_a_process_whose_parent_was_killed_ends_quietly(
    outcome: dict[str, Any] | BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure_method(job: MethodJob) -> dict[str, Any]:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(runner, "measure_method", measure_method)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    receiver.close()  # as when the parent process is killed
    job = MethodJob(Comparison(("images",), Path("labels.json"), 4, 1.0), "autolink", tmp_path, "cpu")
    runner._work(job, sender)
