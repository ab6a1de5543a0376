"""Check Ultralytics folders with the label check of Ultralytics, and read them back with sleap-io.

Ultralytics cannot be imported without torchvision, which selfmark does not use. The label check does not need
torchvision, so its functions are compiled from the installed source (`pip install --no-deps ultralytics`).
data.yaml is compared with the documentation of Ultralytics.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from PIL import Image

from selfmark.config import Images, Network
from selfmark.detector import Prediction
from selfmark.errors import InputError
from selfmark.export import ultralytics as ultralytics_module
from selfmark.export.ultralytics import format_label, write_ultralytics
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.model.card import ModelCard
from selfmark.points import Landmarks

NAMES = ("nose", "left ear", "right ear: inner", "yes")
EDGES = ((0, 1), (0, 2), (3, 0))
CARD = ModelCard(NAMES, (0, 2, 1, 3), EDGES, Images(), Network(), "parabola", False, {})


# Arguments of the label check after the two paths: prefix of messages, has keypoints, number of classes,
# number of keypoints, numbers per keypoint, treat all classes as one.
CHECK_OPTIONS = ("", True, 1, 4, 3, False)


def _make_random_prediction(refs: list[ImageRef], size: tuple[int, int], seed: int) -> Prediction:
    """Return random landmarks anywhere in images of one size."""
    rng = np.random.default_rng(seed)
    landmarks = Landmarks(
        (rng.random((len(refs), 4, 2)) * size - 0.5).astype(np.float32),
        rng.random((len(refs), 4)).astype(np.float32),
        NAMES,
    )
    return Prediction(tuple(refs), np.array([size] * len(refs)), landmarks)


def _write_picture(path: Path, size: tuple[int, int], value: int = 255) -> ImageRef:
    path.parent.mkdir(exist_ok=True)
    Image.new("RGB", size, (value,) * 3).save(path)
    return ImageRef(path)


def _write_clip(path: Path, frames: int) -> Path:
    """Write a video of 48 x 32 pixels whose frames differ in brightness."""
    video = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 25.0, (48, 32))
    for number in range(frames):
        video.write(np.full((32, 48, 3), 20 * number, np.uint8))
    video.release()
    return path


def _read(folder: Path) -> dict[str, tuple[tuple[int, int], np.ndarray, np.ndarray]]:
    """Return the size (w, h), boxes [N, 4] and points [N, K, 3] of each image; the keys are file stems.

    According to the documentation of Ultralytics, a line contains the class, the box (center x, center y, w,
    h), and for each point x, y and visibility. Coordinates are fractions of the image size.
    """
    labels = {}
    for image in sorted(folder.glob("*/images/*")):
        label = image.parent.parent / "labels" / f"{image.stem}.txt"
        rows = np.array(
            [[float(number) for number in line.split()] for line in label.read_text().splitlines()]
        )
        assert (rows[:, 0] == 0).all()
        with Image.open(image) as opened:
            labels[image.stem] = (opened.size, rows[:, 1:5], rows[:, 5:].reshape(len(rows), -1, 3))
    return labels


def test_unusual_names_are_read_back_from_the_yaml_file() -> None:
    names = ("a\x85b", "\x85", "a\u2028b", "a\n b")
    data = yaml.safe_load(ultralytics_module._build_data_yaml(replace(CARD, names=names)))
    assert (data["kpt_names"], data["node_names"]) == ({0: list(names)}, list(names))


def _compile_ultralytics_check() -> Callable[[tuple[Any, ...]], Any]:
    """Compile `ultralytics.data.utils.verify_image_label` from the installed source."""
    spec = importlib.util.find_spec("ultralytics")
    if spec is None or spec.origin is None:
        pytest.skip("ultralytics is not installed (pip install --no-deps ultralytics)")
    source = Path(spec.origin).parent / "data" / "utils.py"
    wanted_keys = {
        "verify_image_label",
        "check_image",
        "exif_size",
        "IMG_FORMATS",
        "VID_FORMATS",
        "FORMATS_HELP_MSG",
    }
    tree = ast.parse(source.read_text(encoding="utf-8"))

    def get_defined_names(node: ast.stmt) -> set[str]:
        if isinstance(node, ast.Assign):
            return {target.id for target in node.targets if isinstance(target, ast.Name)}
        return {node.name} if isinstance(node, ast.FunctionDef) else set()

    future = ast.parse("from __future__ import annotations").body
    kept = [node for node in tree.body if get_defined_names(node) & wanted_keys]
    assert set().union(*map(get_defined_names, kept)) == wanted_keys
    scope: dict[str, Any] = {"np": np, "os": os, "Image": Image}
    exec(compile(ast.Module([*future, *kept], []), str(source), "exec"), scope)
    check: Callable[[tuple[Any, ...]], Any] = scope["verify_image_label"]
    return check


@pytest.fixture
def stills(tmp_path: Path) -> list[Prediction]:
    """Images of two sizes: two with the same name, one with two objects, one in an unsupported format."""
    a = _write_picture(tmp_path / "one" / "a.png", (40, 30))
    b = _write_picture(tmp_path / "two" / "a.png", (64, 50))
    c = _write_picture(tmp_path / "one" / "c.ppm", (64, 50), 90)
    boxes = ((1.0, 2.0, 20.0, 10.0), (30.0, 5.0, 20.0, 25.0))  # the second box extends beyond the image
    return [
        _make_random_prediction([ImageRef(a.path, box=box) for box in boxes], (40, 30), 1),
        _make_random_prediction([b, c], (64, 50), 2),
    ]


def test_labels_are_fractions_of_the_image_size(tmp_path: Path, stills: list[Prediction]) -> None:
    path = write_ultralytics(stills, CARD, tmp_path)
    assert path == tmp_path / "ultralytics" / "data.yaml"
    assert not list(tmp_path.glob("*.part"))
    labels = _read(path.parent)
    assert list(labels) == ["000000_a", "000001_a", "000002_c"]
    assert [entry[0] for entry in labels.values()] == [(40, 30), (64, 50), (64, 50)]
    xy = np.concatenate([prediction.landmarks.xy for prediction in stills])
    points_read = np.concatenate([points[:, :, :2] * size - 0.5 for size, _, points in labels.values()])
    np.testing.assert_allclose(points_read, xy, atol=1e-4)
    assert all((points[:, :, 2] == 2).all() for _, _, points in labels.values())
    np.testing.assert_allclose(
        labels["000000_a"][1] * [40, 30, 40, 30], [[11, 7, 20, 10], [35, 17.5, 10, 25]], atol=1e-4
    )
    low, high = xy[2].min(axis=0) + 0.5, xy[2].max(axis=0) + 0.5
    expected = [*(low + high) / 2, *(high - low)]
    np.testing.assert_allclose(labels["000001_a"][1][0] * [64, 50, 64, 50], expected, atol=1e-4)
    train, val = (sorted(path.parent.glob(f"{split}/images/*")) for split in ("train", "val"))
    assert (len(train), len(val)) == (2, 1)
    assert [image.is_symlink() for image in (*train, *val)] == [True, True, False]
    assert val[0].name == "000002_c.png"
    assert np.asarray(Image.open(val[0])).mean() == 90


def test_ultralytics_accepts_every_label(tmp_path: Path, stills: list[Prediction]) -> None:
    check = _compile_ultralytics_check()
    clip = _make_random_prediction(list_images([_write_clip(tmp_path / "clip.avi", 5)], every=2), (48, 32), 3)
    path = write_ultralytics([*stills, clip], CARD, tmp_path)
    rows = []
    for image in sorted(path.parent.glob("*/images/*")):
        label = str(image).replace("/images/", "/labels/").rsplit(".", 1)[0] + ".txt"
        _, boxes, shape, _, points, missing, present, empty, corrupt, message = check(
            (str(image), label, *CHECK_OPTIONS)
        )
        assert (missing, present, empty, corrupt, message) == (0, 1, 0, 0, ""), message
        assert (boxes[:, 3:] > 0).all()
        rows.append(points[:, :, :2] * [shape[1], shape[0]] - 0.5)
    xy = np.concatenate([prediction.landmarks.xy for prediction in (*stills, clip)])
    # Ultralytics stores rows as float32.
    np.testing.assert_allclose(np.concatenate(rows), xy, atol=1e-4)


def test_the_ultralytics_check_finds_bad_labels(tmp_path: Path, stills: list[Prediction]) -> None:
    check = _compile_ultralytics_check()
    path = write_ultralytics(stills, CARD, tmp_path)
    image, label = path.parent / "train/images/000000_a.png", path.parent / "train/labels/000000_a.txt"
    # Move the center of the box and one point out of the image, beyond the fraction 1.
    label.write_text(label.read_text().replace("0 0.", "0 1.", 1).replace(" 2 0.", " 2 1.", 1))
    *_, corrupt, _ = check((str(image), str(label), *CHECK_OPTIONS))
    assert corrupt == 1


def test_data_yaml_describes_the_keypoints_and_their_mirror_partners(
    tmp_path: Path, stills: list[Prediction]
) -> None:
    path = write_ultralytics(stills, CARD, tmp_path)
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert data["kpt_shape"] == [4, 3]
    assert data["names"] == {0: "object"}
    assert data["kpt_names"] == {0: list(NAMES)}
    assert "path" not in data, "without a path, the folder can be moved"
    assert all((path.parent / data[split]).is_dir() for split in ("train", "val"))
    # Ultralytics mirrors x, then takes landmark i from position flip_idx[i].
    points = np.array([[0.5, 0.1], [0.3, 0.2], [0.7, 0.2], [0.5, 0.9]])  # a symmetric animal
    flipped = np.column_stack([1 - points[:, 0], points[:, 1]])[data["flip_idx"]]
    np.testing.assert_allclose(flipped, points)


def test_sleap_io_reads_the_folder(tmp_path: Path, stills: list[Prediction]) -> None:
    sio = pytest.importorskip("sleap_io")
    path = write_ultralytics(stills, CARD, tmp_path)
    labels = sio.load_ultralytics(str(path), split="train")
    (skeleton,) = labels.skeletons
    assert skeleton.node_names == list(NAMES)
    assert [tuple(edge) for edge in skeleton.edge_inds] == list(EDGES)
    points_read = [instance.numpy() for frame in labels.labeled_frames for instance in frame.instances]
    xy = [*stills[0].landmarks.xy, stills[1].landmarks.xy[0]]
    # sleap-io measures points from the corner of the first pixel.
    np.testing.assert_allclose(np.stack(points_read) - 0.5, np.stack(xy), atol=1e-4)


def test_frames_of_a_video_become_images(tmp_path: Path) -> None:
    refs = list_images([_write_clip(tmp_path / "clip.avi", 11)], every=2)
    prediction = _make_random_prediction(refs, (48, 32), 4)
    folder = write_ultralytics([prediction], CARD, tmp_path).parent
    images = sorted(folder.glob("*/images/*"), key=lambda image: image.name)
    assert [image.name for image in images] == [
        f"{order:06d}_clip_frame{frame:06d}.jpg" for order, frame in enumerate((0, 2, 4, 6, 8, 10))
    ]
    brightness = [np.asarray(Image.open(image)).mean() for image in images]
    np.testing.assert_allclose(brightness, [0, 40, 80, 120, 160, 200], atol=3)
    assert [image.parent.parent.name for image in images] == ["train"] * 5 + ["val"]
    points = np.concatenate([entry[2] for _, entry in sorted(_read(folder).items())])
    np.testing.assert_allclose(points[:, :, :2] * [48, 32] - 0.5, prediction.landmarks.xy, atol=1e-4)


def test_points_outside_the_image_are_absent() -> None:
    outside = np.array([[-2.0, 5.0], [50.0, 5.0]])
    assert format_label(outside, None, np.array([40.0, 20.0])) == "0 0.5 0.5 1 1 0 0 0 0 0 0", (
        "the box is the whole image"
    )
    single = format_label(np.array([[9.5, 4.5]]), None, np.array([40.0, 20.0]))
    assert single == "0 0.25 0.25 0.025 0.05 0.25 0.25 2", "the box has one pixel"


def test_links_fall_back_to_copies(
    tmp_path: Path, stills: list[Prediction], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("not permitted")

    monkeypatch.setattr(os, "symlink", refuse)
    folder = write_ultralytics(stills, CARD, tmp_path).parent
    image = folder / "train" / "images" / "000000_a.png"
    assert not image.is_symlink()
    assert image.read_bytes() == stills[0].refs[0].path.read_bytes()


def test_errors_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = _write_clip(tmp_path / "clip.avi", 4)
    two_frames = _make_random_prediction([ImageRef(clip, 0), ImageRef(clip, 1)], (48, 32), 0)
    one_frame = _make_random_prediction([ImageRef(clip, 0)], (48, 32), 0)
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"cannot write to .*out"):
        write_ultralytics([two_frames], CARD, out)
    out.mkdir()
    with pytest.raises(InputError, match="at least two images"):
        write_ultralytics([one_frame], CARD, out)
    with pytest.raises(InputError, match=r"cannot read frame 99 of .*, although it was read before"):
        write_ultralytics([two_frames, _make_random_prediction([ImageRef(clip, 99)], (48, 32), 0)], CARD, out)
    assert not list(out.iterdir())
    write_ultralytics([two_frames], CARD, out)
    with pytest.raises(InputError, match="already exists"):
        write_ultralytics([two_frames], CARD, out)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    other_folder = tmp_path / "other"
    other_folder.mkdir()
    monkeypatch.setattr(ultralytics_module, "_build_data_yaml", fail)
    with pytest.raises(OSError, match="No space left"):
        write_ultralytics([two_frames], CARD, other_folder)
    assert not list(other_folder.iterdir())
