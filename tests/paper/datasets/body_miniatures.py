"""Write miniatures of data sets of bodies and animals in their official layouts, with their irregularities.

For each data set, a function `make_...` fills an empty folder. Coordinates are as in the official files
(1-based if they come from MATLAB) and follow simple rules that tests can compute.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import scipy.io

PENN_ACTIONS = (
    "baseball_pitch", "baseball_swing", "bowl", "golf_swing", "jumping_jacks", "tennis_forehand",
    "tennis_serve",
)  # fmt: skip
# The first annotation file of the real CAT data set, with its trailing space.
FIRST_CAT = "9 175 160 239 162 199 199 149 121 137 78 166 93 281 101 312 96 296 133 "


def write_image(path: Path, width: int = 96, height: int = 80, seed: int = 0) -> None:
    """Write an image with corners for keypoint detectors."""
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    image = cv2.resize(rng.integers(0, 256, (6, 8, 3), np.uint8), (width, height))
    assert cv2.imwrite(str(path), image)


# --- BBCPose ---------------------------------------------------------------------------------------


def compute_bbc_joints(video: int, frames: Sequence[int]) -> np.ndarray:
    """Return 1-based joints of shape 2 x 7 x F; x grows with the video's number, y with the frame's."""
    head = (48, 16)
    wrist, elbow, shoulder = (20, 60), (16, 45), (10, 30)  # x is the horizontal distance to the head.
    # The right arm is on the left of the image.
    right = [(head[0] - x, y) for x, y in (wrist, elbow, shoulder)]
    left = [(head[0] + x, y) for x, y in (wrist, elbow, shoulder)]
    order = [head, right[0], left[0], right[1], left[1], right[2], left[2]]
    first_frame = np.array(order, float).T[:, :, None] + [[[video * 0.5]], [[0.0]]]
    return first_frame + np.array([[[0.0]], [[1.0]]]) * np.asarray(frames) / 100


def make_bbcpose(root: Path, as_videos: bool = False) -> Path:
    """Annotate 20 videos: ten for training, five for validation, and five for testing.

    Every video has 25 annotated frames. Validation and test videos also have three hand-marked frames. Video
    20 is an exception: it has only one hand-marked frame, so MATLAB drops a dimension. Validation videos have
    no images. The annotations also contain two videos of Extended BBCPose; users must download these videos
    separately.

    Args:
        root: folder to fill.
        as_videos: write each training and test video as one file. Otherwise, write frames as images: three
            annotated frames of each training video, and all hand-marked frames of each test video. The image
            of frame 111 of video 3 is missing.
    """
    rows = []
    for video in range(1, 23):
        train, test = list(range(101, 126)), [7, 9, 12]  # The frames in `test` are marked by hand.
        if video <= 10 or video > 20:
            kind, test = "train", []
        elif video <= 15:
            kind = "val"
        else:
            kind = "test"
        if video == 20:
            test = [7]
        joints = compute_bbc_joints(video, test) if test else np.zeros((0, 0))
        rows.append(
            (
                f"video{video}.avi",
                kind,
                "buehler11" if video <= 20 else "charles14",
                np.array([train], float),
                compute_bbc_joints(video, train),
                np.array([test], float) if test else np.zeros((0, 0)),
                joints[:, :, 0] if len(test) == 1 else joints,
            )
        )
        if video > 20 or kind == "val":
            continue
        if as_videos:
            write_video(root / f"{video}.mp4", 130)
        else:
            for frame in test or (101, 111, 121):
                if (video, frame) != (3, 111):
                    write_image(root / str(video) / f"{frame}.jpg", seed=video)
    names = ("videoName", "type", "source", "train_frames", "train_joints", "test_frames", "test_joints")
    structs = np.empty((1, len(rows)), dtype=[(name, object) for name in names])
    for column, row in enumerate(rows):
        structs[0, column] = row
    (root / "code").mkdir(parents=True)
    scipy.io.savemat(root / "code" / "bbcpose.mat", {"bbcpose": structs}, do_compression=True)
    return root


# --- Human3.6M -------------------------------------------------------------------------------------


def write_video(path: Path, frames: int) -> None:
    """Write a video of a moving texture; each frame shows its frame number, see `read_frame_number`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_encode_video(frames))


def read_frame_number(pixels: np.ndarray) -> int:
    """Return the frame number shown at the top as eight binary digits, white for 1, the lowest first."""
    stripes = pixels[4:12, 6::12].mean(axis=(0, 2)) > 127
    return sum(1 << bit for bit, is_set in enumerate(stripes) if is_set)


@lru_cache
def _encode_video(frames: int) -> bytes:
    texture = cv2.resize(np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8), (96, 80))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video.mp4"
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 25, (96, 80))
        for number in range(frames):
            stripes = np.array([number >> bit & 1 for bit in range(8)], np.uint8) * 255
            frame = np.roll(texture, number // 10, axis=1)
            frame[:16] = np.repeat(stripes, 12)[None, :, None]
            writer.write(frame)
        writer.release()
        return path.read_bytes()


def compute_h36m_pose(seed: int, frames: int) -> np.ndarray:
    """Return 1 x F x 64 numbers: joint j of frame f is at (10 + 2 j + seed, 5 + 2 j + f / 50)."""
    joint = np.arange(32.0)
    x = np.broadcast_to(10 + 2 * joint + seed, (frames, 32))
    y = 5 + 2 * joint + np.arange(frames)[:, None] / 50
    return np.stack([x, y], axis=2).reshape(1, frames, 64)


def make_human36m(root: Path) -> Path:
    """Make videos of 121 frames; the last frame has no joints.

    The reader takes frames 0, 50 and 100 of training videos, and frames 0 and 100 of test videos. S1 and S9
    also have a video of an action that the reader leaves out (WalkingDog, Smoking). In the first video of S1,
    only 60 frames have masks, and the mask of frame 50 is empty. The joints of S11's Directions.54138969 are
    missing, as in the real data set.
    """
    cdfwrite: Any = pytest.importorskip("cdflib.cdfwrite")
    videos = [
        ("S1", "Directions.54138969"), ("S1", "Walking 1.55011271"), ("S1", "WalkingDog.54138969"),
        ("S5", "Discussion 2.54138969"), ("S6", "Posing.58860488"), ("S7", "Waiting 1.60457274"),
        ("S8", "Greeting.54138969"), ("S9", "Walking.54138969"), ("S9", "Smoking.54138969"),
        ("S11", "Directions.54138969"), ("S11", "Greeting 2.60457274"),
    ]  # fmt: skip
    for seed, (subject, name) in enumerate(videos):
        write_video(root / subject / "Videos" / f"{name}.mp4", 121)
        poses = root / subject / "MyPoseFeatures" / "D2_Positions"
        poses.mkdir(parents=True, exist_ok=True)
        if (subject, name) == ("S11", "Directions.54138969"):
            continue
        pose = compute_h36m_pose(seed, 120)
        file = cdfwrite.CDF(poses / f"{name}.cdf")
        variable = {"Variable": "Pose", "Data_Type": 44, "Num_Elements": 1, "Rec_Vary": True}  # 44: CDF_FLOAT
        file.write_var({**variable, "Dim_Sizes": list(pose.shape[1:])}, var_data=pose.astype(np.float32))
        file.close()
    _write_masks(root / "S1" / "MySegmentsMat" / "ground_truth_bb" / "Directions.54138969.mat")
    return root


def _write_masks(path: Path) -> None:
    """Write a cell array of 60 masks as MATLAB 7.3 does: by columns, with references to the cells."""
    h5py: Any = pytest.importorskip("h5py")
    path.parent.mkdir(parents=True)
    with h5py.File(path, "w") as file:
        cells = file.create_dataset("Masks", (60, 1), dtype=h5py.ref_dtype)
        for frame in range(60):
            mask = np.zeros((80, 96), np.uint8)  # height x width, as in MATLAB
            if frame != 50:
                mask[10:60, 20:50] = 1
            cell = file.create_dataset(f"#refs#/cell{frame}", data=mask.T, compression="gzip")
            cell.attrs["MATLAB_class"] = np.bytes_("uint8")
            cells[frame, 0] = cell.ref


# --- Penn Action -----------------------------------------------------------------------------------


def make_penn_label(action: str, frames: int, **changes: Any) -> dict[str, Any]:
    """Return 1-based labels of one video.

    Joint j of frame f is at (20 + 3 j, 10 + 4 j + f). Its box reaches from (15, 5) to (75 + f, 70).
    """
    frame_number, joint = np.arange(frames)[:, None], np.arange(13.0)[None]
    label = {
        "action": action,
        "pose": "front",
        "x": np.repeat(20 + 3 * joint, frames, axis=0),
        "y": 10 + 4 * joint + frame_number,
        "visibility": np.ones((frames, 13), np.uint8),
        "train": 1,
        "bbox": np.concatenate(
            [np.full((frames, 2), (15.0, 5.0)), 75.0 + frame_number, 70.0 + 0 * frame_number], axis=1
        ),
        "dimensions": np.array([[80.0, 96.0, frames]]),
        "nframes": frames,
    }
    return label | changes


def make_pennaction(root: Path) -> Path:
    """Make seven videos of two frames for each action, including one action that the paper does not use.

    The third labeled frame of video 0001 is missing, 0002 has a third frame without labels, 0003 has a box
    only for its first frame, and 0004 has no boxes. In 0005, joint 3 is hidden and joint 12 is outside the
    image, which the official labels express by coordinates of at most 1.
    """
    inner = root / "Penn_Action"
    (inner / "labels").mkdir(parents=True)
    for number in range(1, 7 * len(PENN_ACTIONS) + 1):
        action = PENN_ACTIONS[(number - 1) // 7]
        label = make_penn_label(action, 3 if number == 1 else 2)
        if number == 3:
            label["bbox"] = label["bbox"][:1]
        if number == 4:
            label["bbox"] = np.zeros((0, 0))
        if number == 5:
            label["visibility"][:, [3, 12]] = 0
            label["x"][:, 12] = label["y"][:, 12] = (1.0, 0.75)
        scipy.io.savemat(inner / "labels" / f"{number:04d}.mat", label, do_compression=True)
        for frame in range(1, 4 if number == 2 else 3):
            write_image(inner / "frames" / f"{number:04d}" / f"{frame:06d}.jpg", seed=number)
    return root


# --- CAT -------------------------------------------------------------------------------------------


def make_cats(root: Path, lists: bool = False, archives: bool = False) -> Path:
    """Make sixteen images of cats, three of which cannot be used.

    00000003_015 has no points. According to the data set's corrigendum, the points of 00000003_019 belong to
    another image. The two eyes of 00001200_000 are at the same point.

    Args:
        root: folder to fill.
        lists: add the split of Zhang et al., which lists 00000003_019 and an image that does not exist.
        archives: place the images in the folders of the two official archives.
    """
    names = [("CAT_00", f"0000000{1 + number // 3}_00{number}") for number in range(9)]
    names += [("CAT_00", "00000003_015"), ("CAT_00", "00000003_019")]
    names += [("CAT_04", f"00001000_00{number}") for number in range(3)]
    names += [("CAT_05", "00001200_000"), ("CAT_06", "00001400_000")]
    for number, (folder, name) in enumerate(names):
        archive = "CAT_DATASET_01" if folder < "CAT_05" else "CAT_DATASET_02"
        image = (root / archive if archives else root) / folder / f"{name}.jpg"
        write_image(image, 360, 240, seed=number)
        points = [int(word) for word in FIRST_CAT.split()[1:]]
        points = [value + number if index % 2 == 0 else value for index, value in enumerate(points)]
        if name == "00001200_000":
            points[2:4] = points[:2]
        if name != "00000003_015":
            image.with_name(f"{image.name}.cat").write_text(f"9 {' '.join(map(str, points))} ")
    ((root / "CAT_DATASET_01" if archives else root) / "CAT_00" / "Thumbs.db").write_bytes(b"\0")
    if lists:
        (root / "cat_data").mkdir()
        train = [f"CAT_00/{name}.jpg" for folder, name in names[:5]] + ["CAT_02/00000700_000.jpg"]
        test = ["CAT_06/00001400_000.jpg", "CAT_00/00000003_019.jpg"]
        (root / "cat_data" / "cat_train_images.txt").write_text("\n".join(train) + "\n")
        (root / "cat_data" / "cat_test_images.txt").write_text("\n".join(test) + "\n")
    return root


# --- Leeds Sports Pose -----------------------------------------------------------------------------


def compute_lsp_joints(count: int) -> np.ndarray:
    """Return 14 x 2 x N numbers. Joint j of image n is at (10 + 4 j, 5 + 3 j + n / 1000); n starts at 1."""
    joint = np.arange(14.0)[:, None]
    number = np.arange(1, count + 1)
    x, y = np.broadcast_to(10 + 4 * joint, (14, count)), 5 + 3 * joint + number / 1000
    return np.stack([x, y], axis=1)


def make_lsp(root: Path) -> Path:
    """Annotate 2,000 images, but make only five of them; joint 5 of image 2 is hidden."""
    hidden_joints = np.zeros((14, 1, 2000))
    hidden_joints[5, 0, 1] = 1
    joints = np.concatenate([compute_lsp_joints(2000), hidden_joints], axis=1).transpose(1, 0, 2)
    root.mkdir(exist_ok=True)
    scipy.io.savemat(root / "joints.mat", {"joints": joints}, do_compression=True)
    for number in (1, 2, 1000, 1001, 2000):
        write_image(root / "images" / f"im{number:04d}.jpg", seed=number)
    return root


def make_lspet(root: Path) -> Path:
    """Annotate 10,000 images, but make only five.

    Joint 5 of image 2 and all joints of image 3 are marked as not visible, which in this data set means that
    their coordinates are meaningless.
    """
    visible = np.ones((14, 1, 10000))
    visible[5, 0, 1] = visible[:, 0, 2] = 0
    joints = np.concatenate([compute_lsp_joints(10000), visible], axis=1)
    joints[5, :2, 1] = -7.0
    inner = root / "lspet_dataset"
    inner.mkdir(parents=True)
    scipy.io.savemat(inner / "joints.mat", {"joints": joints}, do_compression=True)
    for number in (1, 2, 3, 9000, 9001):
        write_image(inner / "images" / f"im{number:05d}.jpg", seed=number)
    return root


# --- COCO ------------------------------------------------------------------------------------------

COCO_NAMES = (
    "nose", "left_eye", "right_eye", "left_ear", "right_ear", "left_shoulder", "right_shoulder",
    "left_elbow", "right_elbow", "left_wrist", "right_wrist", "left_hip", "right_hip", "left_knee",
    "right_knee", "left_ankle", "right_ankle",
)  # fmt: skip


def make_coco(root: Path) -> Path:
    """Make two images of two people for each split.

    Each split also annotates a person with 8 points, a person in a missing image, and a crowd.
    """
    for kind, first in (("train", 9), ("val", 139)):
        images = [{"id": first + n, "file_name": f"{first + n:012d}.jpg"} for n in range(3)]
        for image in images[:2]:
            write_image(root / f"{kind}2017" / str(image["file_name"]), seed=first)
        annotations = [
            make_coco_person(first * 10 + n, first + n // 2, shift=20.0 * (n % 2), known=17 - n)
            for n in range(4)
        ]
        annotations.append(make_coco_person(first * 10 + 4, first, known=8))
        annotations.append(make_coco_person(first * 10 + 5, first + 2))
        crowd = make_coco_person(first * 10 + 6, first, known=0) | {"iscrowd": 1}
        crowd["segmentation"] = {"counts": [10, 20], "size": [80, 96]}
        categories = [{"id": 1, "name": "person", "keypoints": list(COCO_NAMES), "skeleton": [[1, 2]]}]
        content = {
            "info": {},
            "images": images,
            "annotations": [*annotations, crowd],
            "categories": categories,
        }
        (root / "annotations").mkdir(parents=True, exist_ok=True)
        (root / "annotations" / f"person_keypoints_{kind}2017.json").write_text(json.dumps(content))
    return root


def make_coco_person(number: int, image: int, shift: float = 0.0, known: int = 17) -> dict[str, Any]:
    """Return an annotation with `known` points.

    Point p is at (10 + 2 p + shift, 5 + 3 p). Point 1 is hidden.
    """
    points = [
        (10 + 2 * p + shift, 5 + 3 * p, 1 if p == 1 else 2) if p < known else (0, 0, 0) for p in range(17)
    ]
    return {
        "id": number,
        "image_id": image,
        "category_id": 1,
        "iscrowd": 0,
        "num_keypoints": known,
        "bbox": [8.0 + shift, 3.0, 40.5, 60.25],
        "area": 2000.0,
        "keypoints": [value for point in points for value in point],
    }
