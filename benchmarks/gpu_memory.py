"""Check on a real GPU that a run finishes if the user follows the out-of-memory advice of `discover`.

    python benchmarks/gpu_memory.py --gigabytes 2 --batch 64 --out gpu_memory.json

The script limits the GPU memory of each process. A short discovery starts with a batch that is far too large
for this memory. Whenever the run stops for lack of memory, the script executes the command that the message
suggests, until the run finishes.
"""

from __future__ import annotations

import argparse
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import provenance
import torch

from selfmark.demo.scene import generate_scene, write_scene
from selfmark.run.files import to_json, write_json
from selfmark.run.folder import Run

SHORT = {  # settings of a run that takes seconds
    "warmup.iterations": 30,
    "rounds.count": 1,
    "rounds.iterations": 30,
    "stage2.iterations": 30,
    "runtime.checkpoint_every": 10,
    "K": 5,
    "heatmaps.threshold": 1e-4,  # after so few iterations, keypoints have low scores
    "M": 20,
}
# Program that runs the command line with part of the GPU memory. The fraction is its first argument.
LIMITED = (
    "import sys, torch; fraction, *sys.argv[1:] = sys.argv[1:]; "
    "torch.cuda.set_per_process_memory_fraction(float(fraction)); "
    "from selfmark.cli.entry import main; main()"
)
ADVICE = re.compile(r"'selfmark (discover .*?)'", re.DOTALL)
MAX_ATTEMPTS = 12


def main() -> None:
    """Run the attempts and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0, help="GPU memory of each process, GiB")
    parser.add_argument("--batch", type=int, default=64, help="batch size of the first attempt")
    parser.add_argument("--images", type=int, default=64, help="number of generated images")
    parser.add_argument(
        "--commit", default="", help="commit of the code; by default, that of the git checkout"
    )
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    fraction = arguments.gigabytes * 2**30 / torch.cuda.get_device_properties(0).total_memory
    with tempfile.TemporaryDirectory() as folder:
        rows = follow_advice(Path(folder), fraction, arguments.batch, arguments.images)
    result = {
        "script": "benchmarks/gpu_memory.py",
        "what": "attempts at one discovery with limited GPU memory, each as the previous one advised",
        "gigabytes": arguments.gigabytes,
        "attempts": rows,
        "hardware": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "commit": arguments.commit or provenance.read_commit(),
    }
    if arguments.out:
        write_json(result, arguments.out)
    print(to_json(result))
    if rows[-1]["code"] != 0:
        sys.exit(1)


def follow_advice(folder: Path, fraction: float, batch: int, images: int) -> list[dict[str, object]]:
    """Repeat the run as its messages advise, until it succeeds or a message contains no advice.

    Args:
        folder: folder for the images and the run.
        fraction: fraction of the GPU memory that the process may use.
        batch: batch size of the first attempt.
        images: number of generated images.

    Returns:
        One row per attempt; at most `MAX_ATTEMPTS`.
    """
    write_scene(generate_scene(images), folder / "toys")
    run = folder / "run"
    settings = {**SHORT, "runtime.batch": batch, "stage2.batch": batch}
    words = ["discover", str(folder / "toys" / "images"), "-o", str(run), "--preset", "fast"]
    words += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    rows: list[dict[str, object]] = []
    while len(rows) < MAX_ATTEMPTS:
        started = time.monotonic()
        finished = subprocess.run(
            [sys.executable, "-c", LIMITED, str(fraction), *words],
            capture_output=True,
            text=True,
            check=False,
        )
        message = " ".join(finished.stderr.split()) if finished.returncode else ""
        events = Run.open(run).events() if (run / "run.json").exists() else []
        iterations = [event["iteration"] for event in events if event["event"] == "checkpoint"]
        rows.append(
            {
                "settings": [word for word in words if "batch" in word],
                "code": finished.returncode,
                "message": message[-400:].replace(str(folder), ""),
                "last_checkpoint": iterations[-1] if iterations else 0,
                "seconds": round(time.monotonic() - started, 1),
            }
        )
        print(rows[-1], flush=True)
        advice = ADVICE.search(message)
        if finished.returncode == 0 or advice is None:
            break
        words = shlex.split(advice.group(1))
    return rows


if __name__ == "__main__":
    main()
