"""Penn Action: 2,326 short videos of sports, as frames, with 13 joints and a box each.

Below the root (the folder Penn_Action of the archive): `frames/0001/000001.jpg`, and `labels/0001.mat` with
the action, the viewpoint (`pose`), x, y and visibility of each frame's joints, and boxes.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from selfmark.annotations import AnnotatedObjects, annotate_images
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets import matlab_files
from selfmark.paper.datasets.body_readers import (
    JOINTS,
    concatenate_objects,
    fill_missing_boxes,
    mirror_by_side,
)
from selfmark.paper.datasets.dataset import Dataset, files_exist, find_path, list_files
from selfmark.points import FloatArray

OF = "Penn Action"
ACTIONS = (
    "tennis_serve", "tennis_forehand", "baseball_pitch", "baseball_swing", "jumping_jacks", "golf_swing",
)  # fmt: skip
TEST_VIDEOS = 5  # of each action
MARGIN = 0.15  # of boxes around the joints, whose head is the middle of the head


def read(root: Path) -> Dataset:
    """Six actions; the first five videos of each for testing, all others for training (Sec. 4.1)."""
    labels, frames = find_path(root, "labels", of=OF), find_path(root, "frames", of=OF)
    seen: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    parts: tuple[list[AnnotatedObjects], list[AnnotatedObjects]] = [], []
    for path in list_files(labels, "*.mat"):
        content = matlab_files.load_matlab(path)
        action = matlab_files.matlab_text(path, content, "action")
        if action not in ACTIONS:
            continue
        seen[action] += 1
        part = _video(root, frames / path.stem, path, content, action, left_out)
        parts[seen[action] <= TEST_VIDEOS].append(part)
    if not seen:
        raise InputError(f"{labels} holds no labels of {', '.join(ACTIONS)}")
    train, test = (concatenate_objects(split, JOINTS) for split in parts)
    return Dataset(
        name="pennaction",
        root=root,
        category="person",
        names=JOINTS,
        mirror=mirror_by_side(JOINTS),
        normalizer="box",
        settings={"images.box_rule": "body", "images.body_scale": 1.35},
        train=train,
        test=test,
        notes=tuple(f"{what}: {count}" for what, count in left_out.items() if count),
    )


def _video(
    root: Path, folder: Path, path: Path, content: matlab_files.Content, action: str, left_out: Counter[str]
) -> AnnotatedObjects:
    """The frames of a video that are there and have joints; counts what is missing."""
    x = matlab_files.matlab_numbers(path, content, "x", (None, len(JOINTS)))
    y = matlab_files.matlab_numbers(path, content, "y", x.shape)
    visible = matlab_files.matlab_numbers(path, content, "visibility", x.shape) != 0
    # Joints that lie nowhere in the picture are at (1, 1), in videos that were shrunk later a little below.
    # So pixels are counted from 1, as MATLAB does.
    nowhere = ~visible & (x <= 1) & (y <= 1)
    xy: FloatArray = np.where(nowhere[..., None], np.nan, np.stack([x, y], axis=2) - 1)

    files = [folder / f"{number:06d}.jpg" for number in range(1, len(x) + 1)]
    there = files_exist(files)
    annotated = np.isfinite(xy[..., 0]).any(axis=1)
    kept = np.flatnonzero(there & annotated)
    left_out["labeled frames left out, because they are not there"] += int((~there).sum())
    left_out["frames left out, because they have no label"] += len(
        set(list_files(folder, "*.jpg")) - set(files)
    )
    left_out["frames left out, because no joint is in the picture"] += int((there & ~annotated).sum())

    box, made = fill_missing_boxes(_boxes(path, content, len(x))[kept], xy[kept], MARGIN)
    left_out["boxes made around the joints, because there are none"] += made
    count = len(kept)
    clip = str(folder.relative_to(root))
    refs = [ImageRef(files[row].relative_to(root), clip=(clip, row)) for row in kept.tolist()]
    fields = {
        "video": (path.stem,) * count,
        "action": (action,) * count,
        "viewpoint": (matlab_files.matlab_text(path, content, "pose"),) * count,
    }
    return annotate_images(refs, JOINTS, xy[kept], box, (~visible & ~nowhere)[kept], fields)


def _boxes(path: Path, content: matlab_files.Content, count: int) -> FloatArray:
    """x, y, w, h of each frame, [F, 4], from corners counted from 1; NaN where there is none.

    Some files have fewer rows than frames, and a few have none at all.
    """
    boxes = np.full((count, 4), np.nan)
    if np.asarray(content.get("bbox", [])).size:
        corners = matlab_files.matlab_numbers(path, content, "bbox", (None, 4))[:count]
        whole = np.isfinite(corners).all(axis=1) & (corners[:, 2:] > corners[:, :2]).all(axis=1)
        # The corners lie on pixel centers; boxes are counted from pixel edges, half a pixel before.
        given = np.concatenate([corners[:, :2] - 0.5, corners[:, 2:] - corners[:, :2]], axis=1)
        boxes[: len(corners)][whole] = given[whole]
    return boxes
