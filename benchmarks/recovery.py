"""How long one correspondence recovery takes beyond the network passes, and how much memory it needs.

    python benchmarks/recovery.py --images 1000 10000 50000 200000 --out docs/results/recovery.json

Descriptors are generated on the device: every image shows 30 of 60 landmarks, each a direction of its own,
with so much noise that clusters overlap; a second descriptor stands for the mirror image. Times are those of
`recover` (filter with K, label with M) with the settings of the preset `paper`, after one small recovery as
a warm-up.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from selfmark.config import preset
from selfmark.correspondence import recovery
from selfmark.correspondence.kmeans import nearest_centroid
from selfmark.correspondence.recovery import DescribedPoints, recover
from selfmark.devices import pick
from selfmark.points import Keypoints
from selfmark.run import write_json

SEED = 0
LANDMARKS, SHOWN, DIMENSIONS = 60, 30, 256
NOISE = 1.0  # length of the noise added to a direction of length one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", default=[200_000])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    device = pick(arguments.device)
    measure(500, device)
    rows = []
    for images in arguments.images:
        found = measure(images, device)
        rows += [{"name": f"{name}_{_short(images)}", **row} for name, row in found.items()]
        print(
            f"{images:>8,} images  "
            + "  ".join(f"{name} {row['value']} {row['unit']}" for name, row in found.items())
        )
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
            "commit": _commit(),
            "seed": SEED,
            "data": f"{SHOWN} points per image, two {DIMENSIONS}-d descriptors each, {LANDMARKS} landmarks",
            "rows": rows,
        },
        arguments.out,
    )


def measure(images: int, device: torch.device) -> dict[str, dict[str, Any]]:
    """Seconds of one recovery, of its parts, and the memory it took beyond the descriptors."""
    config = preset("paper")
    described = generate(images, device)
    generator = torch.Generator(device).manual_seed(SEED)
    parts: dict[str, float] = {}
    before = _reset_peak(device)
    with _timed(parts, "fit", "kmeans", device), _timed(parts, "assign", "assign", device):
        _wait(device)
        started = time.perf_counter()
        labelled = recover(described, config.K, config.M, config.correspondence, generator)
        _wait(device)
        seconds = time.perf_counter() - started
    row = {
        "recovery": _value(seconds, "s"),
        "recovery_fit": _value(parts["fit"], "s"),
        "recovery_assign": _value(parts["assign"], "s"),
        "recovery_labelled": _value(float((labelled.label >= 0).float().mean()), "share of kept points"),
    }
    if device.type == "cuda":
        row["recovery_descriptors"] = _value(before / 2**30, "GiB")
        row["recovery_peak"] = _value(torch.cuda.max_memory_allocated() / 2**30, "GiB")
        assert labelled.centroids is not None
        row["recovery_tf32_changes"] = _value(
            _changed_by_tf32(described, labelled.centroids), "share of points"
        )
    return row


def generate(images: int, device: torch.device) -> DescribedPoints:
    """Points of known landmarks in every image, with descriptors of the image and of its mirror image."""
    generator = torch.Generator(device).manual_seed(SEED)
    directions = normalize(torch.randn(2, LANDMARKS, DIMENSIONS, generator=generator, device=device), dim=-1)
    shown = (
        torch.rand(images, LANDMARKS, generator=generator, device=device).argsort(dim=1)[:, :SHOWN].flatten()
    )

    def seen(centres: torch.Tensor) -> torch.Tensor:
        vectors = torch.randn(len(shown), DIMENSIONS, generator=generator, device=device)
        vectors.mul_(NOISE / DIMENSIONS**0.5)
        for rows in torch.arange(len(shown), device=device).split(1_000_000):
            vectors[rows] = normalize(vectors[rows] + centres[shown[rows]], dim=-1)
        return vectors

    points = Keypoints(
        xy=torch.rand(len(shown), 2, generator=generator, device=device) * 256,
        image_index=torch.arange(images, device=device).repeat_interleave(SHOWN),
        score=torch.ones(len(shown), device=device),
        descriptor=seen(directions[0]),
    )
    return DescribedPoints(points, seen(directions[1]))


def _changed_by_tf32(described: DescribedPoints, centroids: torch.Tensor) -> float:
    """Share of points that products in TF32 would put into another cluster."""
    assert described.points.descriptor is not None
    vectors = described.points.descriptor[:1_000_000]
    exact = nearest_centroid(vectors, centroids).cluster
    torch.set_float32_matmul_precision("high")
    rounded = (centroids.square().sum(dim=1) - 2 * vectors @ centroids.T).argmin(dim=1)
    torch.set_float32_matmul_precision("highest")
    return float((exact != rounded).float().mean())


@contextmanager
def _timed(parts: dict[str, float], name: str, function: str, device: torch.device) -> Iterator[None]:
    """Add up the seconds spent in one of the recovery's functions."""
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


def _reset_peak(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _value(value: float, unit: str) -> dict[str, Any]:
    return {"value": float(f"{value:.4g}"), "unit": unit}


def _short(images: int) -> str:
    return f"{images // 1000}k" if images >= 1000 else str(images)


def _commit() -> str:
    words = ["git", "rev-parse", "--short", "HEAD"]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
