"""Measure speed and accuracy of ONNX exports of detectors with EfficientNet-Lite features.

    OMP_NUM_THREADS=1 PYTHONPATH=src:benchmarks python benchmarks/features/onnx_encoders.py --out results.json

The images show the demo's toy animal. Two detectors are exported: a zero-shot detector whose centroids are
the features of random cells, and an encoder with a head that is trained briefly to predict the same
landmarks. Distances are between the landmarks of a runtime and those of torch, in network pixels.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnxruntime
import provenance
import torch
from torch import Tensor

from selfmark.config import Features, Images, Network, Student
from selfmark.demo.scene import generate_scene
from selfmark.detector import Detector
from selfmark.export.onnx_detector import OnnxDetector
from selfmark.export.onnx_export import write_float16, write_float32, write_int8
from selfmark.features.encoder import Encoder
from selfmark.features.loading import load_encoder
from selfmark.model.card import ModelCard
from selfmark.model.feature_network import FeaturePsi, ZeroShotPsi
from selfmark.model.heatmaps import draw_gaussians, to_cells
from selfmark.run.files import write_json

LANDMARKS = 8
IMAGES = 48  # the first half trains the head and calibrates int8, the second half is measured
STEPS = 60  # training steps of the head
REPEATS = 5  # measurements, of which the fastest is reported


def main() -> None:
    """Measure all runtimes and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", default="efficientnet-lite0")
    parser.add_argument("--sizes", nargs="+", type=int, default=[128, 256])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for size in arguments.sizes:
        for row in measure(arguments.features, size):
            rows.append(row)
            print(row, flush=True)
    results = {
        "script": "benchmarks/features/onnx_encoders.py",
        "what": "CPU milliseconds per image on one core, and how far landmarks move compared with torch",
        "hardware": provenance.describe_processor(),
        "features": arguments.features,
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "commit": provenance.read_commit(),
        "rows": rows,
    }
    if arguments.out:
        write_json(results, arguments.out)


def measure(features: str, size: int) -> Iterator[dict[str, object]]:
    """Yield a row for each network and runtime, with and without averaging over the mirror image."""
    images = torch.from_numpy(generate_scene(IMAGES, size, seed=5).images).permute(0, 3, 1, 2).contiguous()
    sample, test = images.chunk(2)
    for detector in make_detectors(load_encoder(features), features, sample):
        for flip in (True, False):
            detector = Detector(detector.psi, replace(detector.card, flip_test=flip))
            expected = detector.locate(test).xy
            for runtime, runner in export_all(detector, sample):
                distance = (runner.locate(test).xy - expected).norm(dim=-1)
                yield {
                    "network": detector.card.architecture,
                    "size": size,
                    "mirror_image": flip,
                    "runtime": runtime,
                    "ms_per_image": round(time_images(runner, test), 2),
                    "moved_median_px": round(float(distance.median()), 4),
                    "moved_95_percent_px": round(float(distance.quantile(0.95)), 4),
                }


def make_detectors(encoder: Encoder, features: str, images: Tensor) -> list[Detector]:
    """Return a zero-shot detector and one with a head that imitates it."""
    torch.manual_seed(0)
    size = images.shape[-1]
    names = tuple(f"landmark_{index}" for index in range(LANDMARKS))
    mirror = tuple(reversed(range(LANDMARKS)))
    card = ModelCard(names, mirror, (), Images(size=size), Network(), "centroid", False, {})
    card = replace(card, architecture="zero-shot", features=Features(name=features))
    with torch.no_grad():
        cells = encoder.describe(images[:LANDMARKS].float() / 255).flatten(2)
        head_features = encoder(images.float() / 255)
    chosen = torch.randint(0, cells.shape[2], (LANDMARKS,))
    centroids = cells[torch.arange(LANDMARKS), :, chosen]
    zero_shot = Detector(ZeroShotPsi(encoder, centroids, card.features), card)
    student = Student()
    psi = FeaturePsi(encoder, student, LANDMARKS)
    target = draw_gaussians(to_cells(zero_shot.locate(images).xy), size // 4, student.sigma)
    target = torch.nn.functional.avg_pool2d(target, 2)  # the head has cells of 8 pixels
    optimizer = torch.optim.Adam(psi.head.parameters(), lr=student.lr)
    for _ in range(STEPS):
        loss = (psi.head(head_features * student.feature_scale) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [zero_shot, Detector(psi, replace(card, architecture="encoder", student=student))]


def export_all(detector: Detector, sample: Tensor) -> Iterator[tuple[str, Detector]]:
    """Yield the name of each runtime with the detector that uses it."""
    yield "torch", detector
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        yield "onnx", OnnxDetector(detector, write_float32(detector, path))
        yield "onnx, half precision", OnnxDetector(detector, write_float16(detector, path))
        if isinstance(detector.psi, FeaturePsi):
            yield "onnx-int8", OnnxDetector(detector, write_int8(detector, sample, path))


def time_images(detector: Detector, images: Tensor) -> float:
    """Return the CPU milliseconds per image after a warm-up. Other programs have little influence on it."""
    detector.locate(images)
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        detector.locate(images)
        seconds.append(time.process_time() - start)
    return 1000 * min(seconds) / len(images)


if __name__ == "__main__":
    main()
