"""Read Penn Action: 2,326 short sports videos, stored as frames with 13 joints and a box each.

The root is the folder Penn_Action of the archive. Frames are in `frames/0001/000001.jpg` and so on.
`labels/0001.mat` contains the action, the viewpoint (`pose`), the joints (x, y and visibility) and the boxes
of a video.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from selfmark.annotations import AnnotatedObjects, build_annotated_objects
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets import matlab_files
from selfmark.paper.datasets.body_annotations import (
    JOINTS,
    concatenate_objects,
    fill_missing_boxes,
    pair_points_by_side,
)
from selfmark.paper.datasets.dataset import Dataset, files_exist, find_path, list_files
from selfmark.points import FloatArray

TITLE = "Penn Action"
ACTIONS = (
    "tennis_serve", "tennis_forehand", "baseball_pitch", "baseball_swing", "jumping_jacks", "golf_swing",
)  # fmt: skip
NUM_TEST_VIDEOS = 5  # number of test videos of each action
# Margin of boxes that are made from the joints, relative to the longer side of the tight box. A margin is
# needed, because the highest joint is the middle of the head.
MARGIN = 0.15


def read(root: Path) -> Dataset:
    """Read six actions, as in Sec. 4.1 of the paper.

    The first five videos of each action are for testing, all others for training.
    """
    labels, frames = find_path(root, "labels", title=TITLE), find_path(root, "frames", title=TITLE)
    num_videos: Counter[str] = Counter()
    note_counts: Counter[str] = Counter()
    train_parts: list[AnnotatedObjects] = []
    test_parts: list[AnnotatedObjects] = []
    for path in list_files(labels, "*.mat"):
        content = matlab_files.load_matlab(path)
        action = matlab_files.get_matlab_text(path, content, "action")
        if action not in ACTIONS:
            continue
        num_videos[action] += 1
        part = _read_video(root, frames / path.stem, path, content, action, note_counts)
        (test_parts if num_videos[action] <= NUM_TEST_VIDEOS else train_parts).append(part)
    if not num_videos:
        raise InputError(f"{labels} contains no labels of {', '.join(ACTIONS)}")
    return Dataset(
        name="pennaction",
        root=root,
        category="person",
        names=JOINTS,
        mirror=pair_points_by_side(JOINTS),
        normalizer="box",
        settings={"images.box_rule": "body", "images.body_scale": 1.35},
        train=concatenate_objects(train_parts, JOINTS),
        test=concatenate_objects(test_parts, JOINTS),
        notes=tuple(f"{note}: {count}" for note, count in note_counts.items() if count),
    )


def _read_video(
    root: Path,
    folder: Path,
    path: Path,
    content: matlab_files.Content,
    action: str,
    note_counts: Counter[str],
) -> AnnotatedObjects:
    """Return the frames of a video that exist and have joints.

    Args:
        root: Folder of the data set.
        folder: Folder with the frames.
        path: Label file of the video, named after the video.
        content: Variables of the label file.
        action: Action of the video.
        note_counts: Number of frames or boxes that each note is about; the counts of this video are added.
    """
    x = matlab_files.get_matlab_numbers(path, content, "x", (None, len(JOINTS)))
    y = matlab_files.get_matlab_numbers(path, content, "y", x.shape)
    visible = matlab_files.get_matlab_numbers(path, content, "visibility", x.shape) != 0
    # Coordinates are 1-based, as in MATLAB. A joint outside the image is stored as the top left pixel (1, 1),
    # or with slightly smaller coordinates in videos that were resized later.
    is_outside = ~visible & (x <= 1) & (y <= 1)
    xy: FloatArray = np.where(is_outside[..., None], np.nan, np.stack([x, y], axis=2) - 1)

    files = [folder / f"{number:06d}.jpg" for number in range(1, len(x) + 1)]
    exists = files_exist(files)
    is_annotated = np.isfinite(xy[..., 0]).any(axis=1)
    kept = np.flatnonzero(exists & is_annotated)
    num_unlabeled = len(set(list_files(folder, "*.jpg")) - set(files))
    note_counts["labeled frames left out because they are missing"] += int((~exists).sum())
    note_counts["frames left out because they have no label"] += num_unlabeled
    note_counts["frames left out because no joint is in the image"] += int((exists & ~is_annotated).sum())

    boxes, num_filled = fill_missing_boxes(_read_boxes(path, content, len(x))[kept], xy[kept], MARGIN)
    note_counts["boxes computed from the joints because the label has no box"] += num_filled
    count = len(kept)
    clip = str(folder.relative_to(root))
    refs = [ImageRef(files[row].relative_to(root), clip=(clip, row)) for row in kept.tolist()]
    fields = {
        "video": (path.stem,) * count,
        "action": (action,) * count,
        "viewpoint": (matlab_files.get_matlab_text(path, content, "pose"),) * count,
    }
    return build_annotated_objects(refs, JOINTS, xy[kept], boxes, (~visible & ~is_outside)[kept], fields)


def _read_boxes(path: Path, content: matlab_files.Content, count: int) -> FloatArray:
    """Return the boxes [F, 4] of all frames as x, y, w, h; NaN if a frame has no box.

    The file has the 1-based corners of boxes. Some files have fewer rows than frames, and a few have no rows.
    """
    boxes = np.full((count, 4), np.nan)
    if np.asarray(content.get("bbox", [])).size:
        corners = matlab_files.get_matlab_numbers(path, content, "bbox", (None, 4))[:count]
        is_valid = np.isfinite(corners).all(axis=1) & (corners[:, 2:] > corners[:, :2]).all(axis=1)
        # The center of the top left pixel is (1, 1) in the file, but (0.5, 0.5) in our boxes.
        converted = np.concatenate([corners[:, :2] - 0.5, corners[:, 2:] - corners[:, :2]], axis=1)
        boxes[: len(corners)][is_valid] = converted[is_valid]
    return boxes
