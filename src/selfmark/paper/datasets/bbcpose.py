"""Read BBCPose: 20 videos of sign language interpreters of the BBC, with 7 joints of the upper body.

The archive bbcpose_data_1.0 contains a folder of numbered frames per video. The archive
bbcpose_extbbcpose_code_1.0 contains the annotations, one struct per video. The joints of `train_frames` were
found by a tracker. Validation and test videos also have `test_frames`, whose joints were marked by hand.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.annotations import AnnotatedObjects, build_annotated_objects
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets import matlab_files
from selfmark.paper.datasets.body_annotations import (
    BOX_FILES,
    concatenate_objects,
    fill_missing_boxes,
    pair_points_by_side,
    use_detected_boxes,
)
from selfmark.paper.datasets.dataset import Dataset, files_exist, find_path
from selfmark.points import FloatArray

TITLE = "BBCPose"
NAMES = (
    "head", "right_wrist", "left_wrist", "right_elbow", "left_elbow", "right_shoulder", "left_shoulder",
)  # fmt: skip
NUM_VIDEOS = 20  # The annotations continue with the 72 videos of Extended BBCPose.
TRAIN_STEP = 10  # use every n-th annotated frame of a training video
VIDEO_SUFFIXES = (".mp4", ".avi", ".mkv")
# Margin of boxes that are made from the joints, relative to the longer side of the tight box. With this
# margin, the boxes include the hands, the top of the head and the chest.
MARGIN = 0.3


def read(root: Path) -> Dataset:
    """Read frames of ten videos for training and hand-marked frames of five for testing (paper, Sec. 4.1)."""
    code_folders = ("code/", "bbcpose_extbbcpose_code_1.0/code/", "bbcpose_extbbcpose_code_1.0/", "")
    table = find_path(root, *(f"{folder}bbcpose.mat" for folder in code_folders), title=TITLE)
    first_videos = [
        f"{folder}1{end}" for folder in ("", "bbcpose_data_1.0/") for end in ("", *VIDEO_SUFFIXES)
    ]
    video_folder = find_path(root, *first_videos, title=TITLE).parent
    fields = ("type", "train_frames", "train_joints", "test_frames", "test_joints")
    videos = matlab_files.get_matlab_structs(table, matlab_files.load_matlab(table), "bbcpose", fields)

    videos_by_kind: dict[str, list[AnnotatedObjects]] = {"train": [], "test": []}
    num_missing = 0
    for number, video in enumerate(videos[:NUM_VIDEOS], 1):
        kind = matlab_files.get_matlab_text(table, video, "type")
        if kind not in videos_by_kind:
            continue  # a validation video
        frames = matlab_files.get_matlab_numbers(table, video, f"{kind}_frames", (1, None))[0].astype(
            np.int64
        )
        joints = matlab_files.get_matlab_numbers(table, video, f"{kind}_joints", (2, len(NAMES), len(frames)))
        if (frames < 1).any():
            raise InputError(f"{table}: '{kind}_frames' of video {number} must count from 1")
        step = TRAIN_STEP if kind == "train" else 1
        # Coordinates are 1-based: the official evaluation shrinks images by x -> (x - 1) / 2 + 1.
        xy = joints.transpose(2, 1, 0)[::step] - 1
        objects, num_missing_in_video = _read_video(root, video_folder, number, frames[::step], xy)
        videos_by_kind[kind].append(objects)
        num_missing += num_missing_in_video
    for kind, kind_videos in videos_by_kind.items():
        if not sum(map(len, kind_videos)):
            raise InputError(
                f"{video_folder} contains none of the frames that {table} lists for '{kind}' videos"
            )
    num_train = sum(map(len, videos_by_kind["train"]))
    all_videos = videos_by_kind["train"] + videos_by_kind["test"]
    objects, notes = _add_boxes(concatenate_objects(all_videos, NAMES), root)
    if num_missing:
        notes.insert(0, f"annotated frames left out because they are missing: {num_missing}")
    return Dataset(
        name="bbcpose",
        root=root,
        category="person",
        names=NAMES,
        mirror=pair_points_by_side(NAMES),
        normalizer="shoulders",
        settings={"images.box_rule": "body", "images.body_scale": 1.1},
        train=objects.select(np.arange(num_train)),
        test=objects.select(np.arange(num_train, len(objects))),
        notes=tuple(notes),
    )


def _read_video(
    root: Path, folder: Path, number: int, frames: npt.NDArray[np.int64], xy: FloatArray
) -> tuple[AnnotatedObjects, int]:
    """Return the frames of a video that exist, and the number of missing frames.

    Frames are images in a folder or frames of a video file. The video file takes precedence: the official
    archive has no video files, so the user made this file on purpose. Its first frame is frame 1.

    Args:
        root: Folder of the data set.
        folder: Folder with the videos.
        number: Number of the video.
        frames: [F] frame numbers, from 1.
        xy: [F, 7, 2] joints in these frames, 0-based.
    """
    video_names = [f"{number}{suffix}" for suffix in VIDEO_SUFFIXES]
    source = find_path(folder, *video_names, str(number), title=TITLE)
    is_video = source.is_file()
    files = [source if is_video else source / f"{frame}.jpg" for frame in frames.tolist()]
    exists = files_exist(files)
    count = int(exists.sum())
    name = str(source.relative_to(root))
    refs = [
        ImageRef(files[row].relative_to(root), frame - 1)
        if is_video
        else ImageRef(files[row].relative_to(root), clip=(name, frame - 1))
        for row, frame in enumerate(frames.tolist())
        if exists[row]
    ]
    part = build_annotated_objects(refs, NAMES, xy[exists], fields={"video": (str(number),) * count})
    return part, len(files) - count


def _add_boxes(objects: AnnotatedObjects, root: Path) -> tuple[AnnotatedObjects, list[str]]:
    """Add boxes from a file of detections if it exists, and boxes around the joints for all other objects.

    Returns:
        The objects with boxes, and notes for the user.
    """
    file = next((root / name for name in BOX_FILES if (root / name).exists()), None)
    detected = objects if file is None else use_detected_boxes(objects, root, file)
    boxes, num_filled = fill_missing_boxes(detected.boxes, detected.xy, MARGIN)
    reason = f"there is no {' or '.join(BOX_FILES)}" if file is None else f"{file} does not contain them"
    note = f"boxes made from the joints, not by a detector as in the paper, because {reason}: {num_filled}"
    return replace(detected, boxes=boxes), [note] if num_filled else []
