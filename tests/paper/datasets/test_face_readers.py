"""Test the readers of faces and birds, on miniatures of the official layouts with known values."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from scipy.io import loadmat, savemat
from scipy.spatial.transform import Rotation
from scipy.stats import spearmanr

from selfmark.errors import InputError
from selfmark.paper.datasets.dataset_registry import read_dataset
from selfmark.paper.datasets.face_points import FIVE, SIXTY_EIGHT, SIXTY_EIGHT_MIRROR
from selfmark.paper.datasets.head_yaw import FACE, classify_yaw, estimate_yaw
from tests.paper.datasets import face_miniatures
from tests.paper.datasets.face_miniatures import (
    CUB_SPECIES,
    make_five_points,
    make_sixty_eight_points,
    write_t7,
)

# Folder of files that are too large for the repository. Tests of a file are skipped if it is missing.
SHARED = Path(__file__).parents[4] / "shared" / "data"


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_bytes().decode()
    assert old in text
    path.write_bytes(text.replace(old, new, 1).encode())


# --- CelebA -----------------------------------------------------------------------------------------


@pytest.fixture
def celeba(tmp_path: Path) -> Path:
    return face_miniatures.make_celeba(tmp_path / "celeba")


def test_celeba_training_excludes_the_test_images_of_mafl(celeba: Path) -> None:
    data = read_dataset("celeba", celeba)
    assert data.fit is not None
    assert [file.name for file in data.train.paths] == [f"{number:06d}.jpg" for number in range(1, 7)]
    assert [file.name for file in data.test.paths] == ["000007.jpg", "000008.jpg"]
    assert [file.name for file in data.fit.paths] == ["000003.jpg", "000001.jpg", "000002.jpg"]
    np.testing.assert_array_equal(
        data.fit.xy, [make_five_points(3), make_five_points(1), make_five_points(2)]
    )
    np.testing.assert_array_equal(data.test.xy, [make_five_points(7), make_five_points(8)])
    assert data.names == FIVE
    assert data.normalizer == "inter_ocular"
    assert data.train.fields["partition"] == ("train", "val", "test", "test", "test", "test")
    assert all((celeba / file).is_file() for file in data.train.paths)


def test_aligned_images_of_celeba_are_used_whole(celeba: Path) -> None:
    data = read_dataset("celeba", celeba)
    assert np.isnan(data.train.boxes).all()
    assert "S3FD" in data.notes[0]


def test_celeba_in_the_wild_uses_the_official_boxes(tmp_path: Path) -> None:
    root = face_miniatures.make_celeba(tmp_path, folder="img_celeba")
    data = read_dataset("celeba", root)
    assert data.train.paths[1] == Path("Img/img_celeba/000002.jpg")
    np.testing.assert_array_equal(data.train.boxes[1], [42, 62, 90, 120])
    np.testing.assert_array_equal(data.test.boxes, [[47, 67, 90, 120], [48, 68, 90, 120]])
    assert np.isnan(data.train.boxes[0]).all()  # The list has 0 0 0 0 for this image.
    assert any(note.startswith("1 image has no box") for note in data.notes)


def test_celeba_prefers_the_images_of_the_authors_program(celeba: Path) -> None:
    (celeba / "Img/img_align_celeba").rename(celeba / "Img/img_align_celeba_hq")
    (celeba / "Img/img_celeba").mkdir()
    assert read_dataset("celeba", celeba).train.paths[0] == Path("Img/img_align_celeba_hq/000001.jpg")


def test_celeba_files_may_lie_directly_in_the_root(celeba: Path) -> None:
    for folder in ("Img", "Anno", "Eval"):
        for path in list((celeba / folder).iterdir()):
            path.rename(celeba / path.name)
    for part in ("training", "testing"):
        (celeba / "MAFL" / f"{part}.txt").rename(celeba / f"mafl_{part}.txt")
    data = read_dataset("celeba", celeba)
    np.testing.assert_array_equal(data.test.xy, [make_five_points(7), make_five_points(8)])


def test_missing_images_are_left_out_with_a_note(celeba: Path) -> None:
    (celeba / "Img/img_align_celeba/000004.jpg").unlink()
    data = read_dataset("celeba", celeba)
    assert [file.name for file in data.train.paths] == [f"{number:06d}.jpg" for number in (1, 2, 3, 5, 6)]
    np.testing.assert_array_equal(data.train.xy[3], make_five_points(5))
    note = "1 object of the train split was left out because of missing images; the first missing image is "
    assert note + "Img/img_align_celeba/000004.jpg" in data.notes


def test_a_split_without_images_raises(celeba: Path) -> None:
    for path in (celeba / "Img/img_align_celeba").iterdir():
        path.unlink()
    with pytest.raises(
        InputError,
        match=r"the images of all 6 objects of the train split of celeba are missing; .*000001\.jpg",
    ):
        read_dataset("celeba", celeba)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "Anno/list_landmarks_align_celeba.txt",
            "000005.jpg   74",
            "000005.jpg x7",
            r"celeba\.txt, line 7: 'x7' is not a number",
        ),
        (
            "Anno/list_landmarks_align_celeba.txt",
            "000005.jpg   74",
            "000005.jpg",
            r"celeba\.txt, line 7: expected 11 words, found 10",
        ),
        (
            "Anno/list_landmarks_align_celeba.txt",
            "8\r\n",
            "9\r\n",
            r"has 8 rows, but its first line says 9",
        ),
        ("Anno/list_landmarks_align_celeba.txt", "8\r\n", "", r"line 1: expected the number of rows"),
        (
            "Anno/list_landmarks_align_celeba.txt",
            "000002",
            "000001",
            r"line 3: the image 000001\.jpg is listed twice",
        ),
        (
            "MAFL/testing.txt",
            "000008.jpg",
            "999999.jpg",
            r"testing\.txt, line 2: the image '999999\.jpg' is not",
        ),
        (
            "Eval/list_eval_partition.txt",
            "000002.jpg 1",
            "000002.jpg 7",
            r"line 2: the partition must be 0, 1 or 2",
        ),
    ],
)
def test_the_message_names_the_damaged_line(
    celeba: Path, file: str, old: str, new: str, message: str
) -> None:
    replace_text(celeba / file, old, new)
    with pytest.raises(InputError, match=message):
        read_dataset("celeba", celeba)


@pytest.mark.parametrize(
    "file", ["Img", "Anno/list_landmarks_align_celeba.txt", "MAFL/training.txt", "MAFL/testing.txt"]
)
def test_the_message_names_the_missing_file(celeba: Path, file: str) -> None:
    (celeba / file).rename(celeba / "elsewhere")
    with pytest.raises(InputError, match=rf"contains no '{file}"):
        read_dataset("celeba", celeba)


# --- AFLW -------------------------------------------------------------------------------------------


def test_aflw_points_have_y_before_x(tmp_path: Path) -> None:
    root = face_miniatures.make_aflw(tmp_path / "aflw_release-2")
    data = read_dataset("aflw", tmp_path)  # This is the parent of the archive's folder.
    assert data.root == root
    assert (len(data.train), len(data.test)) == (5, 3)
    np.testing.assert_allclose(data.test.xy, [make_five_points(number) * 0.8 for number in range(3)])
    assert data.test.paths[1] == Path("output/image00001_50101.jpg")
    assert np.isnan(data.train.boxes).all()  # There are no boxes: whole images are used.
    assert data.fit is None


def test_aflw_messages_name_the_problem_of_the_matlab_file(tmp_path: Path) -> None:
    root = face_miniatures.make_aflw(tmp_path)
    labels = loadmat(root / "aflw_test_keypoints.mat")
    savemat(root / "aflw_test_keypoints.mat", {"gt": labels["gt"][:2]})
    with pytest.raises(
        InputError, match=r"aflw_test_keypoints\.mat: 'gt' must be 3 x 5 x 2 numbers, not 2 x 5 x 2"
    ):
        read_dataset("aflw", root)
    savemat(root / "aflw_test_keypoints.mat", {"points": labels["gt"]})
    with pytest.raises(InputError, match="has no variable 'gt'"):
        read_dataset("aflw", root)
    savemat(root / "aflw_test_keypoints.mat", {"gt": {"inner": labels["gt"]}})  # `gt` is a struct here.
    with pytest.raises(InputError, match=r"'gt' must be 3 x 5 x 2 numbers"):
        read_dataset("aflw", root)
    (root / "aflw_test_keypoints.mat").write_bytes(b"no MATLAB file" * 20)
    with pytest.raises(InputError, match="is not a readable MATLAB file"):
        read_dataset("aflw", root)


# --- LS3D -------------------------------------------------------------------------------------------


@pytest.fixture
def ls3d(tmp_path: Path) -> Path:
    return face_miniatures.make_ls3d(tmp_path)


def test_ls3d_reads_pts_3d_and_converts_to_0_based(ls3d: Path) -> None:
    data = read_dataset("ls3d", ls3d)
    assert len(data.train) == 8  # There are four folders; mirrored copies do not count.
    assert data.train.paths[3] == Path("300W_LP/HELEN/HELEN_134213_1_0.jpg")
    np.testing.assert_allclose(data.train.xy, [make_sixty_eight_points(number) for number in (0, 1) * 4])
    np.testing.assert_allclose(
        data.test.xy, [make_sixty_eight_points(number) for number in range(1, 7)], atol=1e-5
    )
    assert data.names == SIXTY_EIGHT
    assert data.normalizer == "box"


def _rotate_average_face(yaw: float, pitch: float = 0.0, roll: float = 0.0) -> np.ndarray:
    """Return 68 points of a head that is turned by yaw, then pitch, then roll, in degrees, seen from afar."""
    shape = np.zeros((68, 3))
    shape[list(FACE)] = list(FACE.values())
    rotation = Rotation.from_euler("yxz", [yaw, pitch, roll], degrees=True)
    return (1.7 * rotation.apply(shape) + 200)[:, :2]


@pytest.mark.parametrize("yaw", [-110.0, -90.0, -61.0, -29.0, 0.0, 12.5, 45.0, 75.0, 90.0])
@pytest.mark.parametrize(("pitch", "roll"), [(0.0, 0.0), (15.0, 0.0), (0.0, -30.0), (-20.0, 40.0)])
def test_yaw_of_a_rotated_face_is_recovered(yaw: float, pitch: float, roll: float) -> None:
    points = _rotate_average_face(yaw, pitch, roll)
    np.testing.assert_allclose(estimate_yaw(points[None]), [yaw], atol=1e-6)
    # Neither position nor size matters, and the mirror image is turned the other way.
    np.testing.assert_allclose(estimate_yaw(3 * points[None] - 50), [yaw], atol=1e-6)
    mirrored = points[list(SIXTY_EIGHT_MIRROR)] * [-1, 1]
    np.testing.assert_allclose(estimate_yaw(mirrored[None]), [-yaw], atol=1e-6)


def test_yaw_of_other_faces_is_within_a_few_degrees() -> None:
    """Test noisy points, with noise of 2 % of the face's width, and a face whose depth differs by a fifth."""
    rng = np.random.default_rng(0)
    for yaw in (0.0, 30.0, 60.0, 80.0):
        points = np.stack([_rotate_average_face(yaw) for _ in range(200)])
        face_width = 1.7 * 90  # FACE is about 90 pixels wide, and the rotated face is scaled by 1.7.
        noisy = estimate_yaw(points + rng.normal(0, 0.02 * face_width, points.shape))
        assert abs(np.median(noisy) - yaw) < 2
        assert np.std(noisy) < 5
        for depth in (0.8, 1.2):
            shape = np.zeros((68, 3))
            shape[list(FACE)] = np.array(list(FACE.values())) * [1, 1, depth]
            projected = Rotation.from_euler("y", yaw, degrees=True).apply(shape)[:, :2]
            assert abs(estimate_yaw(projected[None])[0] - yaw) < 7


@pytest.mark.skipif(not (SHARED / "faces-yt68.zip").is_file(), reason="faces-yt68 is not here")
def test_yaw_agrees_with_faces_yt68() -> None:
    """The ranges of yaw in faces-yt68 are estimates too; their edges are accurate to about 10 degrees."""
    with zipfile.ZipFile(SHARED / "faces-yt68.zip") as content:
        annotations = json.loads(content.read("test.json"))["annotations"]
    points = np.array([annotation["keypoints"] for annotation in annotations]).reshape(-1, 68, 3)
    yaw = estimate_yaw(points[..., :2])
    expected = [annotation["yaw_bucket"] for annotation in annotations]
    is_same = [ours == theirs for ours, theirs in zip(classify_yaw(yaw), expected, strict=True)]
    assert np.mean(is_same) == pytest.approx(0.935, abs=0.0005)  # docs/datasets.md has this number.
    ratio = np.array([annotation["yaw_ratio"] for annotation in annotations])
    assert spearmanr(yaw, ratio).statistic == pytest.approx(0.98, abs=0.005)
    differing = np.abs(yaw[~np.array(is_same)])
    distance_to_edge = np.minimum(np.abs(differing - 30), np.abs(differing - 60))
    assert distance_to_edge.max() < 8


def test_ls3d_yaw_is_estimated_from_the_points(ls3d: Path) -> None:
    """The number of an image says nothing about its yaw."""
    folder = ls3d / "LS3D-W-balanced-20-03-2017/new_dataset"
    for number, yaw in {1: -75, 2: 0, 3: 40, 4: 10, 5: 89, 6: -35, 11: 5, 12: 55}.items():
        face_miniatures.write_face(folder / f"{number}.jpg", (450, 450), make_five_points(0))
        write_t7(folder / f"{number}.t7", face_miniatures.make_rotated_face(yaw) + 1)
    data = read_dataset("ls3d", ls3d)
    # Files are sorted by their numbers; in alphabetical order, 11 and 12 would come before 2.
    assert [int(file.stem) for file in data.test.paths] == [1, 2, 3, 4, 5, 6, 11, 12]
    expected = [-75, 0, 40, 10, 89, -35, 5, 55]
    # The miniature's head is not quite the average head, so the estimate differs a little.
    np.testing.assert_allclose(data.test.fields["yaw"], expected, atol=2)
    assert data.test.fields["yaw_bucket"] == (
        "60-90", "0-30", "30-60", "0-30", "60-90", "30-60", "0-30", "30-60",
    )  # fmt: skip
    counts = "3 with 0-30, 3 with 30-60, 2 with 60-90 degrees"
    assert any(counts in note for note in data.notes)


def test_ls3d_boxes_include_the_forehead(ls3d: Path) -> None:
    # The points span x 100 to 167 and y 66 to 200. Boxes are measured from the edge of the first pixel, half
    # a pixel before its center.
    height = 200 - 66
    expected = [100.5, 66.5 - height / 3, 67, height * 4 / 3]
    np.testing.assert_allclose(read_dataset("ls3d", ls3d).train.boxes[0], expected)


@pytest.mark.parametrize("rows", [2, 3])
def test_ls3d_points_in_other_formats_are_read(ls3d: Path, rows: int) -> None:
    """Read 2 x 68 or 3 x 68 MATLAB arrays, 68 x 3 NumPy arrays, and `pt2d` if 'landmarks' has no file."""
    folder = ls3d / "LS3D-W-balanced-20-03-2017/new_dataset"
    (folder / "1.t7").unlink()
    points = np.concatenate([make_sixty_eight_points(1) + 1, np.full((68, 1), 77.0)], axis=1)[:, :rows]
    savemat(folder / "1.mat", {"pt3d_68": points.T})
    (folder / "2.t7").unlink()
    np.save(folder / "2.npy", np.concatenate([make_sixty_eight_points(2) + 1, np.zeros((68, 1))], axis=1))
    (ls3d / "300W_LP/landmarks/AFW/AFW_134212_1_0_pts.mat").unlink()
    data = read_dataset("ls3d", ls3d)
    np.testing.assert_allclose(data.test.xy[:2], [make_sixty_eight_points(1), make_sixty_eight_points(2)])
    # In the miniature, the points in `pt2d` are 50 pixels away from those in 'landmarks'.
    np.testing.assert_allclose(data.train.xy[0], make_sixty_eight_points(50))
    assert any("1 image of 300W-LP has no points in 'landmarks'" in note for note in data.notes)


def test_ls3d_images_without_points_are_left_out_with_a_note(ls3d: Path) -> None:
    (ls3d / "LS3D-W-balanced-20-03-2017/new_dataset/3.t7").unlink()
    data = read_dataset("ls3d", ls3d)
    assert [int(file.stem) for file in data.test.paths] == [1, 2, 4, 5, 6]
    assert len(data.test.fields["yaw_bucket"]) == 5
    assert "1 image of new_dataset has no points and was left out" in data.notes


def test_ls3d_messages_name_the_missing_images_and_points(ls3d: Path) -> None:
    folder = ls3d / "LS3D-W-balanced-20-03-2017/new_dataset"
    for path in folder.glob("*.t7"):
        path.unlink()
    with pytest.raises(
        InputError, match=r"none of the 6 images has a file of points; .*1\.t7 or .*1\.mat or"
    ):
        read_dataset("ls3d", ls3d)
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(InputError, match=r"new_dataset contains no images such as 1\.jpg"):
        read_dataset("ls3d", ls3d)
    for path in (ls3d / "300W_LP").rglob("*.jpg"):
        path.unlink()
    with pytest.raises(InputError, match=r"300W_LP contains no images such as AFW/AFW_134212_1_0\.jpg"):
        read_dataset("ls3d", ls3d)


def test_ls3d_messages_name_wrong_points_and_missing_folders(ls3d: Path) -> None:
    folder = ls3d / "LS3D-W-balanced-20-03-2017/new_dataset"
    write_t7(folder / "3.t7", np.zeros((66, 2)))
    with pytest.raises(InputError, match=r"3\.t7: expected 68 points, found 66 x 2 numbers"):
        read_dataset("ls3d", ls3d)
    (folder / "1.jpg").rename(folder / "first.jpg")
    with pytest.raises(InputError, match=r"first\.jpg: images of LS3D-W Balanced must be named by number"):
        read_dataset("ls3d", ls3d)
    (ls3d / "300W_LP/IBUG").rename(ls3d / "IBUG")
    with pytest.raises(InputError, match="contains no 'IBUG'"):
        read_dataset("ls3d", ls3d)
    (ls3d / "300W_LP").rename(ls3d / "300WLP")
    with pytest.raises(InputError, match="contains no '300W_LP' or '300W-LP'"):
        read_dataset("ls3d", ls3d)


# --- MTFL -------------------------------------------------------------------------------------------


def test_mtfl_lines_have_five_x_before_five_y_and_are_1_based(tmp_path: Path) -> None:
    data = read_dataset("mtfl", face_miniatures.make_mtfl(tmp_path))
    assert data.train.paths[1] == Path("net_7876/_40_1154_0.jpg")
    np.testing.assert_array_equal(
        data.train.xy[1], [[90, 148], [195, 140], [173, 205], [114, 261], [197, 255]]
    )
    np.testing.assert_allclose(data.test.xy[0, 4], [92.196007, 102.940109])
    assert data.train.fields["pose"] == (3, 4, 5)
    assert data.test.fields == {"gender": (1, 2), "smile": (1, 1), "glasses": (2, 2), "pose": (3, 1)}
    # Points span x 90 to 197 and y 140 to 261: the longer side is 121, the center is (143.5, 200.5).
    np.testing.assert_allclose(data.train.boxes[1], [144 - 1.2 * 121, 201 - 1.2 * 121, 2.4 * 121, 2.4 * 121])
    assert np.isnan(data.test.boxes).all()


def test_mtfl_messages_name_the_damaged_line(tmp_path: Path) -> None:
    root = face_miniatures.make_mtfl(tmp_path)
    replace_text(root / "testing.txt", "1 1 2 3", "1 1 2 6")
    with pytest.raises(InputError, match=r"testing\.txt, line 1: the pose must be 1 to 5, not 6"):
        read_dataset("mtfl", root)
    replace_text(root / "testing.txt", " 1 1 2 6", "")
    with pytest.raises(InputError, match=r"testing\.txt, line 1: expected 15 words, found 11"):
        read_dataset("mtfl", root)


def test_mtfl_lists_made_from_crops_have_the_known_poses(tmp_path: Path) -> None:
    """Read the labels of resampled crops of MTFL, written as official lists."""
    archive = SHARED / "faces-mtfl-aflw.zip"
    if not archive.exists():
        pytest.skip("the crops of MTFL are not available")
    with zipfile.ZipFile(archive) as content:
        root = next(name for name in content.namelist() if name.endswith("test.json")).removesuffix(
            "test.json"
        )
        for part, folder in (("training", "train"), ("testing", "test")):
            labels = json.loads(content.read(f"{root}{folder}.json"))
            names = {image["id"]: image["file_name"] for image in labels["images"]}
            lines = []
            for annotation in labels["annotations"]:
                xy = np.array(annotation["keypoints"]).reshape(5, 3)[:, :2]
                numbers = " ".join(f"{value:.6f}" for value in xy.T.ravel())
                name = names[annotation["image_id"]].replace("/", "\\")
                lines.append(f" {name} {numbers} 1 1 2 {annotation['pose']}")
            face_miniatures.write_lines(tmp_path / f"{part}.txt", lines)
            for name in names.values():
                (tmp_path / name).parent.mkdir(exist_ok=True)
                (tmp_path / name).touch()
    data = read_dataset("mtfl", tmp_path)
    assert (len(data.train), len(data.test)) == (10_000, 2_995)
    assert Counter(data.test.fields["pose"]) == {1: 193, 2: 450, 3: 1825, 4: 401, 5: 126}
    assert Counter(data.train.fields["pose"]) == {1: 136, 2: 1113, 3: 7445, 4: 1111, 5: 195}
    # All crops in the archive are 144 pixels wide and framed like the test images. Our boxes, with a margin
    # of 0.1 on each side, should have the same size as these crops.
    side = data.train.boxes[:, 2] * 1.2
    assert np.median(side) == pytest.approx(144, rel=0.03)


def test_mtfl_points_are_1_based_because_they_are_right_of_the_pupils() -> None:
    """Test that the dark pupil is left of the annotated point in the average left eye and right eye."""
    archive = SHARED / "faces-mtfl-aflw.zip"
    if not archive.exists():
        pytest.skip("the crops of MTFL are not available")
    patches: tuple[list[Any], list[Any]] = ([], [])
    with zipfile.ZipFile(archive) as content:
        root = next(name for name in content.namelist() if name.endswith("test.json")).removesuffix(
            "test.json"
        )
        labels = json.loads(content.read(f"{root}test.json"))
        for image, annotation in list(zip(labels["images"], labels["annotations"], strict=True))[:600]:
            if annotation["pose"] != 3:
                continue
            encoded = np.frombuffer(content.read(f"{root}images/{image['file_name']}"), np.uint8)
            gray = cv2.imdecode(encoded, cv2.IMREAD_GRAYSCALE).astype(np.float32)
            # The labels were only multiplied by 144 / 150; shift them to pixel centers of the resized crop.
            xy = np.array(annotation["keypoints"], np.float64).reshape(5, 3)[:2, :2]
            xy = (xy * 150 / 144 + 0.5) * 144 / 150 - 0.5
            for eye in (0, 1):
                patch = cv2.getRectSubPix(gray, (13, 13), tuple(xy[eye].tolist()))
                patches[eye].append((patch - patch.mean()) / (patch.std() + 1))
    for eye in (0, 1):
        assert len(patches[eye]) > 300
        mean = np.mean(patches[eye], axis=0)
        darkness = (mean.max() - mean) ** 4  # The power gives most weight to the darkest pixels.
        column = (darkness * np.arange(-6, 7)).sum() / darkness.sum()
        assert column < -0.5


# --- CUB --------------------------------------------------------------------------------------------


def test_cub_excludes_seabirds_and_birds_without_visible_parts(tmp_path: Path) -> None:
    root = face_miniatures.make_cub(tmp_path / "CUB_200_2011")
    data = read_dataset("cub", tmp_path)
    assert data.root == root
    # Images 3 and 5 are for training, because odd numbers are. No part of image 6 is visible, so only image 4
    # is for testing.
    assert data.train.fields["species"] == CUB_SPECIES[1:]
    assert data.test.fields["species"] == CUB_SPECIES[1:2]
    np.testing.assert_array_equal(data.train.boxes[1], [10, 7, 120, 100])
    np.testing.assert_array_equal(data.train.xy[0, :3], [[31, 61], [32, 62], [np.nan, np.nan]])
    assert [data.names[partner] for partner in data.mirror][6:9] == ["right_eye", "right_leg", "right_wing"]
    assert data.notes == ("1 image without any visible part was left out",)


def test_cub_lists_made_from_crops_are_read_completely(tmp_path: Path) -> None:
    """Read the labels of cropped birds, written as official lists."""
    archive = SHARED / "birds-cub.zip"
    if not archive.exists():
        pytest.skip("the crops of CUB are not available")
    names, split, boxes, part_lines, expected = [], [], [], [], {}
    with zipfile.ZipFile(archive) as content:
        for split_name, training in (("train", 1), ("test", 0)):
            file = next(name for name in content.namelist() if Path(name).name == f"{split_name}.json")
            labels = json.loads(content.read(file))
            points = np.array([entry["keypoints"] for entry in labels["annotations"]], float).reshape(
                -1, 15, 3
            )
            expected[split_name] = np.where(points[..., 2:] > 0, points[..., :2], np.nan)
            for image, annotation, triples in zip(
                labels["images"], labels["annotations"], points, strict=True
            ):
                number, species = image["cub_id"], f"{image['class_id']:03d}.{image['class_name']}"
                names.append(f"{number} {species}/{number}.jpg")
                split.append(f"{number} {training}")
                boxes.append(f"{number} " + " ".join(map(str, annotation["bbox"])))
                part_lines += [
                    f"{number} {i} {x} {y} {int(v > 0)}" for i, (x, y, v) in enumerate(triples.tolist(), 1)
                ]
                (tmp_path / "images" / species).mkdir(parents=True, exist_ok=True)
                (tmp_path / "images" / species / f"{number}.jpg").touch()
    for name, lines in (("images", names), ("train_test_split", split), ("bounding_boxes", boxes)):
        face_miniatures.write_lines(tmp_path / f"{name}.txt", lines)
    face_miniatures.write_lines(tmp_path / "parts" / "part_locs.txt", part_lines)
    data = read_dataset("cub", tmp_path)
    assert (len(data.train), len(data.test)) == (4_765, 4_660)
    np.testing.assert_array_equal(data.train.xy, expected["train"])
    np.testing.assert_array_equal(data.test.xy, expected["test"])


def test_cub_messages_name_the_damaged_line(tmp_path: Path) -> None:
    root = face_miniatures.make_cub(tmp_path)
    replace_text(root / "parts/part_locs.txt", "2 1 21.0", "2 16 21.0")
    with pytest.raises(InputError, match=r"part_locs\.txt, line 16: unknown image 2 or unknown part 16"):
        read_dataset("cub", root)
    replace_text(root / "parts/part_locs.txt", "2 16 21.0", "2 1 twenty")
    with pytest.raises(InputError, match=r"part_locs\.txt, line 16: 'twenty' is not a number"):
        read_dataset("cub", root)


# --- all readers ------------------------------------------------------------------------------------


def test_the_mirror_partners_of_68_points_agree_with_another_data_set() -> None:
    """Compare with the labels of another data set, which were checked visually."""
    archive = SHARED / "faces-yt68.zip"
    if not archive.exists():
        pytest.skip("the faces with 68 points are not available")
    with zipfile.ZipFile(archive) as content:
        name = next(name for name in content.namelist() if name.endswith("test.json"))
        category = json.loads(content.read(name))["categories"][0]
    assert tuple(category["keypoints"]) == SIXTY_EIGHT
    assert tuple(category["flip_idx"]) == SIXTY_EIGHT_MIRROR


def test_unknown_names_and_folders_raise(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no data set 'faces'\. The data sets are celeba, aflw"):
        read_dataset("faces", tmp_path)
    with pytest.raises(InputError, match="is not a folder; give the folder with the files of AFLW"):
        read_dataset("aflw", tmp_path / "nowhere")
