"""Measure the first training steps after a cold start, with and without parallel compilation of kernels.

    PYTHONPATH=src:benchmarks python benchmarks/compile_kernels.py --out compile.json   # needs a GPU

Each row comes from a new process that makes four steps; the fourth is the first that replays a CUDA graph.
`seconds` is the time of the whole process, `steps_seconds` that of the four steps and their preparation.
`compiled` counts the kernels that were compiled by the training itself and by other threads. Rows:

serial    empty compilation cache, kernels are compiled when they are first launched
parallel  empty compilation cache, threads compile the kernels (`selfmark.train.kernel_compilation`)
cached    a second process with the cache of `parallel`

`same_code` says whether every kernel compiled in `serial` was also compiled in `parallel`, bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import provenance
import torch
from speed import time_training_steps

from selfmark.config import preset
from selfmark.run.files import write_json
from selfmark.train.kernel_compilation import compile_kernels

PRESET, PAIRS, STEPS, IMAGES = "fast", 16, 4, 64


def main() -> None:
    """Run the three processes and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--train", choices=["serial", "parallel", "cached"], help="used by the new process")
    arguments = parser.parse_args()
    if arguments.train is not None:
        train(is_parallel=arguments.train != "serial")
        return
    with tempfile.TemporaryDirectory() as work:
        caches = {"serial": Path(work, "a"), "parallel": Path(work, "b"), "cached": Path(work, "b")}
        rows = [measure(name, cache) for name, cache in caches.items()]
        serial, parallel = hash_code(caches["serial"]), hash_code(caches["parallel"])
    result = {
        "script": "benchmarks/compile_kernels.py",
        "hardware": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "commit": provenance.read_commit(),
        "rows": rows,
        "kernels": {"serial": len(serial), "parallel": len(parallel)},
        "same_code": serial <= parallel,
    }
    print({key: result[key] for key in ("kernels", "same_code")})
    if arguments.out is not None:
        write_json(result, arguments.out)


def measure(name: str, cache: Path) -> dict[str, Any]:
    """Train for a few steps in a new process and return its row."""
    words = [sys.executable, __file__, "--train", name]
    started = time.perf_counter()
    done = subprocess.run(
        words,
        check=True,
        env=os.environ | {"TRITON_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
    )
    row = {"name": name, "seconds": round(time.perf_counter() - started, 2)}
    row |= json.loads(done.stdout.splitlines()[-1])
    print(row, flush=True)
    return row


def train(is_parallel: bool) -> None:
    """Train for a few steps. Print, as JSON, their duration and the number of compiled kernels by thread."""
    import triton

    compiled = {"by_training": 0, "in_other_threads": 0}

    def count(*, cache_hit: bool, **details: Any) -> None:
        if not cache_hit:
            # A thread of torch runs the backward pass; its kernels count as compiled by the training.
            is_helper = threading.current_thread().name.startswith("selfmark-compile")
            compiled["in_other_threads" if is_helper else "by_training"] += 1

    triton.knobs.compilation.listener = count
    config, device = preset(PRESET), torch.device("cuda")
    started = time.perf_counter()
    with compile_kernels(config, device) if is_parallel else nullcontext():
        time_training_steps(config, device, PAIRS, STEPS, IMAGES)
        torch.cuda.synchronize()
        steps_seconds = time.perf_counter() - started
    print(json.dumps({"steps_seconds": round(steps_seconds, 2), "compiled": compiled}))


def hash_code(cache: Path) -> set[tuple[str, str]]:
    """Return the name and a hash of the binary code of all kernels in a compilation cache."""
    return {
        (str(path.relative_to(cache)), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in cache.rglob("*.cubin")
    }


if __name__ == "__main__":
    main()
