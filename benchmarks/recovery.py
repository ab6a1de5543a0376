"""Measure the time and memory of one correspondence recovery, without the network passes.

    python benchmarks/recovery.py --out docs/results/recovery.json

The data are synthetic. Each image shows 30 of 60 landmarks. Each landmark has a random unit vector. The
descriptor of a point is the vector of its landmark plus noise, which is so strong that clusters overlap. Each
point has a second descriptor for the mirror image.

The script times `recover_correspondence` (filter points with K clusters, then label the remaining points with
M clusters) with the settings of the preset `paper`. A small recovery runs first as a warm-up. On a GPU, each
recovery runs twice: once with the descriptors on the GPU and once with the same descriptors in host memory.
Peak memory counts all tensors on the GPU, including the descriptors.
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
NUM_LANDMARKS, LANDMARKS_PER_IMAGE, DESCRIPTOR_SIZE = 60, 30, 256
NOISE = 1.0  # expected length of the noise vector added to a unit vector


def main() -> None:
    """Measure recoveries of several sizes and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", default=[1_000, 10_000, 50_000, 200_000])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    device = select_device(arguments.device)
    measure(min(500, *arguments.images), device)
    results = {images: measure(images, device) for images in arguments.images}
    rows = [
        {"name": f"{name}_{_abbreviate(images)}", **row}
        for images, values in results.items()
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
            "commit": provenance.read_commit(),
            "seed": SEED,
            "data": f"{LANDMARKS_PER_IMAGE} points per image, two {DESCRIPTOR_SIZE}-d descriptors each, "
            f"{NUM_LANDMARKS} landmarks",
            "rows": rows,
        },
        arguments.out,
    )
    print_table(results)


def measure(images: int, device: torch.device) -> dict[str, dict[str, Any]]:
    """Measure one recovery and, on a GPU, the same recovery with descriptors in host memory.

    Returns:
        A mapping from the names of rows to their values and units.
    """
    described = generate_points(images, device)
    labeled, values = time_recovery(described, device, "recovery")
    if device.type != "cuda":
        return values
    assert described.points.descriptor is not None
    assert described.mirrored is not None
    assert labeled.centroids is not None
    size = described.points.descriptor.nbytes + described.mirrored.nbytes
    values["recovery_descriptors"] = _build_entry(size / 2**30, "GiB")
    values["recovery_tf32_changes"] = _build_entry(
        _measure_tf32_changes(described, labeled.centroids), "fraction of points"
    )
    described = DescribedPoints(described.points.to("cpu"), described.mirrored.cpu())
    expected, centroids = labeled.label.cpu(), labeled.centroids.cpu()
    del labeled
    labeled, host_values = time_recovery(described, device, "recovery_host")
    assert labeled.centroids is not None
    is_same = torch.equal(labeled.label.cpu(), expected) and torch.equal(labeled.centroids.cpu(), centroids)
    host_values["recovery_host_same"] = _build_entry(
        float(is_same), "1 if labels and centroids are identical"
    )
    return values | host_values


def time_recovery(
    described: DescribedPoints, device: torch.device, name: str
) -> tuple[LabeledPoints, dict[str, dict[str, Any]]]:
    """Run one recovery; return its result, and rows with the time of each step and the peak GPU memory."""
    config = preset("paper")
    generator = torch.Generator(device).manual_seed(SEED)
    step_seconds: dict[str, float] = {}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with (
        _accumulate_time(step_seconds, "fit", "kmeans", device),
        _accumulate_time(step_seconds, "assign", "assign_clusters", device),
    ):
        _synchronize(device)
        started = time.perf_counter()
        labeled = recover_correspondence(described, config.K, config.M, config.correspondence, generator)
        _synchronize(device)
        seconds = time.perf_counter() - started
    values = {
        name: _build_entry(seconds, "s"),
        f"{name}_fit": _build_entry(step_seconds["fit"], "s"),
        f"{name}_assign": _build_entry(step_seconds["assign"], "s"),
        f"{name}_labeled": _build_entry(
            float((labeled.label >= 0).float().mean()), "fraction of kept points"
        ),
    }
    if device.type == "cuda":
        values[f"{name}_peak"] = _build_entry(torch.cuda.max_memory_allocated() / 2**30, "GiB")
    return labeled, values


def print_table(results: dict[int, dict[str, dict[str, Any]]]) -> None:
    """Print one line per number of images and location of the descriptors."""
    suffixes = ("", "_fit", "_assign", "_peak")  # Each suffix of a row's name is a column of the table.
    print(f"{'images':>8}  {'descriptors':11}  {'s':>6}  {'fit s':>6}  {'assign s':>8}  {'GPU peak GiB':>12}")
    for images, values in results.items():
        for where, name in (("on device", "recovery"), ("on host", "recovery_host")):
            if name in values:
                entries = [values.get(name + suffix) for suffix in suffixes]
                cells = ["" if entry is None else f"{entry['value']:.3g}" for entry in entries]
                print(
                    f"{images:>8,}  {where:11}  {cells[0]:>6}  {cells[1]:>6}  {cells[2]:>8}  {cells[3]:>12}"
                )


def generate_points(images: int, device: torch.device) -> DescribedPoints:
    """Generate points of known landmarks with descriptors for each image and its mirror image.

    Args:
        images: Number of images.
        device: Device of the points and descriptors.
    """
    generator = torch.Generator(device).manual_seed(SEED)
    directions = normalize(
        torch.randn(2, NUM_LANDMARKS, DESCRIPTOR_SIZE, generator=generator, device=device), dim=-1
    )
    landmark = (
        torch.rand(images, NUM_LANDMARKS, generator=generator, device=device)
        .argsort(dim=1)[:, :LANDMARKS_PER_IMAGE]
        .flatten()
    )

    def generate_descriptors(centers: torch.Tensor) -> torch.Tensor:
        vectors = torch.randn(len(landmark), DESCRIPTOR_SIZE, generator=generator, device=device)
        vectors.mul_(NOISE / DESCRIPTOR_SIZE**0.5)
        for rows in torch.split(torch.arange(len(landmark), device=device), 1_000_000):
            vectors[rows] = normalize(vectors[rows] + centers[landmark[rows]], dim=-1)
        return vectors

    points = Keypoints(
        xy=torch.rand(len(landmark), 2, generator=generator, device=device) * 256,
        image_index=torch.arange(images, device=device).repeat_interleave(LANDMARKS_PER_IMAGE),
        score=torch.ones(len(landmark), device=device),
        descriptor=generate_descriptors(directions[0]),
    )
    return DescribedPoints(points, generate_descriptors(directions[1]))


def _measure_tf32_changes(described: DescribedPoints, centroids: torch.Tensor) -> float:
    """Return the fraction of points that TF32 matrix products would assign to another cluster."""
    assert described.points.descriptor is not None
    vectors = described.points.descriptor[:1_000_000]
    exact_cluster = nearest_centroid(vectors, centroids).cluster
    torch.set_float32_matmul_precision("high")
    tf32_cluster = (centroids.square().sum(dim=1) - 2 * vectors @ centroids.T).argmin(dim=1)
    torch.set_float32_matmul_precision("highest")
    return float((exact_cluster != tf32_cluster).float().mean())


@contextmanager
def _accumulate_time(
    step_seconds: dict[str, float], name: str, function: str, device: torch.device
) -> Iterator[None]:
    """Add the seconds spent in one function of the recovery module to `step_seconds[name]`."""
    original_function: Callable[..., Any] = getattr(recovery, function)

    def timed(*arguments: Any) -> Any:
        _synchronize(device)
        started = time.perf_counter()
        result = original_function(*arguments)
        _synchronize(device)
        step_seconds[name] = step_seconds.get(name, 0.0) + time.perf_counter() - started
        return result

    setattr(recovery, function, timed)
    try:
        yield
    finally:
        setattr(recovery, function, original_function)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _build_entry(value: float, unit: str) -> dict[str, Any]:
    return {"value": float(f"{value:.4g}"), "unit": unit}


def _abbreviate(images: int) -> str:
    return f"{images // 1000}k" if images >= 1000 else str(images)


if __name__ == "__main__":
    main()
