"""Views: what is refused, how cards are merged, and discover, predict and other commands with two views."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from selfmark.demo.scene import Scene
from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.multiview.view_boxes import View, parse_views, read_views, require_inside
from selfmark.multiview.view_detector import merge_cards
from tests.conftest import QUICK, selfmark
from tests.export.fakes import CARD

OPTIONS = [
    "--device=cpu",
    "--preset=tiny",
    *[f"--set={name}={json.dumps(value)}" for name, value in QUICK.items()],
]
VIEWS = ["--views", "top=0,0,64,64", "bottom=0,64,64,64"]


@pytest.fixture(scope="module")
def mirrored(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images whose lower half is another view: the upper half upside down, in other colors."""
    folder = tmp_path_factory.mktemp("mirrored")
    for index, image in enumerate(scene.images[:12]):
        both = np.concatenate([image, 255 - image[::-1]])
        cv2.imwrite(str(folder / f"{index:03d}.png"), both[..., ::-1])
    return folder


@pytest.fixture(scope="module")
def run(mirrored: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("views") / "run"
    assert selfmark("discover", mirrored, "-o", output, *VIEWS, *OPTIONS) == 0
    return output


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["top=0,0,9,9"], "at least two views"),
        (["top=0,0,9,9", "TOP=9,0,9,9"], "two views are called 'TOP'"),
        (["a=0,0,9,9", "b=8,8,9,9"], "the views 'a' and 'b' overlap"),
        (["a=0,0,9,9", "b=8,8,9"], "not 'b=8,8,9'"),
        (["a=0,0,9,9", "b=9,9,0,5"], "not 'b=9,9,0,5'"),
        (["a=0,0,9,9", "../b=9,9,5,5"], "a name has letters"),
        (["a=0,0,9,9", "b=9,nan,5,5"], "takes NAME=X,Y,WIDTH,HEIGHT"),
    ],
)
def test_unusable_views_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_views(texts)


def test_views_may_touch_but_not_leave_the_image(mirrored: Path) -> None:
    refs = [ImageRef(path) for path in sorted(mirrored.iterdir())]
    require_inside(parse_views(["a=0,0,64,64", "b=0,64,64,64"]), refs)
    with pytest.raises(InputError, match=r"'b' \(0,64,64,65\) is not inside .*, which has 64 x 128 pixels"):
        require_inside(parse_views(["a=0,0,64,64", "b=0,64,64,65"]), refs)


def test_views_need_a_single_process(
    mirrored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert selfmark("discover", mirrored, "-o", tmp_path / "run", *VIEWS, "--device=cpu") == 2
    assert "start selfmark without torchrun" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_cards_are_merged() -> None:
    first = replace(
        CARD, hidden=(1,), trust=(0.1, 0.2, 0.3, 0.4), verdict="good", colors=("#000001", "", "", "")
    )
    second = replace(CARD, names=("landmark_0", "b", "c", "d"), trust=(0.5,) * 4, verdict="usable")
    merged = merge_cards(["top", "side"], [first, second])
    assert merged.names[:1] + merged.names[4:6] == ("top_nose", "side_0", "side_b")
    assert merged.mirror == (0, 1, 3, 2, 4, 5, 7, 6)
    assert merged.skeleton == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert merged.hidden == (1,)
    assert merged.trust == (0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.5)
    assert merged.verdict == "usable"
    assert merged.colors[0] == "#000001"
    assert len(set(merged.colors)) == 8, "landmarks of different views have different colors"
    assert merge_cards(["a", "b"], [first, replace(second, trust=(), verdict=None)]).trust == ()


def test_two_views_in_one_table(run: Path, mirrored: Path, tmp_path: Path) -> None:
    assert read_views(run) == (View("top", (0, 0, 64, 64)), View("bottom", (0, 64, 64, 64)))
    assert selfmark("predict", run, mirrored, "-o", tmp_path / "out", "--device=cpu", "--draw") == 0
    with open(tmp_path / "out" / "landmarks.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == 12 * 8
    assert {row["instance"] for row in rows} == {"0"}
    assert [row["landmark"] for row in rows[:8]] == [f"{v}_{k}" for v in ("top", "bottom") for k in range(4)]
    # Each view is predicted by its own detector, which sees the view and nothing else.
    for number, view in enumerate(read_views(run)):
        detector = Detector.load(run / view.name)
        box = view.box
        refs = [ImageRef(path, box=box) for path in sorted(mirrored.iterdir())]
        (batch,) = detector.predict(refs)
        ours = np.array([(float(row["x"]), float(row["y"])) for row in rows]).reshape(12, 2, 4, 2)[:, number]
        np.testing.assert_allclose(ours, batch.landmarks.xy, atol=1e-3)
        assert (ours[..., 1] >= box[1] - 0.5).all()
        assert (ours[..., 1] <= box[1] + box[3] - 0.5).all(), "within the view"
    assert len(list((tmp_path / "out" / "drawn").iterdir())) == 12


def test_other_commands_take_one_view(
    run: Path, mirrored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = [
        ["evaluate", run, mirrored],
        ["report", run],
        ["export", run, "--onnx"],
        ["predict", run, mirrored, "--crop=0,0,9,9", "-o", tmp_path / "out"],
        ["predict", run, mirrored, "--views", "a=0,0,9,9", "b=9,0,9,9", "-o", tmp_path / "out"],
        ["predict", run / "top", mirrored, *VIEWS, "-o", tmp_path / "out"],
        ["discover", mirrored, "-o", run, *VIEWS],
        ["discover", mirrored, "-o", tmp_path / "new", "--views", "a=0,0,64,64", "b=0,60,64,64"],
        ["discover", mirrored, "-o", tmp_path / "new", "--views", "a=0,0,64,64", "b=0,64,65,64"],
        ["discover", mirrored, "-o", tmp_path / "new", "--crop=0,0,9,9", *VIEWS],
    ]
    for command in commands:
        capsys.readouterr()
        assert selfmark(*command) == 2, command
        error = capsys.readouterr().err.strip()
        assert error.startswith("selfmark: ")
        assert "\n" not in error
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "out").exists()
    assert selfmark("discover", "-o", run, "--resume", "--device=cpu") == 0, "both views are finished"
