"""Compare selfmark's K-means on the CPU with faiss-cpu, using the same vectors, iterations and restarts.

    pip install faiss-cpu
    python benchmarks/kmeans_cpu.py --threads 1 2 --out docs/results/kmeans_cpu.json

The data are unit vectors around random centers. They are so noisy that no run converges before its last
iteration. All programs therefore run the same number of iterations, although selfmark would stop at
convergence and faiss would not. selfmark seeds with k-means++. faiss runs twice: with its default random
seeding and with its own k-means++. All settings and programs take turns several times. The fastest run of
each counts, because other work on the machine can only slow a run down. The cost is the sum of squared
distances to the nearest centroid, computed in float64 for all programs.

The package keeps its own K-means on the CPU unless faiss is faster in at least one setting; see `decide`.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import provenance

# As in the command line, limit how long idle OpenMP threads spin, because spinning slows down a busy machine.
# The variable must be set before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import numpy as np
import torch
from torch.nn.functional import normalize

from selfmark.correspondence.kmeans import kmeans
from selfmark.run.files import write_json

SEED = 0
# Fits K-means to vectors [N, D] with numbers of clusters, iterations and restarts; returns the centroids.
Fit = Callable[[torch.Tensor, int, int, int], torch.Tensor]


def main() -> None:
    """Run all programs with all settings and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--vectors", type=int, default=50_000)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--clusters", type=int, nargs="+", default=[30, 100])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    faiss = import_module("faiss")
    programs: dict[str, Fit] = {
        "selfmark": _fit_selfmark,
        "faiss": _build_faiss_fit(faiss, "RANDOM"),
        "faiss, k-means++": _build_faiss_fit(faiss, "KMEANS_PLUS_PLUS"),
    }
    settings = list(product(arguments.dimensions, arguments.clusters, arguments.threads))
    vectors = {
        dimensions: generate_vectors(arguments.vectors, dimensions) for dimensions in arguments.dimensions
    }
    runs: dict[tuple[int, int, int, str], list[Run]] = {}
    for _, (dimensions, clusters, threads), name in product(range(arguments.repeats), settings, programs):
        torch.set_num_threads(threads)
        faiss.omp_set_num_threads(threads)
        run = _time_fit(
            programs[name], vectors[dimensions], clusters, arguments.iterations, arguments.restarts
        )
        runs.setdefault((dimensions, clusters, threads, name), []).append(run)
    rows = [
        {"program": name, "dimensions": dimensions, "clusters": clusters, "threads": threads}
        | _summarize(vectors[dimensions], repeated)
        for (dimensions, clusters, threads, name), repeated in runs.items()
    ]
    write_json(
        {
            "script": "benchmarks/kmeans_cpu.py",
            "hardware": provenance.describe_processor(),
            "versions": {
                "torch": torch.__version__,
                "faiss": faiss.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "seed": SEED,
            "vectors": arguments.vectors,
            "iterations": arguments.iterations,
            "restarts": arguments.restarts,
            "repeats": arguments.repeats,
            "decision": decide(rows),
            "rows": rows,
        },
        arguments.out,
    )
    for row in rows:
        print(row)
    print(decide(rows))


def _summarize(vectors: torch.Tensor, runs: list[Run]) -> dict[str, Any]:
    return {
        "seconds": round(min(run.seconds for run in runs), 3),
        "processor_seconds": round(min(run.processor_seconds for run in runs), 3),
        "all_seconds": [round(run.seconds, 2) for run in runs],
        "cost": round(_compute_cost(vectors, runs[0].centroids), 1),
    }


def decide(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return which K-means the package should use, and the time of faiss relative to selfmark's.

    There is one ratio per setting. It uses the faster of the two faiss variants.
    """
    settings: dict[str, dict[str, float]] = {}
    for row in rows:
        name = f"{row['dimensions']} dimensions, {row['clusters']} clusters, {row['threads']} threads"
        settings.setdefault(name, {})[row["program"]] = row["seconds"]
    ratios = {}
    for name, seconds in settings.items():
        selfmark_seconds = seconds.pop("selfmark")
        ratios[name] = round(min(seconds.values()) / selfmark_seconds, 2)
    # In the results, "torch" stands for selfmark's own K-means.
    return {"use": "torch" if min(ratios.values()) >= 1 else "faiss", "faiss_over_torch": ratios}


class Run(NamedTuple):
    """Result of one run of K-means: centroids [C, D], wall-clock seconds, and CPU seconds over all cores."""

    centroids: torch.Tensor
    seconds: float
    processor_seconds: float


def _time_fit(fit: Fit, vectors: torch.Tensor, clusters: int, iterations: int, restarts: int) -> Run:
    started, cpu_before = time.perf_counter(), time.process_time()
    centroids = fit(vectors, clusters, iterations, restarts)
    return Run(centroids, time.perf_counter() - started, time.process_time() - cpu_before)


def generate_vectors(vectors: int, dimensions: int, centers: int = 200) -> torch.Tensor:
    """Generate noisy unit vectors [vectors, dimensions] around random centers."""
    generator = torch.Generator().manual_seed(SEED)
    directions = normalize(torch.randn(centers, dimensions, generator=generator), dim=1)
    center_index = torch.randint(centers, (vectors,), generator=generator)
    noise = 2 * torch.randn(vectors, dimensions, generator=generator) / dimensions**0.5
    return normalize(directions[center_index] + noise, dim=1)


def _fit_selfmark(vectors: torch.Tensor, clusters: int, iterations: int, restarts: int) -> torch.Tensor:
    return kmeans(vectors, clusters, iterations, restarts, torch.Generator().manual_seed(SEED))


def _build_faiss_fit(faiss: Any, seeding: str) -> Fit:
    def fit(vectors: torch.Tensor, clusters: int, iterations: int, restarts: int) -> torch.Tensor:
        program = faiss.Kmeans(
            vectors.shape[1],
            clusters,
            niter=iterations,
            nredo=restarts,
            seed=SEED,
            max_points_per_centroid=len(vectors),  # by default faiss fits on a sample
            init_method=getattr(faiss, f"ClusteringInitMethod_{seeding}"),
        )
        program.train(vectors.numpy())
        return torch.from_numpy(program.centroids.copy())

    return fit


def _compute_cost(vectors: torch.Tensor, centroids: torch.Tensor) -> float:
    blocks = torch.split(vectors.double(), 10_000)
    return float(
        sum(torch.cdist(block, centroids.double()).min(dim=1).values.square().sum() for block in blocks)
    )


if __name__ == "__main__":
    main()
