"""Measure how many images per second the encoders describe.

    PYTHONPATH=src:benchmarks python benchmarks/features/encoder_speed.py --out speed.json

Images of 256 x 256 pixels are on the device before the measurement. Images and weights are random, because
they do not influence the speed. On a GPU, the encoders compute in bf16.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import provenance
import torch

from selfmark.features.encoder import Encoder
from selfmark.features.loading import FEATURES, build_encoder
from selfmark.run.files import write_json

SIZE = 256  # pixels
DURATION = 5.0  # minimum seconds per encoder


def main() -> None:
    """Measure the encoders and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", nargs="+", default=list(FEATURES))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = []
    for name in arguments.features:
        speed = measure(build_encoder(name).to(device), arguments.batch, device)
        rows.append({"features": name, "images_per_second": round(speed, 1)})
        print(rows[-1], flush=True)
    results = {
        "script": "benchmarks/features/encoder_speed.py",
        "what": f"images of {SIZE} x {SIZE} pixels described per second, batches of {arguments.batch}",
        "hardware": provenance.describe_device(),
        "precision": "bf16" if device.type == "cuda" else "float32",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "commit": provenance.read_commit(),
        "rows": rows,
    }
    if arguments.out:
        write_json(results, arguments.out)


@torch.no_grad()
def measure(encoder: Encoder, batch: int, device: torch.device) -> float:
    """Return how many images per second `forward_and_describe` describes, after a warm-up."""
    images = torch.rand(batch, 3, SIZE, SIZE, device=device)

    def run_batch() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            encoder.forward_and_describe(images)
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(3 if device.type == "cuda" else 1):
        run_batch()
    start, count = time.monotonic(), 0
    while time.monotonic() - start < DURATION:
        run_batch()
        count += batch
    return count / (time.monotonic() - start)


if __name__ == "__main__":
    main()
