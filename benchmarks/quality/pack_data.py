"""Pack the training images of data sets into small archives, to copy them to another machine.

    export PYTHONPATH=src:benchmarks:benchmarks/quality
    python benchmarks/quality/pack_data.py --data-folder DATA --output FOLDER [--data NAME[:EVERY] ...]

On the other machine, use FOLDER as the data folder of `compare_methods.py --part validation`. The archives
have no test images. If EVERY is n, only every n-th training image is packed. The archive of mouse-openfield
differs: it has all labeled training images and every n-th frame of the video, both as crops around the mouse,
so that the other machine need not decode a video.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from animals import MOUSE_SIDE
from quality_data import prepare_working_copy

from selfmark.run.files import read_json

_DEFAULT = ("faces-yt68", "faces-mtfl-aflw:2", "birds-cub", "flies-dpk", "mouse-openfield:2")
_CROP_SIDE = 220  # pixels; enough for selfmark, which crops 1.2 times the box of 150 pixels
_JPEG_QUALITY = 92

Content = dict[str, Any]


def main() -> None:
    """Write one archive per data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--data", nargs="+", default=list(_DEFAULT), metavar="NAME[:EVERY]")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for entry in arguments.data:
        name, _, every = entry.partition(":")
        path = arguments.output / f"{name}.zip"
        with tempfile.TemporaryDirectory() as work, zipfile.ZipFile(path, "w") as archive:
            folder = prepare_working_copy(name, arguments.data_folder, Path(work))
            pack = _pack_mouse if name == "mouse-openfield" else _pack_images
            pack(folder, archive, int(every or 1))
            archive.writestr(".ready", "")
        print(path, f"{path.stat().st_size / 2**20:.1f} MiB", flush=True)


def _pack_images(folder: Path, archive: zipfile.ZipFile, every: int) -> None:
    """Add the files of every n-th training image, and their labels."""
    content = _take(read_json(folder / "train.json"), every)
    for image in content["images"]:
        archive.write(folder / "images" / image["file_name"], f"images/{image['file_name']}")
    _write(archive, "train.json", content)


def _pack_mouse(folder: Path, archive: zipfile.ZipFile, every: int) -> None:
    """Add crops of all labeled training images and of every n-th frame of the video."""
    train = read_json(folder / "frames-train.json")
    pictures = {
        image["id"]: cv2.imread(str(folder / "images" / image["file_name"])) for image in train["images"]
    }
    _write(archive, "frames-train.json", _crop(archive, train, pictures, "train"))
    video = _take(read_json(folder / "frames-video.json"), every)
    frames = {image["frame"]: image["id"] for image in video["images"]}
    reader, number, pictures = cv2.VideoCapture(str(folder / "video.mp4")), 0, {}
    while len(pictures) < len(frames):
        success, picture = reader.read()
        if not success:
            raise SystemExit(f"{folder / 'video.mp4'} ends at frame {number}")
        if number in frames:
            pictures[frames[number]] = picture
        number += 1
    _write(archive, "frames-video.json", _crop(archive, video, pictures, "video"))


def _crop(archive: zipfile.ZipFile, content: Content, pictures: dict[int, Any], part: str) -> Content:
    """Add a crop around each box as a JPEG file; return the labels in pixels of the crops."""
    boxes = {entry["image_id"]: entry for entry in content["annotations"]}
    images, annotations = [], []
    for image in content["images"]:
        entry, picture = boxes[image["id"]], pictures[image["id"]]
        x, y = (np.array(entry["bbox"][:2]) + (MOUSE_SIDE - _CROP_SIDE) / 2).round().astype(int)
        left, top = max(x, 0), max(y, 0)
        # A crop does not extend beyond the picture. Where selfmark needs pixels outside the crop, it fills
        # them as it would fill pixels outside the picture.
        cropped = picture[top : max(y + _CROP_SIDE, 0), left : max(x + _CROP_SIDE, 0)]
        name = f"{part}/{image['id']:05d}.jpg"
        success, encoded = cv2.imencode(".jpg", cropped, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
        assert success
        archive.writestr(f"images/{name}", encoded.tobytes())
        height, width = cropped.shape[:2]
        images.append({"id": image["id"], "file_name": name, "width": width, "height": height})
        annotations.append(
            entry | {"bbox": [entry["bbox"][0] - left, entry["bbox"][1] - top, *entry["bbox"][2:]]}
        )
        if "keypoints" in entry:
            points = np.array(entry["keypoints"], np.float64).reshape(-1, 3)
            points[points[:, 2] > 0, :2] -= (left, top)
            annotations[-1] = annotations[-1] | {"keypoints": points.ravel().tolist()}
    return {**content, "images": images, "annotations": annotations}


def _take(content: Content, every: int) -> Content:
    """Return the labels of every n-th image."""
    images = content["images"][::every]
    kept = {image["id"] for image in images}
    return {
        **content,
        "images": images,
        "annotations": [entry for entry in content["annotations"] if entry["image_id"] in kept],
    }


def _write(archive: zipfile.ZipFile, name: str, content: Content) -> None:
    archive.writestr(name, json.dumps(content, separators=(",", ":")), zipfile.ZIP_DEFLATED, compresslevel=9)


if __name__ == "__main__":
    main()
