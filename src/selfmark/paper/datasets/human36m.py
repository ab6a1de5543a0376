"""Read Human3.6M: actors filmed by four cameras, with joints from motion capture.

Each subject has a folder, e.g. S1. A video is `Videos/Directions 1.54138969.mp4`. The joints of its frames
are in `MyPoseFeatures/D2_Positions/Directions 1.54138969.cdf`. Masks, from which the box of the person in
each frame is computed, are in `MySegmentsMat/ground_truth_bb/Directions 1.54138969.mat` (MATLAB version 7.3,
which is HDF5).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from selfmark.annotations import AnnotatedObjects, build_annotated_objects
from selfmark.errors import InputError, require_package
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets.body_annotations import (
    JOINTS,
    concatenate_objects,
    fill_missing_boxes,
    pair_points_by_side,
)
from selfmark.paper.datasets.dataset import Dataset, find_path, list_files
from selfmark.paper.datasets.numpy_files import MAX_COMPRESSION
from selfmark.points import FloatArray

TITLE = "Human3.6M"
INSTALL = "'selfmark[datasets]'"
# The seven subjects with published joints. S11 is for testing, as in the authors' earlier program.
TRAIN_SUBJECTS, TEST_SUBJECTS = ("S1", "S5", "S6", "S7", "S8", "S9"), ("S11",)
TRAIN_STEP, TEST_STEP = 50, 100  # every n-th frame is used
# Six activities. The pattern excludes walking in pairs and walking a dog, whose names begin similarly.
VIDEO_NAME = re.compile(r"(Directions|Discussion|Posing|Waiting|Greeting|Walking)(?: \d)?\.(\d+)\.mp4")
# All joints, in the order in which the files store them. Some coincide, for example wrists and thumbs.
ALL_JOINTS = (
    "hips", "right_hip", "right_knee", "right_ankle", "right_toe", "right_toe_end", "left_hip", "left_knee",
    "left_ankle", "left_toe", "left_toe_end", "spine", "spine_middle", "neck", "nose", "head", "left_collar",
    "left_shoulder", "left_elbow", "left_wrist", "left_thumb", "left_thumb_end", "left_hand", "left_hand_end",
    "right_collar", "right_shoulder", "right_elbow", "right_wrist", "right_thumb", "right_thumb_end",
    "right_hand", "right_hand_end",
)  # fmt: skip
MARGIN = 0.1  # margin of boxes that are made from the joints, relative to the longer side of the tight box


def read(root: Path) -> Dataset:
    """Read the 13 joints of the paper's tables."""
    return read_joints(root, "human36m", JOINTS)


def read_joints(root: Path, name: str, names: tuple[str, ...]) -> Dataset:
    """Read six activities: frames of six subjects for training and of one for testing (paper, Sec. 4.1).

    Args:
        root: Folder of the data set.
        name: Name of the data set.
        names: Names of the joints.
    """
    folders = ("", "training/subjects/", "subjects/", "training/")
    base = find_path(root, *(f"{folder}S1" for folder in folders), title=TITLE).parent
    splits, without_joints, num_filled = [], [], 0
    for subjects, step in ((TRAIN_SUBJECTS, TRAIN_STEP), (TEST_SUBJECTS, TEST_STEP)):
        parts = []
        for subject in subjects:
            for video in _find_videos(base, subject):
                poses = find_path(base, f"{subject}/MyPoseFeatures/D2_Positions", title=TITLE)
                if not (poses / f"{video.stem}.cdf").is_file():
                    without_joints.append(f"{subject}/{video.stem}")
                    continue
                part, filled = _read_video(root, base / subject, video, step, names)
                parts.append(part)
                num_filled += filled
        splits.append(concatenate_objects(parts, names))
        if not len(splits[-1]):
            raise InputError(f"{base}: the videos of {', '.join(subjects)} have no joints")
    notes = []
    if without_joints:
        notes.append(f"videos left out because they have no joints: {', '.join(without_joints)}")
    if num_filled:
        count = sum(map(len, splits))
        notes.append(
            "boxes made from the joints, because ground_truth_bb does not contain them: "
            f"{num_filled} of {count}"
        )
    return Dataset(
        name=name,
        root=root,
        category="person",
        names=names,
        mirror=pair_points_by_side(names),
        normalizer="shoulders",
        settings={"images.box_rule": "body", "images.body_scale": 1.1},
        train=splits[0],
        test=splits[1],
        notes=tuple(notes),
    )


def _find_videos(base: Path, subject: str) -> list[Path]:
    folder = find_path(base, f"{subject}/Videos", title=TITLE)
    videos = [path for path in list_files(folder, "*.mp4") if VIDEO_NAME.fullmatch(path.name)]
    if not videos:
        raise InputError(f"{folder} contains no videos such as 'Directions 1.54138969.mp4'")
    return videos


def _read_video(
    root: Path, folder: Path, video: Path, step: int, names: tuple[str, ...]
) -> tuple[AnnotatedObjects, int]:
    """Return every `step`-th frame of a video, and how many of these frames have no annotated box."""
    joints = _read_all_joints(folder / "MyPoseFeatures" / "D2_Positions" / f"{video.stem}.cdf")
    frames = np.arange(0, len(joints), step)
    joints = joints[frames]
    # The projected joints are used unchanged: nothing suggests that they are 1-based.
    xy = joints[:, [ALL_JOINTS.index(name) for name in names]]
    masks = folder / "MySegmentsMat" / "ground_truth_bb" / f"{video.stem}.mat"
    annotated = _read_boxes(masks, frames.tolist()) if masks.is_file() else np.full((len(frames), 4), np.nan)
    boxes, num_filled = fill_missing_boxes(annotated, joints, MARGIN)
    match = VIDEO_NAME.fullmatch(video.name)
    assert match is not None
    # If a person faces the camera, the left shoulder is on the right of the image.
    left, right = (joints[:, ALL_JOINTS.index(name), 0] for name in ("left_shoulder", "right_shoulder"))
    facing = np.where(left > right, "camera", "away").tolist()
    count = len(frames)
    fields = {
        "subject": (folder.name,) * count,
        "activity": (match[1],) * count,
        "camera": (match[2],) * count,
        "facing": tuple(facing),
    }
    refs = [ImageRef(video.relative_to(root), frame) for frame in frames.tolist()]
    return build_annotated_objects(refs, names, xy, boxes, fields=fields), num_filled


def _read_all_joints(path: Path) -> FloatArray:
    """Return the joints [F, 32, 2] of all frames; the file has one record of F x 64 numbers, x before y."""
    cdflib: Any = require_package("cdflib", INSTALL)
    try:
        pose = np.asarray(cdflib.CDF(path).varget("Pose"), np.float64)
        joints: FloatArray = pose.reshape(-1, 32, 2)
    except Exception as error:  # cdflib raises errors of every kind for damaged files.
        raise InputError(f"{path} is not a CDF file with 64 numbers 'Pose' per frame") from error
    if not np.isfinite(joints).all():
        raise InputError(f"{path}: some joints are not numbers")
    return joints


def _read_boxes(path: Path, frames: list[int]) -> FloatArray:
    """Return the boxes [N, 4] of the given frames; NaN for frames without a box.

    `Masks` is a cell array with one mask per frame; a mask is 1 inside the box. HDF5 stores MATLAB's columns
    as rows, so the first axis of a mask is x.
    """
    h5py: Any = require_package("h5py", INSTALL)
    boxes = np.full((len(frames), 4), np.nan)
    try:
        with h5py.File(path, "r") as file:
            size = path.stat().st_size
            masks = _read_plausible(file["Masks"], size).reshape(-1)
            for row, frame in enumerate(frames):
                if frame >= len(masks):
                    break
                inside = _read_plausible(file[masks[frame]], size) != 0
                columns, rows = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
                if len(columns):
                    x, y = columns[0], rows[0]
                    boxes[row] = x, y, columns[-1] + 1 - x, rows[-1] + 1 - y
    except Exception as error:  # h5py raises errors of every kind for damaged files.
        raise InputError(f"{path} is not a MATLAB file with masks of boxes") from error
    return boxes


def _read_plausible(data: Any, size: int) -> npt.NDArray[Any]:
    """Read an HDF5 array; raise if it claims more bytes than a compressed file of `size` bytes can hold."""
    if data.nbytes > size * MAX_COMPRESSION:
        raise ValueError(f"an array of shape {data.shape} in {size} bytes")
    return np.asarray(data)
