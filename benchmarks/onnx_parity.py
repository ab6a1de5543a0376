"""Measure exported ONNX files: differences of landmarks from torch, file sizes, and time per image.

    python benchmarks/onnx_parity.py --out docs/results/onnx_parity.json --run NAME RUN IMAGES

NAME becomes part of the names of the rows. RUN is a run folder, and IMAGES is a folder of images. The script
crops and resizes 100 of the images to random sizes, from smaller to much larger than the network input. It
passes each result to `Detector` and to ONNX Runtime. Rows give differences in pixels of these images and in
network pixels; one network pixel covers several pixels of a large image. Speed is the median CPU time of one
thread.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from cpu_rows import SEED, Rows, write_rows

from selfmark.detector import Detector
from selfmark.export.onnx_export import write_float16, write_float32
from selfmark.images.decode import read_image
from selfmark.images.sources import list_images

NUM_IMAGES = 100
SIDES = 60, 1600  # range of the longer side of the resized images, pixels
PHOTO = 3000, 4000  # height and width of the photograph that is timed, pixels
CALLS = 5  # timed calls, of which the median counts

Pixels = npt.NDArray[np.uint8]


def main() -> None:
    """Measure the exported files of one run and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", nargs=3, metavar=("NAME", "RUN", "IMAGES"), required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    name, run, images = arguments.run
    rows = compare(name, Detector.load(run), make_random_crops(images))
    rounded = {name: (round(value, 5), unit) for name, (value, unit) in rows.items()}
    versions = {"onnxruntime": onnxruntime.__version__, "opencv": cv2.__version__}
    write_rows(rounded, arguments.out, "onnx_parity.py", "1 core", versions)


def make_random_crops(images: str) -> list[Pixels]:
    """Return random crops of real images, each resized to a random size."""
    rng = np.random.default_rng(SEED)
    refs = list_images([images])
    crops = []
    for row in np.linspace(0, len(refs) - 1, NUM_IMAGES).round().astype(int):
        image = read_image(refs[row].path, np.inf)
        height, width = image.shape[:2]
        top, left, bottom, right = (rng.integers(0, side // 4 + 1) for side in (height, width, height, width))
        part = image[top : height - bottom, left : width - right]
        side = np.exp(rng.uniform(*np.log(SIDES)))
        scale = side / max(part.shape[:2])
        method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
        crops.append(np.asarray(cv2.resize(part, None, fx=scale, fy=scale, interpolation=method), np.uint8))
    return crops


def compare(name: str, detector: Detector, images: list[Pixels]) -> Rows:
    """Compare the landmarks of both precisions with torch's, and measure file sizes and speed."""
    rows: Rows = {}
    size = detector.card.images.size
    expected = [detector(image).xy[0] for image in images]
    scales = np.array([max(image.shape[:2]) / size for image in images])[:, None]
    rows[f"onnx_{name}_images"] = len(images), "images"
    rows[f"onnx_{name}_sizes"] = len({image.shape for image in images}), "sizes"
    with tempfile.TemporaryDirectory() as folder:
        for precision, write in (("float32", write_float32), ("float16", write_float16)):
            path = write(detector, Path(folder) / f"{precision}.onnx")
            session = _open_session(path)
            predicted = [_predict_points(session, image)[0] for image in images]
            distance = np.linalg.norm(np.stack(predicted) - np.stack(expected), axis=-1)
            for title, values in (("", distance), ("_network", distance / scales)):
                unit = "px of the network" if title else "px of the image"
                rows[f"onnx_{name}_{precision}{title}_median"] = float(np.median(values)), unit
                rows[f"onnx_{name}_{precision}{title}_99"] = float(np.percentile(values, 99)), unit
                rows[f"onnx_{name}_{precision}{title}_max"] = float(values.max()), unit
            percent_within = 100 * float((distance.max(axis=1) < 0.05).mean())
            rows[f"onnx_{name}_{precision}_within"] = percent_within, "% of images within 0.05 px everywhere"
            rows[f"onnx_{name}_{precision}_file"] = path.stat().st_size / 1e6, "MB"
            photo = cv2.resize(images[0], PHOTO[::-1], interpolation=cv2.INTER_CUBIC)
            square = cv2.resize(images[0], (size, size), interpolation=cv2.INTER_AREA)
            for title, image in (("photo_12mp", photo), ("square", square)):
                rows[f"onnx_{name}_{precision}_{title}"] = _measure_milliseconds(session, image), "ms"
    return rows


def _open_session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options)


def _predict_points(session: Any, image: Pixels) -> Any:
    feed = {"images": image[None], "boxes": np.zeros((1, 4), np.float32)}
    return session.run(["points"], feed)[0]


def _measure_milliseconds(session: Any, image: Pixels) -> float:
    durations = []
    for _ in range(CALLS):
        started = time.process_time()
        _predict_points(session, np.asarray(image))
        durations.append(time.process_time() - started)
    return 1000 * statistics.median(durations)


if __name__ == "__main__":
    main()
