"""List all readers of untrusted files, with valid files and ways to corrupt them."""

from __future__ import annotations

import importlib.util
import io
import json
import random
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import torch
import yaml
from PIL import Image
from safetensors.torch import save

from selfmark.config import Images, Network, preset, to_dict
from selfmark.errors import InputError
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.images import video_av, video_opencv
from selfmark.images.box_files import read_boxes
from selfmark.images.decode import read_image
from selfmark.images.mp4_header import check_mp4_header
from selfmark.images.sources import list_images
from selfmark.keypoints.points_file import read_points_file
from selfmark.model.card import ModelCard
from selfmark.multiview.view_boxes import read_views
from selfmark.naming.corrections import CorrectionFile
from selfmark.paper.datasets.numpy_files import load_arrays
from selfmark.paper.datasets.torch7_files import read_tensor
from selfmark.report.run_report import collect_metrics
from selfmark.run.files import FORMAT, read_json
from selfmark.run.image_list import refs_from_json
from selfmark.run.tensor_files import write_tensors
from selfmark.watch_page.run_state import RunState
from tests.fuzz.mutate import Mutator, change_bytes, change_json, change_lines
from tests.fuzz.round_trips import (
    round_trip_card,
    round_trip_config,
    round_trip_edits,
    round_trip_tables,
    round_trip_tensors,
)

SEEDS = Path(__file__).parent / "seeds"
PICTURES = ("a.png", "b.png", "sub/c.png")


@dataclass(frozen=True)
class Reader:
    """A reader under test.

    file:     name of the file to read
    read:     function that reads the file
    seeds:    contents of valid files
    mutators: functions that corrupt these contents
    cost:     how many times slower this reader is than most readers; it gets fewer files by this factor
    requires: optional library that the reader needs; empty if it needs none
    """

    file: str
    read: Callable[[Path], object]
    seeds: tuple[bytes, ...]
    mutators: tuple[Mutator, ...]
    cost: int = 1
    requires: str = ""

    def is_available(self) -> bool:
        """Return True if the reader needs no optional library, or if this library is installed."""
        return not self.requires or importlib.util.find_spec(self.requires) is not None


def make_pictures(folder: Path) -> None:
    """Write the pictures that the label files refer to."""
    for name in ("sub", "corrections"):
        (folder / name).mkdir(exist_ok=True)
    for name in PICTURES:
        Image.new("RGB", (8, 6), "red").save(folder / name)


def build_readers(folder: Path) -> dict[str, Reader]:
    """Return all readers; `folder` must contain the pictures of `make_pictures`."""
    refs = list_images([folder / name for name in PICTURES])
    names = [str(ref.path) for ref in refs]
    regions = np.array([[0.0, 0.0, 8.0, 6.0]] * 3)

    def read_labels(path: Path) -> object:
        return read_ground_truth(path, refs)

    return {
        "images": Reader("image.png", lambda path: read_image(path, 4.0), _make_images(), (change_bytes,)),
        "coco as images": Reader(
            "set.json", lambda path: list_images([path]), _make_coco(), (change_bytes, change_json)
        ),
        "coco as labels": Reader("labels.json", read_labels, _make_coco(), (change_bytes, change_json)),
        "deeplabcut csv": Reader("labels.csv", read_labels, _make_dlc(), (change_bytes,)),
        "label studio": Reader("studio.json", read_labels, _make_studio(), (change_bytes, change_json)),
        "model.json": Reader("model.json", round_trip_card, _make_model(), (change_bytes, change_json)),
        "config.yaml": Reader(
            "config.yaml", round_trip_config, _make_config(), (change_bytes, _change_as_json), cost=5
        ),
        "text list": Reader("list.txt", lambda path: list_images([path]), _make_list(), (change_bytes,)),
        "points csv": Reader(
            "points.csv",
            lambda path: read_points_file(path, names, regions, 64),
            _make_points(),
            (change_bytes,),
        ),
        "safetensors": Reader(
            "tensors.safetensors", round_trip_tensors, _make_tensors(folder), (change_bytes,)
        ),
        "boxes csv": Reader("boxes.csv", read_boxes, _make_boxes(), (change_bytes,)),
        "numpy arrays": Reader("arrays.npz", load_arrays, _make_arrays(), (change_bytes,)),
        "torch 7 tensor": Reader("tensor.t7", read_tensor, _make_torch7(), (change_bytes,)),
        "mp4 header": Reader("header.mp4", check_mp4_header, _make_videos(folder), (change_bytes,)),
        "video": Reader(
            "video.mp4", _read_video(video_av), _make_videos(folder), (change_bytes,), cost=10, requires="av"
        ),
        "video by opencv": Reader(
            "frames.mp4", _read_video(video_opencv), _make_videos(folder), (change_bytes,), cost=10
        ),
        "naming edits": Reader("edits.json", round_trip_edits, _make_edits(), (change_bytes, change_json)),
        "written tables": Reader(
            "prediction.json", round_trip_tables, _make_prediction(), (change_bytes, change_json), cost=2
        ),
        "unsigned safetensors": Reader(
            "unsigned.safetensors", round_trip_tensors, _make_tensors_without_checksum(), (change_bytes,)
        ),
        "metrics.json": Reader("metrics.json", _read_metrics, _make_metrics(), (change_json,), cost=5),
        "images.json": Reader("images.json", _read_refs, _make_refs(), (change_bytes, change_json)),
        "views.json": Reader(
            "views.json", lambda path: read_views(path.parent), _make_views(), (change_bytes, change_json)
        ),
        "log.jsonl": Reader("log.jsonl", _read_log, _make_log(), (change_bytes, change_lines), cost=2),
        "corrections": Reader(
            "corrections/labels.json",
            lambda path: CorrectionFile(path.parent.parent).read(3),
            _make_corrections(),
            (change_bytes, change_json),
        ),
    }


def _read_video(reader: ModuleType) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        frames, *_ = reader.probe_video(path)
        return [frame for frame, _ in reader.read_frames(path, range(min(frames, 3)))]

    return read


def _read_metrics(path: Path) -> object:
    return collect_metrics(read_json(path), 5, path)


def _read_refs(path: Path) -> object:
    try:
        return refs_from_json(read_json(path))
    except ValueError as error:  # `Run` reports it with the name of the file
        raise InputError(str(error)) from error


def _read_log(path: Path) -> object:
    """Return what the page of `selfmark watch` shows for a log; a log never causes an error."""
    state = RunState(path.parent)
    state.update()
    return json.dumps(state.to_json(), allow_nan=False).encode()


def _make_tensors_without_checksum() -> tuple[bytes, ...]:
    """Return a file without a checksum, so that corrupted versions of it reach the parser."""
    return (save({"a": torch.arange(6.0).view(2, 3), "b": torch.zeros(0, 2)}, {"iteration": "3"}),)


def _make_metrics() -> tuple[bytes, ...]:
    content = (SEEDS / "metrics.json").read_bytes()
    labeled = json.loads(content)
    kept = ("test_images_used", "errors", "guessing", "headline", "stage1")
    entry = {name: labeled[name] for name in kept} | {"normaliser": "points:36,45"}
    labeled |= {"inter_ocular": {"eye_centers": entry, "points_41_46": entry | {"normaliser": "box"}}}
    return content, json.dumps(labeled).encode()


def _make_refs() -> tuple[bytes, ...]:
    return (
        json.dumps(
            [
                {"path": "a.png", "frame": None, "box": None, "track": None},
                {"path": "v.mp4", "frame": 7, "box": [0.0, 1.5, 4, 4], "track": 2, "film": ["v", 3]},
            ]
        ).encode(),
    )


def _make_views() -> tuple[bytes, ...]:
    views = [{"name": "top", "box": [0, 0, 8, 3]}, {"name": "bottom", "box": [0.0, 3.0, 8.0, 3.0]}]
    return (json.dumps({"format": FORMAT, "views": views}).encode(),)


def _make_log() -> tuple[bytes, ...]:
    events: list[dict[str, Any]] = [
        {"time": 1.0, "event": "start", "images": 3, "K": 5, "preset": "tiny", "device": "cpu"},
        {"time": 2.0, "event": "plan", "rounds": 1, "stages": {"warmup": 4, "round": 4, "stage2": 4}},
        {"time": 3.0, "event": "images", "used": 3},
        {"time": 3.5, "event": "progress", "stage": "keypoints", "round": 0, "done": 3, "of": 3},
        *(
            {"event": "train", "stage": "warmup", "round": 0, "iteration": number, "start": 0, "stop": 4}
            | {"time": 4.0 + number, "seconds": 0.5 * number, "loss": {"total": 1 / (1 + number), "b": None}}
            for number in range(4)
        ),
        {"time": 9.0, "event": "estimate", "seconds_per_iteration": {"round": 0.1}, "after": 3, "text": "x"},
        {"time": 9.5, "event": "preview", "path": "preview/warmup.png", "step": "warmup"},
        {"time": 9.9, "event": "verdict", "verdict": "good", "text": "fine"},
    ]
    return ("".join(json.dumps(event) + "\n" for event in events).encode(),)


def _make_corrections() -> tuple[bytes, ...]:
    image = {"id": 1, "file_name": "a.png", "width": 8, "height": 6, "frame": 3}
    own_values = {"done": True, "moved": [0], "absent": [2]}
    annotation = {"id": 1, "image_id": 1, "category_id": 1, "keypoints": [1.5, 2, 2, 3, 4, 2, 0, 0, 0]}
    annotation |= {"iscrowd": 0, "bbox": [0, 0, 8, 6], "track_id": 1, "selfmark": own_values}
    category = {"id": 1, "name": "object", "keypoints": ["nose", "left", "right"], "flip_idx": [0, 2, 1]}
    return (json.dumps({"images": [image], "annotations": [annotation], "categories": [category]}).encode(),)


def _make_boxes() -> tuple[bytes, ...]:
    return (
        b"image,x,y,w,h\na.png,1,2,3,4\nsub/c.png,0,0,5.5,5\n",
        b"video,frame,left,top,width,height,track\nv.mp4,0,1,2,3,4,0\nv.mp4,7,1,2,3,4,1\n",
    )


def _make_arrays() -> tuple[bytes, ...]:
    single_file, several_files, compressed_file = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(single_file, np.arange(12.0).reshape(3, 2, 2))
    np.savez(several_files, names=np.array(["a.png", "b.png"]), xy=np.zeros((2, 5, 2)))
    np.savez_compressed(compressed_file, xy=np.zeros((20, 5, 2), np.float32))
    return single_file.getvalue(), several_files.getvalue(), compressed_file.getvalue()


def _make_torch7() -> tuple[bytes, ...]:
    def encode_header(number: int, name: bytes) -> bytes:
        version = struct.pack("<ii", 4, number) + struct.pack("<i", 3) + b"V 1"
        return version + struct.pack("<i", len(name)) + name

    values = np.arange(6, dtype="<f8")
    tensor = encode_header(1, b"torch.DoubleTensor") + struct.pack("<i5q", 2, 3, 2, 2, 1, 1)
    return (tensor + encode_header(2, b"torch.DoubleStorage") + struct.pack("<q", 6) + values.tobytes(),)


def _make_videos(folder: Path) -> tuple[bytes, ...]:
    path = folder / "seed.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 25, (32, 32))
    for number in range(4):
        writer.write(np.full((32, 32, 3), 60 * number, np.uint8))
    writer.release()
    content = path.read_bytes()
    path.unlink()
    return (content,)


def _make_edits() -> tuple[bytes, ...]:
    edits = [
        {"kind": "rename", "landmark": 0, "name": "nose"},
        {"kind": "pair", "landmark": 1, "partner": 2},
    ]
    return (json.dumps(edits).encode(),)


def _make_prediction() -> tuple[bytes, ...]:
    names = ["nose", "left eye", "=1+1", '"quoted", too', "line\nbreak"]
    values = {"names": names, "image": "photos/a b.png", "xy": [[1.5, 2], [3, 4], [0, 0], [-1, 9.25], [7, 7]]}
    return (json.dumps(values).encode(),)


def _make_images() -> tuple[bytes, ...]:
    rng = np.random.default_rng(0)
    colors = Image.fromarray(rng.integers(0, 255, (9, 11, 3), dtype=np.uint8))
    image_16_bit = Image.fromarray(rng.integers(0, 65535, (7, 5)).astype(np.uint16))
    rotated = Image.Exif()
    rotated[0x0112] = 6  # the tag of the orientation
    examples: list[tuple[Image.Image, str, dict[str, Any]]] = [
        (colors, "PNG", {}),
        (colors, "JPEG", {"exif": rotated}),
        (colors, "JPEG", {"progressive": True}),
        (colors.convert("P"), "GIF", {}),
        (colors.convert("CMYK"), "TIFF", {"compression": "tiff_lzw"}),
        (image_16_bit, "TIFF", {}),
        (image_16_bit, "PNG", {}),
        (colors, "BMP", {}),
        (colors.convert("RGBA"), "WEBP", {}),
        (colors.convert("L"), "PPM", {}),
        (colors.convert("1"), "PNG", {}),
    ]
    return tuple(_encode(image, kind, options) for image, kind, options in examples)


def _encode(image: Image.Image, kind: str, options: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def _make_coco() -> tuple[bytes, ...]:
    images = [
        {"id": number, "file_name": name, "width": 8, "height": 6} for number, name in enumerate(PICTURES)
    ]
    points = [1.5, 2, 2, 0, 0, 0, 3, 4.25, 1]
    annotations = [
        {"id": number, "image_id": number, "category_id": 1, "keypoints": points, "bbox": [0, 0, 8, 6]}
        for number in range(3)
    ]
    category = {"id": 1, "name": "cat", "keypoints": ["nose", "left", "right"], "flip_idx": [0, 2, 1]}
    category |= {"normaliser": "points", "normaliser_points": [1, 2]}
    complete = {"images": images, "annotations": annotations, "categories": [category]}
    minimal = {"images": images[:1], "annotations": [{"image_id": 0, "keypoints": points, "pose": "left"}]}
    return json.dumps(complete).encode(), json.dumps(minimal).encode()


def _make_dlc() -> tuple[bytes, ...]:
    single = (
        "scorer,me,me,me,me\nbodyparts,nose,nose,tail,tail\ncoords,x,y,x,y\na.png,1,2,3,4\nsub/c.png,,,5,5\n"
    )
    several = (
        "scorer,,,me,me,me,me\nindividuals,,,one,one,two,two\nbodyparts,,,nose,nose,nose,nose\n"
        "coords,,,x,y,x,y\nlabeled-data,v,a.png,1,2,,\nlabeled-data,v,b.png,1.5,2.5,,\n"
    )
    return single.encode(), several.encode()


def _make_studio() -> tuple[bytes, ...]:
    size = {"original_width": 8, "original_height": 6}
    box = {"id": "r", "type": "rectanglelabels", "value": {"x": 0, "y": 0, "width": 50, "height": 50}, **size}
    point = {"type": "keypointlabels", "value": {"x": 20, "y": 30, "keypointlabels": ["nose"]}, **size}
    tasks = [
        {"data": {"image": "/data/upload/1/0123abcd-a.png"}, "annotations": [{"result": [point]}]},
        {
            "data": {"image": "/data/local-files/?d=sub/c.png"},
            "annotations": [{"result": [box, point | {"parentID": "r"}], "was_canceled": False}],
        },
    ]
    return (json.dumps(tasks).encode(),)


def _make_model() -> tuple[bytes, ...]:
    card = ModelCard(
        ("nose", "left", "right"), (0, 2, 1), ((0, 1),), Images(), Network(), "parabola", True, {"seed": 1}
    )
    return (json.dumps({"format": FORMAT, "selfmark": "0", "K": 3, **asdict(card)}).encode(),)


def _make_config() -> tuple[bytes, ...]:
    settings = to_dict(preset("tiny"))
    sections = ("preset", "K", "M", "images", "network", "rounds", "flip")
    all_settings = yaml.safe_dump({name: settings[name] for name in sections}, sort_keys=False)
    return all_settings.encode(), b"K: 5\nM: 20\nimages: {size: 64}\n"


def _change_as_json(content: bytes, rng: random.Random) -> bytes:
    """Change settings as a JSON document, which is also valid YAML."""
    return change_json(json.dumps(yaml.safe_load(content)).encode(), rng)


def _make_list() -> tuple[bytes, ...]:
    return b"# pictures\na.png\nb.png,0,0,4,4\nsub/c.png,1.5,1,2,2\n", "\ufeffa.png\r\nb.png\r\n".encode()


def _make_points() -> tuple[bytes, ...]:
    return b"image,x,y\na.png,1,2\nsub/c.png,3,4\n", b"image,x,y,score\nb.png,1.5,2.5,0.9\na.png,0,0,1\n"


def _make_tensors(folder: Path) -> tuple[bytes, ...]:
    path = folder / "seed.safetensors"
    write_tensors({"a": torch.arange(6.0).view(2, 3), "b": torch.zeros(0, 2)}, {"iteration": "3"}, path)
    content = path.read_bytes()
    path.unlink()
    return (content,)
