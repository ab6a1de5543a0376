"""Test points and boxes of detectors that replace those of a data set."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets import face_finder
from selfmark.paper.datasets.dataset import Dataset
from selfmark.paper.datasets.dataset_registry import read_dataset
from selfmark.paper.datasets.detection_files import read_points
from selfmark.paper.datasets.detections import replace_boxes, replace_points
from selfmark.paper.datasets.face_finder import use_found_faces
from selfmark.paper.datasets.face_points import FIVE, FIVE_MIRROR, SIXTY_EIGHT, SIXTY_EIGHT_MIRROR
from tests.paper.datasets import body_miniatures, face_miniatures
from tests.paper.datasets.face_miniatures import make_five_points, make_sixty_eight_points, write_lines

MAFL_IMAGES = ("000001.jpg", "000002.jpg", "000003.jpg", "000007.jpg", "000008.jpg")


@pytest.fixture
def celeba(tmp_path: Path) -> Dataset:
    return read_dataset("celeba", face_miniatures.make_celeba(tmp_path / "celeba"))


@pytest.fixture
def aflw(tmp_path: Path) -> Dataset:
    return read_dataset("aflw", face_miniatures.make_aflw(tmp_path / "aflw"))


def _write_coco(
    path: Path, detections: list[tuple[str, Any]], category: dict[str, Any] | None = None
) -> Path:
    """Write a COCO file of visible points, with one image for each name."""
    names = list(dict.fromkeys(name for name, _ in detections))
    content = {
        "images": [{"id": number, "file_name": name} for number, name in enumerate(names)],
        "annotations": [
            {
                "id": number,
                "image_id": names.index(name),
                "category_id": 1,
                "keypoints": np.insert(np.asarray(xy, float), 2, 2, axis=1).ravel().tolist(),
            }
            for number, (name, xy) in enumerate(detections)
        ],
        "categories": [{"id": 1, "name": "face"} | (category or {})],
    }
    path.write_text(json.dumps(content))
    return path


def _write_detections(path: Path, file_format: str, names: tuple[str, ...]) -> Path:
    """Write 68 points for each image, moved by the image's number, in one of the formats."""
    points = [make_sixty_eight_points(int(name[:6])) for name in names]
    if file_format == "json":
        return _write_coco(path.with_suffix(".json"), list(zip(names, points, strict=True)))
    if file_format == "csv":
        header = ",".join(["image", *(f"{axis}{number}" for number in range(1, 69) for axis in "xy")])
        lines = [
            f"{name}," + ",".join(f"{value:.2f}" for value in xy.ravel())
            for name, xy in zip(names, points, strict=True)
        ]
        write_lines(path.with_suffix(".csv"), [header, *lines], newline="\r\n")
    elif file_format == "npz":
        np.savez(path.with_suffix(".npz"), names=np.array(names), xy=np.stack(points))
    else:
        np.save(path.with_suffix(".npy"), np.stack(points))
        write_lines(path.with_suffix(".txt"), list(names))
    return path.with_suffix(f".{file_format}")


@pytest.mark.parametrize("file_format", ["json", "csv", "npz", "npy"])
def test_celeba_gets_the_68_points_of_a_detector(celeba: Dataset, tmp_path: Path, file_format: str) -> None:
    data = replace_points(celeba, _write_detections(tmp_path / "points", file_format, MAFL_IMAGES))
    assert data.names == SIXTY_EIGHT
    assert data.mirror == SIXTY_EIGHT_MIRROR
    assert data.fit is not None
    np.testing.assert_allclose(data.fit.xy, [make_sixty_eight_points(number) for number in (3, 1, 2)])
    np.testing.assert_allclose(data.test.xy, [make_sixty_eight_points(7), make_sixty_eight_points(8)])
    # Images without detections stay in the training split.
    assert data.train.paths == celeba.train.paths
    np.testing.assert_allclose(data.train.xy[1], make_sixty_eight_points(2))
    assert np.isnan(data.train.xy[3:]).all()
    assert data.notes == celeba.notes


@pytest.mark.parametrize("name", ["000007.jpg", " 000007.jpg"])
def test_spaces_around_a_name_are_ignored_only_if_no_image_has_them(
    celeba: Dataset, tmp_path: Path, name: str
) -> None:
    first, *others = celeba.test.refs
    refs = (replace(first, path=first.path.with_name(name)), *others)
    path = _write_detections(tmp_path / "points", "csv", MAFL_IMAGES)
    path.write_text(path.read_text().replace("000007.jpg", " 000007.jpg"))
    data = replace_points(replace(celeba, test=replace(celeba.test, refs=refs)), path)
    np.testing.assert_allclose(data.test.xy, [make_sixty_eight_points(7), make_sixty_eight_points(8)])


def test_images_without_points_are_left_out_with_a_note(
    celeba: Dataset, aflw: Dataset, tmp_path: Path
) -> None:
    data = replace_points(celeba, _write_detections(tmp_path / "points", "csv", MAFL_IMAGES[:4]))
    assert [file.name for file in data.test.paths] == ["000007.jpg"]
    assert f"1 object of the test split has no points in {tmp_path / 'points.csv'}" in data.notes
    # Without a split for fitting regressors, this also applies to training images.
    detections = [
        (str(file), make_sixty_eight_points(0)) for file in (*aflw.train.paths[1:], *aflw.test.paths)
    ]
    data = replace_points(aflw, _write_coco(tmp_path / "aflw.json", detections))
    assert data.train.paths == aflw.train.paths[1:]
    with pytest.raises(InputError, match="has no points for any of the 3 objects of the test split"):
        replace_points(aflw, _write_coco(tmp_path / "aflw.json", detections[:4]))


def test_the_detection_closest_to_the_annotated_face_is_used(aflw: Dataset, tmp_path: Path) -> None:
    detections = [(str(file), make_five_points(0)) for split in aflw.splits.values() for file in split.paths]
    last_file = str(aflw.test.paths[2])
    truth = aflw.test.xy[2]
    data = replace_points(
        aflw,
        _write_coco(tmp_path / "a.json", [(last_file, truth + 40), *detections[:-1], (last_file, truth - 3)]),
    )
    np.testing.assert_allclose(data.test.xy[2], truth - 3)
    assert data.names == FIVE
    assert data.mirror == FIVE_MIRROR


def test_longer_paths_match_and_paths_in_other_folders_do_not(aflw: Dataset, tmp_path: Path) -> None:
    files = [file for split in aflw.splits.values() for file in split.paths]
    longer = [(f"/data/aflw/{file}", make_five_points(0)) for file in files]
    assert len(replace_points(aflw, _write_coco(tmp_path / "a.json", longer)).train) == 5
    with pytest.raises(InputError, match="has no points for any of the 5 objects of the train split"):
        replace_points(
            aflw,
            _write_coco(tmp_path / "a.json", [(f"other/{file.name}", make_five_points(0)) for file in files]),
        )


def test_an_ambiguous_name_raises(tmp_path: Path) -> None:
    data = read_dataset("cub", face_miniatures.make_cub(tmp_path / "cub"))
    files = tuple(Path(f"images/{folder}/1.jpg") for folder in "ab")
    two_birds = data.train.select(np.array([0, 1]))
    twins = data.replace_splits({"train": replace(two_birds, refs=tuple(map(ImageRef, files)))}, ())
    with pytest.raises(InputError, match=r"'1\.jpg' can be images/a/1\.jpg or images/b/1\.jpg"):
        replace_points(twins, _write_coco(tmp_path / "a.json", [("1.jpg", make_five_points(0))]))


def test_unusual_numbers_of_points_need_names_and_mirror_partners(tmp_path: Path) -> None:
    path = _write_coco(
        tmp_path / "a.json",
        [("1.jpg", make_five_points(0)[:3])],
        {"keypoints": ["a", "b", "c"], "flip_idx": [1, 0, 2]},
    )
    points = read_points(path)
    assert (points.names, points.mirror) == (("a", "b", "c"), (1, 0, 2))
    with pytest.raises(
        InputError, match=r"a\.json: the names of its 3 points per image are unknown; use 5 or 68"
    ):
        read_points(
            _write_coco(
                tmp_path / "a.json", [("1.jpg", make_five_points(0)[:3])], {"keypoints": ["a", "b", "c"]}
            )
        )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "x,y\n", r"a\.csv, line 1: the columns must be image,x1,y1"),
        ("a.csv", "image,x1,y1,x2,y2\n1.jpg,1,2,3\n", r"a\.csv, line 2: expected 5 columns, found 4"),
        ("a.csv", "image,x1,y1\n1.jpg,1,two\n", r"a\.csv, line 2: 'two' is not a number"),
        ("a.csv", "image,x1,y1\n1.jpg,1,2\n", r"a\.csv: the names of its 1 points"),
        ("a.npz", "no arrays", r"a\.npz is not a file of plain NumPy arrays"),
        ("a.npy", "no array", r"a\.npy needs a file .*a\.txt with the names"),
        ("a.txt", "1.jpg", r"a\.txt must be one of \.json, \.csv, \.npz, \.npy"),
    ],
)
def test_unusable_point_files_raise_with_the_reason(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_points(tmp_path / name)


def test_pickled_objects_and_wrong_shapes_are_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", names=np.array([{"runs": "anything"}], dtype=object), xy=np.zeros((1, 5, 2)))
    with pytest.raises(InputError, match="is not a file of plain NumPy arrays"):
        read_points(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", names=np.array(["1.jpg", "2.jpg"]), xy=np.zeros((1, 5, 2)))
    with pytest.raises(InputError, match="2 images need points of shape 2 x L x 2, not 1 x 5 x 2"):
        read_points(tmp_path / "a.npz")


# --- boxes ------------------------------------------------------------------------------------------


def test_boxes_of_a_table_replace_those_of_the_data_set(celeba: Dataset, tmp_path: Path) -> None:
    lines = [f"{number:06d}.jpg,{number},2,50,60" for number in range(1, 8)]
    lines.append("000007.jpg,70,100,40,50")  # Only the second box of this image is around the face.
    write_lines(tmp_path / "boxes.csv", ["image,x,y,w,h", *lines])
    data = replace_boxes(celeba, tmp_path / "boxes.csv")
    assert data.fit is not None
    np.testing.assert_array_equal(data.fit.boxes[:, 0], [3, 1, 2])
    np.testing.assert_array_equal(data.test.boxes, [[70, 100, 40, 50]])
    assert data.notes[-1] == f"1 object of the test split has no box in {tmp_path / 'boxes.csv'}"


def test_a_split_without_boxes_keeps_its_own_boxes(tmp_path: Path) -> None:
    data = read_dataset("ls3d", face_miniatures.make_ls3d(tmp_path))
    write_lines(
        tmp_path / "boxes.csv", ["image,x,y,w,h", *(f"{file.name},1,2,3,4" for file in data.train.paths)]
    )
    replaced = replace_boxes(data, tmp_path / "boxes.csv")
    assert (replaced.train.boxes == [1, 2, 3, 4]).all()
    np.testing.assert_array_equal(replaced.test.boxes, data.test.boxes)
    assert "has no boxes for the test split, so this split keeps its own boxes" in replaced.notes[-1]


def test_relative_boxes_of_yolo_become_pixels(aflw: Dataset, tmp_path: Path) -> None:
    (tmp_path / "labels").mkdir()
    for split in aflw.splits.values():
        for file in split.paths:
            (tmp_path / "labels" / f"{file.stem}.txt").write_text("0 0.5 0.5 0.5 1.0\n")
    data = replace_boxes(aflw, tmp_path / "labels")
    assert (data.test.boxes == [37.5, 0, 75, 170]).all()  # Images have 150 x 170 pixels.


def test_boxes_of_videos_are_matched_by_frame_number(tmp_path: Path) -> None:
    data = read_dataset("bbcpose", body_miniatures.make_bbcpose(tmp_path / "data", as_videos=True))
    lines = [
        f"{file},{frame},{frame},2,30,40"
        for split in data.splits.values()
        for file, frame in zip(split.paths, split.frames, strict=True)
    ]
    assert None not in data.test.frames
    write_lines(tmp_path / "boxes.csv", ["image,frame,x,y,w,h", *lines])
    replaced = replace_boxes(data, tmp_path / "boxes.csv")
    assert len(replaced.test) == len(data.test)
    np.testing.assert_array_equal(replaced.test.boxes[:, 0], data.test.frames)
    np.testing.assert_array_equal(replaced.train.boxes[:, 0], data.train.frames)


# --- face finder ------------------------------------------------------------------------------------


class Cascade:
    """A cascade that finds a small and a large face in bright images and none in dark ones."""

    def detectMultiScale(self, gray: Any, step: float, neighbors: int) -> Any:  # noqa: N802
        assert gray.ndim == 2
        return np.array([[1, 2, 10, 10], [30, 40, 100, 90]]) if gray.mean() > 50 else ()


def test_the_largest_face_or_the_median_box_is_used(celeba: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    import cv2

    # The dark image has no face. This image is twice as large as the others, so its median box is doubled.
    cv2.imwrite(str(celeba.root / celeba.test.paths[1]), np.zeros((436, 356, 3), np.uint8))
    monkeypatch.setattr(face_finder, "_load_cascade", Cascade)
    progress: list[tuple[int, int]] = []
    data = use_found_faces(celeba, lambda done, total: progress.append((done, total)))
    assert data.fit is not None
    assert (data.fit.boxes == [30, 40, 100, 90]).all()
    np.testing.assert_allclose(data.test.boxes, [[30, 40, 100, 90], [60, 80, 200, 180]])
    assert progress[-1] == (8, 8)  # Images in two splits are searched once.
    assert "in 1 of 8 images it found no face" in data.notes[-1]
    assert "S3FD" in data.notes[-1]
    (celeba.root / celeba.test.paths[0]).write_bytes(b"not an image")
    assert "in 1 of 7 images it found no face" in use_found_faces(celeba).notes[-1]


def test_opencv_has_a_cascade_or_an_error_is_raised(celeba: Dataset) -> None:
    import cv2

    if hasattr(cv2, "CascadeClassifier"):
        assert not face_finder._load_cascade().empty()
    else:
        with pytest.raises(InputError, match="has no face cascade; install 'opencv-python-headless<5'"):
            use_found_faces(celeba)


def test_data_sets_without_faces_raise(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cub is not a data set of faces"):
        use_found_faces(read_dataset("cub", face_miniatures.make_cub(tmp_path)))
