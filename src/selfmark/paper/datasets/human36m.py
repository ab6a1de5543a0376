"""Human3.6M: actors in a hall before four cameras, with the joints that motion capture gives.

Per subject, below e.g. S1: `Videos/Directions 1.54138969.mp4`, the joints of each frame in
`MyPoseFeatures/D2_Positions/Directions 1.54138969.cdf` and a mask of its box in
`MySegmentsMat/ground_truth_bb/Directions 1.54138969.mat` (version 7.3, so HDF5).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from selfmark.annotations import AnnotatedObjects, annotate_images
from selfmark.errors import InputError, require_package
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets.body_readers import (
    JOINTS,
    concatenate_objects,
    fill_missing_boxes,
    mirror_by_side,
)
from selfmark.paper.datasets.dataset import Dataset, find_path, list_files
from selfmark.points import FloatArray

OF = "Human3.6M"
INSTALL = "'selfmark[datasets]'"
# The seven subjects whose joints are given out. The last tests: as in the authors' earlier program.
TRAIN, TEST = ("S1", "S5", "S6", "S7", "S8", "S9"), ("S11",)
EVERY_TRAIN, EVERY_TEST = 50, 100  # frames
# Not the walks in pairs and with a dog, whose names begin alike.
FILM = re.compile(r"(Directions|Discussion|Posing|Waiting|Greeting|Walking)(?: \d)?\.(\d+)\.mp4")
# In the order of the files. Some lie in one place: the ends of the spine and the collars, wrists and thumbs.
ALL = (
    "hips", "right_hip", "right_knee", "right_ankle", "right_toe", "right_toe_end", "left_hip", "left_knee",
    "left_ankle", "left_toe", "left_toe_end", "spine", "spine_middle", "neck", "nose", "head", "left_collar",
    "left_shoulder", "left_elbow", "left_wrist", "left_thumb", "left_thumb_end", "left_hand", "left_hand_end",
    "right_collar", "right_shoulder", "right_elbow", "right_wrist", "right_thumb", "right_thumb_end",
    "right_hand", "right_hand_end",
)  # fmt: skip
MARGIN = 0.1  # of boxes around the joints


def read(root: Path) -> Dataset:
    """The joints that the paper's tables name."""
    return with_joints(root, "human36m", JOINTS)


def with_joints(root: Path, name: str, names: tuple[str, ...]) -> Dataset:
    """Six activities; a frame in 50 of six subjects for training, in 100 of one for testing (Sec. 4.1)."""
    folders = ("", "training/subjects/", "subjects/", "training/")
    base = find_path(root, *(f"{folder}S1" for folder in folders), of=OF).parent
    splits, without, made, count = [], [], 0, 0
    for subjects, every in ((TRAIN, EVERY_TRAIN), (TEST, EVERY_TEST)):
        parts = []
        for subject in subjects:
            videos = find_path(base, f"{subject}/Videos", of=OF)
            films = [film for film in list_files(videos, "*.mp4") if FILM.fullmatch(film.name)]
            if not films:
                raise InputError(f"{videos} holds no videos such as 'Directions 1.54138969.mp4'")
            for film in films:
                poses = f"{subject}/MyPoseFeatures/D2_Positions"
                if not (find_path(base, poses, of=OF) / f"{film.stem}.cdf").is_file():
                    without.append(f"{subject}/{film.stem}")
                    continue
                part, gaps = _video(root, base, subject, film, every, names)
                parts.append(part)
                made += gaps
        splits.append(concatenate_objects(parts, names))
        count += len(splits[-1])
        if not len(splits[-1]):
            raise InputError(f"{base}: the videos of {', '.join(subjects)} have no joints")
    notes = [f"videos left out, because they have no joints: {', '.join(without)}"] if without else []
    if made:
        notes.append(
            f"boxes made around the joints, because ground_truth_bb does not have them: {made} of {count}"
        )
    return Dataset(
        name=name,
        root=root,
        category="person",
        names=names,
        mirror=mirror_by_side(names),
        normalizer="shoulders",
        settings={"images.box_rule": "body", "images.body_scale": 1.1},
        train=splits[0],
        test=splits[1],
        notes=tuple(notes),
    )


def _video(
    root: Path, base: Path, subject: str, film: Path, every: int, names: tuple[str, ...]
) -> tuple[AnnotatedObjects, int]:
    """Every so manyth frame of a video, and how many have no box of their own."""
    joints = _joints(base / subject / "MyPoseFeatures" / "D2_Positions" / f"{film.stem}.cdf")
    frames = np.arange(0, len(joints), every)
    joints = joints[frames]
    # Projections of motion capture, used as they are: nothing says that pixels were counted from 1.
    xy = joints[:, [ALL.index(name) for name in names]]
    masks = base / subject / "MySegmentsMat" / "ground_truth_bb" / f"{film.stem}.mat"
    given = _boxes(masks, frames.tolist()) if masks.is_file() else np.full((len(frames), 4), np.nan)
    box, made = fill_missing_boxes(given, joints, MARGIN)
    matched = FILM.fullmatch(film.name)
    assert matched is not None
    # Whoever faces the camera has the left shoulder on the right.
    left, right = (joints[:, ALL.index(name), 0] for name in ("left_shoulder", "right_shoulder"))
    facing = np.where(left > right, "camera", "away").tolist()
    count = len(frames)
    fields = {
        "subject": (subject,) * count,
        "activity": (matched[1],) * count,
        "camera": (matched[2],) * count,
        "facing": tuple(facing),
    }
    refs = [ImageRef(film.relative_to(root), frame) for frame in frames.tolist()]
    return annotate_images(refs, names, xy, box, fields=fields), made


def _joints(path: Path) -> FloatArray:
    """The joints of all frames, [F, 32, 2]: one record of F x 64 numbers, x before y."""
    cdflib: Any = require_package("cdflib", INSTALL)
    try:
        pose = np.asarray(cdflib.CDF(path).varget("Pose"), np.float64)
        joints: FloatArray = pose.reshape(-1, 32, 2)
    except Exception as error:  # cdflib trusts the file: a damaged one ends in errors of every kind
        raise InputError(f"{path} is not a CDF file with 64 numbers 'Pose' per frame") from error
    if not np.isfinite(joints).all():
        raise InputError(f"{path}: some joints are not numbers")
    return joints


def _boxes(path: Path, frames: list[int]) -> FloatArray:
    """The boxes of these frames, [N, 4]; NaN where a frame has none.

    `Masks` is a cell array of one mask per frame that is 1 within the box; HDF5 shows MATLAB's columns as
    rows, so its first axis is x.
    """
    h5py: Any = require_package("h5py", INSTALL)
    boxes = np.full((len(frames), 4), np.nan)
    try:
        with h5py.File(path, "r") as file:
            masks = np.asarray(file["Masks"]).reshape(-1)
            for row, frame in enumerate(frames):
                if frame >= len(masks):
                    break
                inside = np.asarray(file[masks[frame]]) != 0
                across, down = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
                if len(across):
                    x, y = across[0], down[0]
                    boxes[row] = x, y, across[-1] + 1 - x, down[-1] + 1 - y
    except Exception as error:  # as above
        raise InputError(f"{path} is not a MATLAB file of masks of boxes") from error
    return boxes
