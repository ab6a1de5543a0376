"""BBCPose: 20 sign language interpreters of the BBC, one per video, 7 joints of the upper body.

The archive bbcpose_data_1.0 holds a folder of numbered frames per video, the archive
bbcpose_extbbcpose_code_1.0 the annotation, one struct per video: `train_frames` with joints found by a
tracker, and for validation and test videos `test_frames` with joints marked by hand.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.annotations import AnnotatedObjects, annotate_images
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets import matlab_files
from selfmark.paper.datasets.body_readers import (
    BOX_FILES,
    concatenate_objects,
    fill_missing_boxes,
    mirror_by_side,
    use_detected_boxes,
)
from selfmark.paper.datasets.dataset import Dataset, files_exist, find_path
from selfmark.points import FloatArray

OF = "BBCPose"
NAMES = (
    "head", "right_wrist", "left_wrist", "right_elbow", "left_elbow", "right_shoulder", "left_shoulder",
)  # fmt: skip
VIDEOS = 20  # the annotation goes on with the 72 videos of Extended BBCPose
EVERY = 10  # of the annotated frames of training videos
FILMS = (".mp4", ".avi", ".mkv")
MARGIN = 0.3  # of boxes around the joints, which leave out hands, the top of the head and the chest


def read(root: Path) -> Dataset:
    """A frame in ten of ten videos for training, the hand-marked frames of five for testing (Sec. 4.1)."""
    code = ("code/", "bbcpose_extbbcpose_code_1.0/code/", "bbcpose_extbbcpose_code_1.0/", "")
    table = find_path(root, *(f"{folder}bbcpose.mat" for folder in code), of=OF)
    data = ("", "bbcpose_data_1.0/")
    place = find_path(root, *(f"{folder}1{end}" for folder in data for end in ("", *FILMS)), of=OF).parent
    fields = ("type", "train_frames", "train_joints", "test_frames", "test_joints")
    videos = matlab_files.matlab_structs(table, matlab_files.load_matlab(table), "bbcpose", fields)

    parts: dict[str, list[AnnotatedObjects]] = {"train": [], "test": []}
    missing = 0
    for number, video in enumerate(videos[:VIDEOS], 1):
        kind = matlab_files.matlab_text(table, video, "type")
        if kind not in parts:
            continue  # validation
        frames = matlab_files.matlab_numbers(table, video, f"{kind}_frames", (1, None))[0].astype(np.int64)
        joints = matlab_files.matlab_numbers(table, video, f"{kind}_joints", (2, len(NAMES), len(frames)))
        if (frames < 1).any():
            raise InputError(f"{table}: '{kind}_frames' of video {number} must count from 1")
        step = EVERY if kind == "train" else 1
        # 1-based: MATLAB, and the official evaluation shrinks images by x -> (x - 1) / 2 + 1.
        xy = joints.transpose(2, 1, 0)[::step] - 1
        part, absent = _frames(root, place, number, frames[::step], xy)
        parts[kind].append(part)
        missing += absent
    for kind, found in parts.items():
        if not sum(map(len, found)):
            raise InputError(f"{place}: none of the frames that {table} lists for '{kind}' videos is there")
    split = len(concatenate_objects(parts["train"], NAMES))
    objects, notes = _boxed(concatenate_objects(parts["train"] + parts["test"], NAMES), root)
    absence = f"annotated frames left out, because they are not there: {missing}"
    return Dataset(
        name="bbcpose",
        root=root,
        category="person",
        names=NAMES,
        mirror=mirror_by_side(NAMES),
        normalizer="shoulders",
        settings={"images.box_rule": "body", "images.body_scale": 1.1},
        train=objects.select(np.arange(split)),
        test=objects.select(np.arange(split, len(objects))),
        notes=(*([absence] if missing else []), *notes),
    )


def _frames(
    root: Path, place: Path, number: int, frames: npt.NDArray[np.int64], xy: FloatArray
) -> tuple[AnnotatedObjects, int]:
    """The frames of a video that are there, as images or in a film, and how many are not.

    A film comes first: where there is one, somebody made it. Frame 1 is its first.
    """
    names = [f"{number}{end}" for end in FILMS]
    media = find_path(place, *names, str(number), of=OF)
    film = media.is_file()
    files = [media if film else media / f"{frame}.jpg" for frame in frames.tolist()]
    kept = files_exist(files)
    count = int(kept.sum())
    name = str(media.relative_to(root))
    refs = [
        ImageRef(file.relative_to(root), frame - 1)
        if film
        else ImageRef(file.relative_to(root), clip=(name, frame - 1))
        for file, frame, there in zip(files, frames.tolist(), kept.tolist(), strict=True)
        if there
    ]
    part = annotate_images(refs, NAMES, xy[kept], fields={"video": (str(number),) * count})
    return part, len(files) - count


def _boxed(objects: AnnotatedObjects, root: Path) -> tuple[AnnotatedObjects, list[str]]:
    """Boxes of a detector, which the data set does not come with; else around the joints."""
    given = next((root / name for name in BOX_FILES if (root / name).exists()), None)
    boxed = objects if given is None else use_detected_boxes(objects, root, given)
    box, made = fill_missing_boxes(boxed.boxes, boxed.xy, MARGIN)
    why = f"there is no {' or '.join(BOX_FILES)}" if given is None else f"{given} does not have them"
    note = f"boxes made around the joints, not by a detector as in the paper, because {why}: {made}"
    return replace(boxed, boxes=box), [note] if made else []
