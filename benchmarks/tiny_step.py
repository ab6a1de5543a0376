r"""Compare the CPU time of a training step of the preset `tiny` with that of another checkout of selfmark.

    git worktree add /tmp/baseline 53c75c5
    PYTHONPATH=src python benchmarks/tiny_step.py --baseline /tmp/baseline --out tiny_step.json

Both checkouts train Stage 1 and Stage 2 on the same generated images. They take turns, so that other work on
the machine affects both alike, and every turn is a new process. For each checkout, a row gives the CPU
seconds per step (`_cpu_s`, median over turns), the wall-clock seconds per step of the fastest turn (`_s`),
and a digest of the weights after the steps (`_digest`). Equal digests show that a change does not affect
results. `ratio` is the CPU time of the baseline divided by that of this checkout (median over turns).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import provenance

STAGES = ("round", "stage 2")  # "round" is a round of Stage 1
IMAGES = 32  # number of generated images


def main() -> None:
    """Let both checkouts take turns, print the result as JSON, and write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--baseline", type=Path, required=True, help="folder of the other checkout")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.steps, arguments.threads)))
        return
    here = Path(__file__).resolve().parents[1]
    sources = {"baseline": arguments.baseline / "src", "current": here / "src"}
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
    for _ in range(arguments.turns):
        for name, source in sources.items():
            turns[name].append(_run(source, arguments))
            print(name, turns[name][-1], file=sys.stderr, flush=True)
    rows = [_summarize(stage, turns) for stage in STAGES]
    record = {
        "script": "benchmarks/tiny_step.py",
        "hardware": f"{arguments.threads} of {provenance.describe_processor()}",
        "versions": {"python": platform.python_version(), "torch": turns["current"][0]["torch"]},
        "commit": provenance.read_commit(),
        "baseline": str(arguments.baseline),
        "seed": 0,
        "rows": rows,
    }
    print(json.dumps(record, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


def _run(source: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the checkout whose package is in `source`, in a new process."""
    words = [sys.executable, __file__, "--measure", "--baseline", str(arguments.baseline)]
    words += ["--steps", str(arguments.steps), "--threads", str(arguments.threads)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        "OMP_NUM_THREADS": str(arguments.threads),
        "GOMP_SPINCOUNT": "10000",  # as in commands of both checkouts
    }
    result = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    measured: dict[str, Any] = json.loads(result.stdout)
    return measured


def _summarize(stage: str, turns: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    row: dict[str, Any] = {"stage": stage}
    for name, results in turns.items():
        row[f"{name}_cpu_s"] = round(statistics.median(result[stage]["cpu"] for result in results), 4)
        row[f"{name}_s"] = round(min(result[stage]["wall"] for result in results), 4)
        row[f"{name}_digest"] = results[0][stage]["digest"]
    ratios = [
        before[stage]["cpu"] / after[stage]["cpu"]
        for before, after in zip(turns["baseline"], turns["current"], strict=True)
    ]
    rounded = [round(ratio, 3) for ratio in ratios]
    return row | {"ratio": round(statistics.median(ratios), 3), "ratios": rounded}


def measure(num_steps: int, threads: int) -> dict[str, Any]:
    """Train both stages with the imported selfmark; return CPU and wall-clock seconds per step, and digests.

    The first three steps of a stage are not measured. The process is set up as by the commands of that
    checkout.
    """
    if find_spec("selfmark.run.process_tuning"):  # older checkouts have no such module
        from selfmark.run.process_tuning import tune_process

        tune_process()
    import torch

    from selfmark.config import preset
    from selfmark.demo.scene import generate_scene
    from selfmark.images.feed import PixelFeed
    from selfmark.inspection import step_timing
    from selfmark.train.engine import Phase, run_phase

    torch.set_num_threads(threads)
    config = preset("tiny")
    pixels = torch.from_numpy(generate_scene(IMAGES, config.images.size, 0).images)
    feed = PixelFeed(pixels.permute(0, 3, 1, 2).contiguous(), torch.device("cpu"))
    results: dict[str, Any] = {"torch": torch.__version__}
    for stage in STAGES:
        torch.manual_seed(0)
        generator = torch.Generator("cpu").manual_seed(0)
        if stage == "round":
            state, task = step_timing._build_stage1(config, feed, generator)
        else:
            state, task = step_timing._build_stage2(config, feed, config.K, generator)

        def run(first: int, last: int) -> None:
            phase = Phase("timing", 0, first, last, ())
            run_phase(state, phase, task, config.runtime, lambda *_: None, lambda: None)  # noqa: B023

        run(0, 3)
        started, cpu_before = time.monotonic(), time.process_time()
        run(3, 3 + num_steps)
        cpu, wall = time.process_time() - cpu_before, time.monotonic() - started
        digest = hashlib.sha256()
        for parameter in state.network.parameters():
            digest.update(parameter.detach().contiguous().numpy().tobytes())
        results[stage] = {
            "cpu": cpu / num_steps,
            "wall": wall / num_steps,
            "digest": digest.hexdigest()[:16],
        }
    return results


if __name__ == "__main__":
    main()
