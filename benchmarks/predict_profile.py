"""Profile prediction on a CPU: the percentage of time that ONNX Runtime spends in each operator.

    python benchmarks/predict_profile.py --out docs/results/predict_cpu.json
    python benchmarks/predict_profile.py --networks tiny --calls 2 --out rows.json  # test the script quickly

The script adds its rows to those of `predict_cpu.py`. Like that script, it measures the graph from network
images to landmarks. It uses one thread and one image with its mirror image, and takes the median of all calls
for each node. Other work on the machine hardly changes the percentages.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

import onnx.utils
import onnxruntime
import torch
from cpu_rows import SEED, Rows
from predict_cpu import NETWORKS, make_detectors, write_rounded

from selfmark.config import Config, preset
from selfmark.demo.scene import generate_scene
from selfmark.export.onnx_export import CROP_XY, CROPS

MAX_OPERATORS = 8  # rows per network and precision


def main() -> None:
    """Profile all networks and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--calls", type=int, default=20, help="calls of each network")
    arguments = parser.parse_args()
    rows: Rows = {}
    for name in arguments.networks:
        rows |= profile(name, preset(NETWORKS[name]), arguments.calls)
    write_rounded(rows, torch.get_num_threads(), arguments.out)


def profile(name: str, config: Config, calls: int) -> Rows:
    """Return the slowest operators of one network, in percent of its time."""
    images = (
        torch.from_numpy(generate_scene(2, config.images.size, SEED).images).permute(0, 3, 1, 2).contiguous()
    )
    rows: Rows = {}
    with tempfile.TemporaryDirectory() as folder:
        make_detectors(config, True, images, Path(folder))
        for runtime, file in (("onnx", "model.onnx"), ("int8", "model-int8.onnx")):
            spent = time_operators(Path(folder, file), images[:1], calls)
            total = sum(spent.values())
            for operator in sorted(spent, key=lambda name: -spent[name])[:MAX_OPERATORS]:
                title = f"predict_cpu_{name}_{runtime}_profile_{operator}"
                rows[title] = 100 * spent[operator] / total, "% of the time"
    return rows


def time_operators(path: Path, images: torch.Tensor, calls: int) -> dict[str, float]:
    """Return the microseconds of each operator type in one call, without the operators that crop images."""
    network = path.with_suffix(".network.onnx")
    onnx.utils.extract_model(path, network, [CROPS], [CROP_XY, "scores"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.profile_file_prefix = str(path)
    session = onnxruntime.InferenceSession(str(network), options, providers=["CPUExecutionProvider"])
    for _ in range(calls):
        session.run(None, {CROPS: images.float().numpy()})
    nodes: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in json.loads(Path(session.end_profiling()).read_text()):
        if event["name"].endswith("kernel_time"):
            nodes[event["args"]["op_name"], event["name"]].append(event["dur"])
    spent: dict[str, float] = defaultdict(float)
    for (operator, _), durations in nodes.items():
        spent[operator] += statistics.median(durations)
    return spent


if __name__ == "__main__":
    main()
