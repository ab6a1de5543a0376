"""Measure the time and memory of one correspondence recovery, without the network passes.

    python benchmarks/recovery.py --out docs/results/recovery.json

Every image shows 30 of 60 landmarks. Each landmark has a random direction, and the noise is so strong that
clusters overlap. A second descriptor stands for the mirror image. Times are those of `recover_correspondence`
(filter with K, label with M) with the settings of the preset `paper`, after one small recovery as a warm-up.
On a GPU each recovery runs twice: with the descriptors on the device, and with the same ones in host memory.
The peak includes all tensors on the GPU, also the descriptors.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import provenance
import torch
from torch.nn.functional import normalize

from selfmark.config import preset
from selfmark.correspondence import recovery
from selfmark.correspondence.kmeans import nearest_centroid
from selfmark.correspondence.recovery import DescribedPoints, recover_correspondence
from selfmark.points import Keypoints, LabeledPoints
from selfmark.run.devices import select_device
from selfmark.run.files import write_json

SEED = 0
LANDMARKS, SHOWN, DIMENSIONS = 60, 30, 256
NOISE = 1.0  # length of the noise added to a direction of length one


def main() -> None:
    """Measure recoveries of several sizes and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", default=[1_000, 10_000, 50_000, 200_000])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    device = select_device(arguments.device)
    measure(min(500, *arguments.images), device)
    found = {images: measure(images, device) for images in arguments.images}
    rows = [
        {"name": f"{name}_{_short(images)}", **row}
        for images, values in found.items()
        for name, row in values.items()
    ]
    write_json(
        {
            "script": "benchmarks/recovery.py",
            "hardware": torch.cuda.get_device_name()
            if device.type == "cuda"
            else f"CPU, {torch.get_num_threads()} threads",
            "versions": {
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "commit": provenance.commit(),
            "seed": SEED,
            "data": f"{SHOWN} points per image, two {DIMENSIONS}-d descriptors each, {LANDMARKS} landmarks",
            "rows": rows,
        },
        arguments.out,
    )
    print_table(found)


def measure(images: int, device: torch.device) -> dict[str, dict[str, Any]]:
    """Measure one recovery and, on a GPU, the same one with descriptors in host memory."""
    described = generate(images, device)
    labeled, found = recover_timed(described, device, "recovery")
    if device.type != "cuda":
        return found
    assert described.points.descriptor is not None
    assert described.mirrored is not None
    assert labeled.centroids is not None
    size = described.points.descriptor.nbytes + described.mirrored.nbytes
    found["recovery_descriptors"] = _value(size / 2**30, "GiB")
    found["recovery_tf32_changes"] = _value(
        _changed_by_tf32(described, labeled.centroids), "fraction of points"
    )
    described = DescribedPoints(described.points.to("cpu"), described.mirrored.cpu())
    expected, centroids = labeled.label.cpu(), labeled.centroids.cpu()
    del labeled
    labeled, values = recover_timed(described, device, "recovery_host")
    assert labeled.centroids is not None
    same = torch.equal(labeled.label.cpu(), expected) and torch.equal(labeled.centroids.cpu(), centroids)
    return found | values | {"recovery_host_same": _value(float(same), "1: the same labels and centroids")}


def recover_timed(
    described: DescribedPoints, device: torch.device, name: str
) -> tuple[LabeledPoints, dict[str, dict[str, Any]]]:
    """Run one recovery and return its result, its seconds, those of its parts, and the peak GPU memory."""
    config = preset("paper")
    generator = torch.Generator(device).manual_seed(SEED)
    parts: dict[str, float] = {}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with _timed(parts, "fit", "kmeans", device), _timed(parts, "assign", "assign_clusters", device):
        _wait(device)
        started = time.perf_counter()
        labeled = recover_correspondence(described, config.K, config.M, config.correspondence, generator)
        _wait(device)
        seconds = time.perf_counter() - started
    values = {
        name: _value(seconds, "s"),
        f"{name}_fit": _value(parts["fit"], "s"),
        f"{name}_assign": _value(parts["assign"], "s"),
        f"{name}_labeled": _value(float((labeled.label >= 0).float().mean()), "fraction of kept points"),
    }
    if device.type == "cuda":
        values[f"{name}_peak"] = _value(torch.cuda.max_memory_allocated() / 2**30, "GiB")
    return labeled, values


def print_table(found: dict[int, dict[str, dict[str, Any]]]) -> None:
    """Print one line per size and location of the descriptors."""
    columns = ("", "_fit", "_assign", "_peak")
    print(f"{'images':>8}  {'descriptors':11}  {'s':>6}  {'fit s':>6}  {'assign s':>8}  {'GPU peak GiB':>12}")
    for images, values in found.items():
        for where, name in (("on device", "recovery"), ("on host", "recovery_host")):
            if name in values:
                cells = [f"{values[name + c]['value']:.3g}" if name + c in values else "" for c in columns]
                print(
                    f"{images:>8,}  {where:11}  {cells[0]:>6}  {cells[1]:>6}  {cells[2]:>8}  {cells[3]:>12}"
                )


def generate(images: int, device: torch.device) -> DescribedPoints:
    """Generate points of known landmarks, with descriptors of each image and of its mirror image."""
    generator = torch.Generator(device).manual_seed(SEED)
    directions = normalize(torch.randn(2, LANDMARKS, DIMENSIONS, generator=generator, device=device), dim=-1)
    shown = (
        torch.rand(images, LANDMARKS, generator=generator, device=device).argsort(dim=1)[:, :SHOWN].flatten()
    )

    def add_noise(centers: torch.Tensor) -> torch.Tensor:
        vectors = torch.randn(len(shown), DIMENSIONS, generator=generator, device=device)
        vectors.mul_(NOISE / DIMENSIONS**0.5)
        for rows in torch.split(torch.arange(len(shown), device=device), 1_000_000):
            vectors[rows] = normalize(vectors[rows] + centers[shown[rows]], dim=-1)
        return vectors

    points = Keypoints(
        xy=torch.rand(len(shown), 2, generator=generator, device=device) * 256,
        image_index=torch.arange(images, device=device).repeat_interleave(SHOWN),
        score=torch.ones(len(shown), device=device),
        descriptor=add_noise(directions[0]),
    )
    return DescribedPoints(points, add_noise(directions[1]))


def _changed_by_tf32(described: DescribedPoints, centroids: torch.Tensor) -> float:
    """Return the fraction of points that TF32 products would assign to another cluster."""
    assert described.points.descriptor is not None
    vectors = described.points.descriptor[:1_000_000]
    exact = nearest_centroid(vectors, centroids).cluster
    torch.set_float32_matmul_precision("high")
    rounded = (centroids.square().sum(dim=1) - 2 * vectors @ centroids.T).argmin(dim=1)
    torch.set_float32_matmul_precision("highest")
    return float((exact != rounded).float().mean())


@contextmanager
def _timed(parts: dict[str, float], name: str, function: str, device: torch.device) -> Iterator[None]:
    """Sum the seconds spent in one function of the recovery module."""
    original: Callable[..., Any] = getattr(recovery, function)

    def timed(*arguments: Any) -> Any:
        _wait(device)
        started = time.perf_counter()
        result = original(*arguments)
        _wait(device)
        parts[name] = parts.get(name, 0.0) + time.perf_counter() - started
        return result

    setattr(recovery, function, timed)
    try:
        yield
    finally:
        setattr(recovery, function, original)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _value(value: float, unit: str) -> dict[str, Any]:
    return {"value": float(f"{value:.4g}"), "unit": unit}


def _short(images: int) -> str:
    return f"{images // 1000}k" if images >= 1000 else str(images)


if __name__ == "__main__":
    main()
