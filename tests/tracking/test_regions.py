"""Test how objects are located: boxes of COCO, CSV and YOLO files, crops, and unusable inputs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.tracking.regions import Regions, locate_objects, parse_crop

# File name, frame, box and track of each object.
Objects = list[tuple[str, int | None, tuple[float, ...] | None, int | None]]


def summarize(refs: list[ImageRef]) -> Objects:
    return [
        (ref.path.name, ref.frame, ref.box and tuple(round(n, 6) for n in ref.box), ref.track) for ref in refs
    ]


@pytest.fixture
def folder(tmp_path: Path, write_video: Callable[..., Path]) -> Path:
    """Return a folder with a.png (40 x 20), b.jpg (10 x 80, stored sideways) and clip.avi (64 x 48)."""
    Image.new("RGB", (40, 20)).save(tmp_path / "a.png")
    rotated = Image.Exif()
    rotated[0x0112] = 6  # Viewers rotate the image by 90 degrees.
    Image.new("RGB", (80, 10)).save(tmp_path / "b.jpg", exif=rotated)
    write_video(tmp_path / "clip.avi", 12, "MJPG")
    return tmp_path


def write_coco(path: Path, images: list[dict[str, Any]], annotations: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"images": images, "annotations": annotations}))
    return path


def test_coco_boxes_and_tracks_of_frames_are_read(folder: Path) -> None:
    images = [{"id": n, "file_name": "elsewhere/clip.avi", "frame": n} for n in range(0, 12, 2)]
    annotations = [
        {"image_id": 4, "bbox": [1, 2, 3, 4], "track_id": 7},
        {"image_id": 0, "bbox": [5, 6, 7, 8], "attributes": {"track_id": 3}},
        {"image_id": 4, "bbox": [9, 9, 9, 9], "track": 3},
        {"image_id": 2, "bbox": []},
    ]
    path = write_coco(folder / "boxes.json", images, annotations)
    objects = summarize(locate_objects([folder / "clip.avi"], regions=Regions(boxes=path)))
    assert objects == [
        ("clip.avi", 0, (5, 6, 7, 8), 3),
        ("clip.avi", 4, (1, 2, 3, 4), 7),
        ("clip.avi", 4, (9, 9, 9, 9), 3),
    ]
    assert summarize(locate_objects([folder / "clip.avi"], 4, Regions(boxes=path))) == objects, (
        "frames 0, 4, 8"
    )
    assert summarize(locate_objects([folder / "clip.avi"], 3, Regions(boxes=path))) == objects[:1], (
        "frames 0, 3, 6, 9"
    )


def test_csv_boxes_of_a_single_video_are_read(folder: Path) -> None:
    path = folder / "boxes.csv"
    path.write_text(
        "Frame, X,y,width,height,id\n3,1,2,3,4,1\n\n3.0,5,6,7,8,2.0\n11,1,1,2,2,1\n40,1,1,2,2,1\n"
    )
    assert summarize(locate_objects([folder / "clip.avi"], regions=Regions(boxes=path))) == [
        ("clip.avi", 3, (1, 2, 3, 4), 1),
        ("clip.avi", 3, (5, 6, 7, 8), 2),
        ("clip.avi", 11, (1, 1, 2, 2), 1),
    ]


def test_a_column_id_that_numbers_the_rows_is_no_track(folder: Path) -> None:
    path = folder / "boxes.csv"
    path.write_text("id,frame,x,y,w,h\n1,3,1,2,3,4\n2,7,5,6,7,8\n3,11,1,1,2,2\n")
    objects = summarize(locate_objects([folder / "clip.avi"], regions=Regions(boxes=path)))
    assert [track for *_, track in objects] == [None, None, None]


def test_images_are_matched_by_the_end_of_their_paths(folder: Path) -> None:
    for name in ("left", "right"):
        (folder / name).mkdir()
        shutil.copy(folder / "a.png", folder / name)
    path = folder / "boxes.csv"
    path.write_text("image,x,y,w,h\n/data/right/a.png,1,2,3,4\nleft/a.png,5,6,7,8\nother.png,1,1,1,1\n")
    refs = locate_objects([folder / "left", folder / "right"], regions=Regions(boxes=path))
    assert [(ref.path.parent.name, ref.box) for ref in refs] == [
        ("left", (5, 6, 7, 8)),
        ("right", (1, 2, 3, 4)),
    ]


def test_a_box_that_matches_two_images_is_rejected_with_advice(folder: Path) -> None:
    folders = [folder / "left" / "day", folder / "right" / "day"]
    for parent in folders:
        parent.mkdir(parents=True)
        shutil.copy(folder / "a.png", parent)
    for name, text, message in (
        ("boxes.csv", "image,x,y,w,h\nday/a.png,1,2,3,4\n", "for example left/day/a.png"),
        ("a.txt", "0 0.5 0.5 0.5 1\n", "YOLO files are matched by name only, .* different names"),
    ):
        path = folder / name
        path.write_text(text)
        with pytest.raises(InputError, match=rf"matches both .*left/.* and .*right/.*; .*{message}$"):
            locate_objects(folders, regions=Regions(boxes=path))


def test_spaces_around_a_name_in_a_csv_file_are_ignored_only_if_no_file_has_them(folder: Path) -> None:
    for image in (" a.png", "c.png", " d.png", "d.png"):
        shutil.copy(folder / "a.png", folder / image)
    (folder / "sub").mkdir()
    shutil.copy(folder / "a.png", folder / "sub")
    boxes = folder / "boxes.csv"
    boxes.write_text(
        "image,x,y,w,h\n a.png,1,1,4,4\n sub/a.png ,2,2,4,4\n c.png ,3,3,4,4\n d.png,4,4,4,4\n"
        f"{folder}/a.png ,5,5,4,4\n"
    )
    images = [folder / name for name in (" a.png", "a.png", "c.png", "d.png", "sub/a.png")]
    assert summarize(locate_objects(images, regions=Regions(boxes=boxes))) == [
        (" a.png", None, (1, 1, 4, 4), None),
        ("a.png", None, (5, 5, 4, 4), None),
        ("c.png", None, (3, 3, 4, 4), None),
        # The fourth box is of " d.png", which exists but was not given.
        ("a.png", None, (2, 2, 4, 4), None),
    ]


@pytest.mark.parametrize("character", ["\n", "\u2028", "\x85", "\x0c"])
def test_names_in_csv_files_may_contain_line_ends(folder: Path, character: str) -> None:
    name = f"a{character}b.png"
    for image in (name, "ab.png"):  # Without its line end, the first name would be the second.
        shutil.copy(folder / "a.png", folder / image)
    boxes = folder / "boxes.csv"
    boxes.write_text(f'image,x,y,w,h\n"{name}",1,2,3,4\nab.png,5,6,7,8\n', encoding="utf-8")
    images = [folder / name, folder / "ab.png"]
    assert summarize(locate_objects(images, regions=Regions(boxes=boxes))) == [
        (name, None, (1, 2, 3, 4), None),
        ("ab.png", None, (5, 6, 7, 8), None),
    ]
    boxes.write_text('image,x,y,w,h\n"a\nb.png",1,2,3,4\nab.png,5,6,7,wide\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"boxes.csv line 4: 'wide' is not a number"):
        locate_objects(images, regions=Regions(boxes=boxes))


def test_yolo_boxes_are_fractions_of_the_upright_image(folder: Path) -> None:
    labels = folder / "labels"
    labels.mkdir()
    (labels / "a.txt").write_text("0 0.5 0.5 0.5 1\n2 0.25 0.25 0.1 0.1\n")
    (labels / "b.txt").write_text("0 0.5 0.25 1 0.5\n")
    objects = summarize(locate_objects([folder / "a.png", folder / "b.jpg"], regions=Regions(boxes=labels)))
    assert objects == [
        ("a.png", None, (10, 0, 20, 20), None),
        ("a.png", None, (8, 4, 4, 2), None),
        ("b.jpg", None, (0, 0, 10, 40), None),
    ]
    assert (
        summarize(locate_objects([folder / "a.png"], regions=Regions(boxes=labels / "a.txt"))) == objects[:2]
    )


@pytest.mark.parametrize(
    ("rows", "tracks"),
    [
        # After the box, rows have a track, a confidence, a confidence and a track, or keypoints.
        (["0 .5 .5 .5 .5 3", "0 .5 .5 .5 .5 12"], [3, 12]),
        (["0 .5 .5 .5 .5 0.93", "0 .5 .5 .5 .5 1"], [None, None]),
        (["0 .5 .5 .5 .5 0.93 3", "0 .5 .5 .5 .5 1 12"], [3, 12]),
        (["0 .5 .5 .5 .5 .1 .2 2 .3 .4 2", "0 .5 .5 .5 .5 .1 .2 2 .3 .4 2"], [None, None]),
    ],
)
def test_yolo_files_count_frames_from_one(folder: Path, rows: list[str], tracks: list[int | None]) -> None:
    """Ultralytics increments the frame number before it writes the file of a frame."""
    for number, row in zip((1, 12), rows, strict=True):
        (folder / f"clip_{number}.txt").write_text(row + "\n")
    objects = summarize(locate_objects([folder / "clip.avi"], regions=Regions(boxes=folder)))
    assert objects == [
        ("clip.avi", frame, (16, 12, 32, 24), track) for frame, track in zip((0, 11), tracks, strict=True)
    ]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("0 .1 .2 .3 .2 .3 .4 .1 .4", "this one has 9 words; polygons and rotated boxes"),  # rotated box
        ("0 .1 .2 .3 .2 .3 .4 .1 .4 .2 .5", "this one has 11 words; polygons"),  # five points
        ("0 .1 .2 .3 .2 .3 .4 .9", "this one has 8 words; polygons"),  # three points and a confidence
        ("0 .1 .2 .3 .2 .3 .4", "must be a whole number of at least 0, not '.4'"),  # three points
        ("0 .1 .2 .3 .2 12 3", "the confidence must be 0 to 1, not 12"),
        ("0 .1 .2 .3 .2 .1 .2 2 .3 .4 nan", "this one has 11 words"),
        ("0 .1 .2 .3", "this one has 4 words"),
        ("0 120 80 60 40", "must be fractions of the image, usually from 0 to 1, not 120 80 60 40"),  # pixels
        ("0 nan .5 .5 .5", "must be fractions of the image"),
        ("0 .5 .5 wide .5", "'wide' is not a number"),
    ],
)
def test_yolo_rows_that_are_not_boxes_are_refused(folder: Path, row: str, problem: str) -> None:
    path = folder / "a.txt"
    path.write_text(f"0 .5 .5 .5 .5\n{row}\n")
    with pytest.raises(InputError, match=f"^{re.escape(f'{path} line 2')}: .*{re.escape(problem)}"):
        locate_objects([folder / "a.png"], regions=Regions(boxes=path))


def test_an_earlier_lookup_does_not_change_the_match_of_a_yolo_file(folder: Path) -> None:
    """The file `clip_1_2.txt` could also belong to frame 2 of a video `clip_1`, which does not exist."""
    row = "0 .5 .5 .5 .5\n"
    for name in ("0/clip_1_2", "1/clip_1"):  # The files are read in this order.
        path = folder / "boxes" / f"{name}.txt"
        path.parent.mkdir(parents=True)
        path.write_text(row)
    objects = summarize(locate_objects([folder / "clip.avi"], regions=Regions(boxes=folder / "boxes")))
    assert objects == [("clip.avi", 0, (16, 12, 32, 24), None)]


def test_a_crop_is_the_same_in_all_images(folder: Path) -> None:
    regions = Regions(crop=parse_crop("4,5,30,20"))
    refs = locate_objects([folder / "clip.avi", folder / "a.png"], 6, regions)
    assert summarize(refs) == [
        ("clip.avi", 0, (4, 5, 30, 20), None),
        ("clip.avi", 6, (4, 5, 30, 20), None),
        ("a.png", None, (4, 5, 30, 20), None),
    ]
    with pytest.raises(InputError, match=r"crop is outside .*clip.avi, whose frames are 64 x 48 pixels"):
        locate_objects([folder / "clip.avi"], 6, Regions(crop=(64, 0, 5, 5)))


@pytest.mark.parametrize("text", ["", "1,2,3", "1,2,3,x", "1,2,0,4", "1,2,3,-4", "nan,1,2,3"])
def test_crops_that_are_not_four_numbers_are_rejected(text: str) -> None:
    with pytest.raises(InputError, match="--crop takes X,Y,WIDTH,HEIGHT"):
        parse_crop(text)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("boxes.csv", "frame,x,y,w,h\n1,2,3,4,5\n", None),
        ("boxes.csv", "frame,x,y,w\n", "the first line must name the columns image or frame"),
        ("boxes.csv", "x,y,w,h\n1,2,3,4\n", "the first line must name the columns image or frame"),
        ("boxes.csv", "frame,x,y,w,h\n", "contains no boxes"),
        ("boxes.csv", "frame,x,y,w,h\n1,2,3,4\n", r"line 2: '' is not a number"),
        ("boxes.csv", "frame,x,y,w,h\n1,2,3,4,5,,\n", None),
        (
            "boxes.csv",
            "frame,x,y,w,h\n1,10,5,20,5,90,0,80,0\n",
            "line 2 has 9 cells, but the first line names 5 columns",
        ),
        (
            "boxes.csv",
            "frame,x,y,w,h\n1.5,2,3,4,5\n",
            "line 2: the frame must be a whole number of at least 0, not '1.5'",
        ),
        ("boxes.csv", "frame,x,y,w,h\n1,2,3,-4,5\n", "line 2: the box must be four finite numbers"),
        ("boxes.csv", "frame,x,y,w,h,track\n1,2,3,4,5,one\n", "line 2: 'one' is not a number"),
        (
            "boxes.csv",
            "frame,x,y,w,h\n99,2,3,4,5\n",
            r"none of its boxes belongs to the 12 given images; the first",
        ),
        (
            "boxes.csv",
            "image,x,y,w,h\nclip.avi,2,3,4,5\n",
            "is a video, so the box needs a frame number",
        ),
        (
            "boxes.csv",
            "frame,x,y,w,h,track\n1,2,3,4,5,1\n2,2,3,4,5,\n",
            r"a box of .*#1 has a track, but a box of .*#2 has none",
        ),
        ("boxes.csv", "frame,x,y,w,h,track\n1,2,3,4,5,1\n1,2,3,4,5,1\n", "has two boxes of track 1"),
        ("boxes.txt", "0 .5 .5 .5\n", "line 1: a row must be 'class cx cy w h'"),
        ("boxes.json", "{", "is not valid JSON"),
        (
            "boxes.json",
            '{"images": [], "annotations": [{"image_id": 1, "bbox": [1, 2, 3, 4]}]}',
            "no image with",
        ),
        ("boxes.xml", "", "is not a box file; give a .json file"),
        ("", "", "there is no file or folder"),
    ],
)
def test_unusable_box_files_are_rejected_in_one_line(
    name: str, content: str, message: str | None, folder: Path
) -> None:
    path = folder / (name or "nowhere.csv")
    if name:
        path.write_text(content)
    if message is None:
        assert len(locate_objects([folder / "clip.avi"], regions=Regions(boxes=path))) == 1, "a valid file"
        return
    with pytest.raises(InputError, match=message) as caught:
        locate_objects([folder / "clip.avi"], regions=Regions(boxes=path))
    assert "\n" not in str(caught.value)


def test_regions_that_do_not_fit_each_other_or_the_inputs_are_rejected(folder: Path) -> None:
    with pytest.raises(InputError, match="cannot be combined; give only one"):
        Regions(crop=(0, 0, 1, 1), animals=1)
    path = write_coco(
        folder / "boxes.json",
        [{"id": 1, "file_name": "a.png"}],
        [{"image_id": 1, "bbox": [1, 2, 3, 4]}],
    )
    with pytest.raises(InputError, match="already have boxes"):
        locate_objects([path], regions=Regions(crop=(0, 0, 1, 1)))
    with pytest.raises(InputError, match=r"animals can only be tracked in videos, but .*a\.png is an image"):
        locate_objects([folder / "a.png"], regions=Regions(animals=1))
    (folder / "rows.csv").write_text("frame,x,y,w,h\n1,2,3,4,5\n")
    with pytest.raises(InputError, match=r"with several input files, each box needs .* column 'image'"):
        locate_objects([folder / "a.png", folder / "clip.avi"], regions=Regions(boxes=folder / "rows.csv"))
