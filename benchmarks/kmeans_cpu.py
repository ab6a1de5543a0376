"""K-means on the CPU: ours against faiss-cpu, the same vectors, iterations and restarts.

    pip install faiss-cpu
    python benchmarks/kmeans_cpu.py --threads 1 2 --out docs/results/kmeans_cpu.json

Vectors are unit vectors around overlapping centres, as descriptors are. Ours seeds by k-means++; faiss is run
both as it comes (random seeds) and with its own k-means++. Each program runs in turn, several times, and the
fastest counts: other work on the machine only ever makes it slower. Ours may stop early, faiss does not; with
so few iterations neither does. The cost is the sum of squared
distances to the nearest centroid, computed alike for all in float64.
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

# As in the command line: threads that spin long make a busy machine slow; read when torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import numpy as np
import torch
from torch.nn.functional import normalize

from selfmark.correspondence.kmeans import kmeans
from selfmark.run import write_json

SEED = 0
Fit = Callable[[torch.Tensor, int, int, int], torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--vectors", type=int, default=200_000)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--clusters", type=int, nargs="+", default=[30, 100])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    faiss = import_module("faiss")
    programs: dict[str, Fit] = {
        "selfmark": _ours,
        "faiss": _faiss(faiss, "RANDOM"),
        "faiss, k-means++": _faiss(faiss, "KMEANS_PLUS_PLUS"),
    }
    rows = []
    for dimensions, clusters, threads in product(arguments.dimensions, arguments.clusters, arguments.threads):
        torch.set_num_threads(threads)
        faiss.omp_set_num_threads(threads)
        vectors = generate(arguments.vectors, dimensions)
        runs: dict[str, list[Run]] = {name: [] for name in programs}
        for _ in range(arguments.repeats):
            for name, fit in programs.items():
                runs[name].append(_run(fit, vectors, clusters, arguments.iterations, arguments.restarts))
        for name, several in runs.items():
            row: dict[str, Any] = {
                "program": name,
                "dimensions": dimensions,
                "clusters": clusters,
                "threads": threads,
            }
            row["seconds"] = round(min(run.seconds for run in several), 2)
            row["processor_seconds"] = round(min(run.processor_seconds for run in several), 2)
            row["all_seconds"] = [round(run.seconds, 2) for run in several]
            row["cost"] = round(_cost(vectors, several[0].centroids), 1)
            rows.append(row)
            print(row, flush=True)
    write_json(
        {
            "script": "benchmarks/kmeans_cpu.py",
            "hardware": f"{os.cpu_count()} cores, {_processor()}",
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
            "rows": rows,
        },
        arguments.out,
    )


class Run(NamedTuple):
    """One K-means: its centroids [C, D], its wall clock, and the time of all processors together."""

    centroids: torch.Tensor
    seconds: float
    processor_seconds: float


def _run(fit: Fit, vectors: torch.Tensor, clusters: int, iterations: int, restarts: int) -> Run:
    wall, processor = time.perf_counter(), time.process_time()
    centroids = fit(vectors, clusters, iterations, restarts)
    return Run(centroids, time.perf_counter() - wall, time.process_time() - processor)


def generate(vectors: int, dimensions: int, centres: int = 200) -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED)
    directions = normalize(torch.randn(centres, dimensions, generator=generator), dim=1)
    which = torch.randint(centres, (vectors,), generator=generator)
    noise = torch.randn(vectors, dimensions, generator=generator) / dimensions**0.5
    return normalize(directions[which] + noise, dim=1)


def _ours(vectors: torch.Tensor, clusters: int, iterations: int, restarts: int) -> torch.Tensor:
    return kmeans(vectors, clusters, iterations, restarts, torch.Generator().manual_seed(SEED))


def _faiss(faiss: Any, seeding: str) -> Fit:
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


def _cost(vectors: torch.Tensor, centroids: torch.Tensor) -> float:
    blocks = vectors.double().split(10_000)
    return float(
        sum(torch.cdist(block, centroids.double()).min(dim=1).values.square().sum() for block in blocks)
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
