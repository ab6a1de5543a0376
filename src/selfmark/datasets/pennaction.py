"""Penn Action: 2,326 short videos of sports, as frames, with 13 joints and a box each.

Below the root (the folder Penn_Action of the archive): `frames/0001/000001.jpg`, and `labels/0001.mat` with
the action, the viewpoint (`pose`), x, y and visibility of each frame's joints, and boxes.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from selfmark.datasets import matlab
from selfmark.datasets.bodies import JOINTS, joined, mirror, without_gaps
from selfmark.datasets.form import DataSet, Objects, find, listed, present
from selfmark.errors import InputError
from selfmark.points import FloatArray

OF = "Penn Action"
ACTIONS = (
    "tennis_serve", "tennis_forehand", "baseball_pitch", "baseball_swing", "jumping_jacks", "golf_swing",
)  # fmt: skip
TEST_VIDEOS = 5  # of each action
MARGIN = 0.15  # of boxes around the joints, whose head is the middle of the head


def read(root: Path) -> DataSet:
    """Six actions; the first five videos of each for testing, all others for training (Sec. 4.1)."""
    labels, frames = find(root, "labels", of=OF), find(root, "frames", of=OF)
    seen: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    parts: tuple[list[Objects], list[Objects]] = [], []
    for path in listed(labels, "*.mat"):
        content = matlab.load(path)
        action = matlab.text(path, content, "action")
        if action not in ACTIONS:
            continue
        seen[action] += 1
        part = _video(root, frames / path.stem, path, content, action, left_out)
        parts[seen[action] <= TEST_VIDEOS].append(part)
    if not seen:
        raise InputError(f"{labels} holds no labels of {', '.join(ACTIONS)}")
    train, test = (joined(split, len(JOINTS)) for split in parts)
    return DataSet(
        name="pennaction",
        root=root,
        category="person",
        names=JOINTS,
        mirror=mirror(JOINTS),
        normaliser="box",
        settings={"images.box_rule": "body", "images.body_scale": 1.35},
        train=train,
        test=test,
        notes=tuple(f"{what}: {count}" for what, count in left_out.items() if count),
    )


def _video(
    root: Path, folder: Path, path: Path, content: matlab.Content, action: str, left_out: Counter[str]
) -> Objects:
    """The frames of a video that are there and have joints; counts what is missing."""
    x = matlab.numbers(path, content, "x", (None, len(JOINTS)))
    y = matlab.numbers(path, content, "y", x.shape)
    visible = matlab.numbers(path, content, "visibility", x.shape) != 0
    # Joints that lie nowhere in the picture are at (1, 1), in videos that were shrunk later a little below.
    # So pixels are counted from 1, as MATLAB does.
    nowhere = ~visible & (x <= 1) & (y <= 1)
    xy: FloatArray = np.where(nowhere[..., None], np.nan, np.stack([x, y], axis=2) - 1)

    files = [folder / f"{number:06d}.jpg" for number in range(1, len(x) + 1)]
    there = present(files)
    annotated = np.isfinite(xy[..., 0]).any(axis=1)
    kept = np.flatnonzero(there & annotated)
    left_out["labelled frames left out, because they are not there"] += int((~there).sum())
    left_out["frames left out, because they have no label"] += len(set(listed(folder, "*.jpg")) - set(files))
    left_out["frames left out, because no joint is in the picture"] += int((there & ~annotated).sum())

    box, made = without_gaps(_boxes(path, content, len(x))[kept], xy[kept], MARGIN)
    left_out["boxes made around the joints, because there are none"] += made
    count = len(kept)
    return Objects(
        tuple(files[row].relative_to(root) for row in kept),
        np.full(count, -1, np.int64),
        box,
        xy[kept],
        (~visible & ~nowhere)[kept],
        {
            "video": (path.stem,) * count,
            "action": (action,) * count,
            "viewpoint": (matlab.text(path, content, "pose"),) * count,
        },
        tuple((str(folder.relative_to(root)), row) for row in kept.tolist()),
    )


def _boxes(path: Path, content: matlab.Content, count: int) -> FloatArray:
    """x, y, w, h of each frame, [F, 4], from corners counted from 1; NaN where there is none.

    Some files have fewer rows than frames, and a few have none at all.
    """
    boxes = np.full((count, 4), np.nan)
    if np.asarray(content.get("bbox", [])).size:
        corners = matlab.numbers(path, content, "bbox", (None, 4))[:count]
        whole = np.isfinite(corners).all(axis=1) & (corners[:, 2:] > corners[:, :2]).all(axis=1)
        # The corners lie on pixel centres; boxes are counted from pixel edges, half a pixel before.
        given = np.concatenate([corners[:, :2] - 0.5, corners[:, 2:] - corners[:, :2]], axis=1)
        boxes[: len(corners)][whole] = given[whole]
    return boxes
