"""Write the tables of docs/scale.md, which estimate the cost of runs that are too large to try.

    python benchmarks/cost_model.py                         # print the tables
    python benchmarks/cost_model.py --write docs/scale.md   # update the page

The rates of one GPU come from docs/results/speed.json and docs/results/recovery.json. A rate that is missing
there is assumed. The first table shows the origin of each rate. The formulas are in `cost_formulas.py`, and
the simulation that checks them is in `cost_simulation.py`.

A recovery is one correspondence recovery (Sec. 3.3 of the paper): the keypoints of all images are described,
filtered with K clusters and labeled with M clusters. A run has one recovery per round and one at the end.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from cost_formulas import (
    ASSUMPTIONS,
    Assumptions,
    Rates,
    compute_slowest_gpu_factor,
    compute_step_seconds,
    count_gradient_bytes,
    count_sent_bytes,
    count_sum_bytes,
    count_views,
    estimate_all_reduce,
    estimate_kmeans_fit,
    estimate_round,
    estimate_seconds_by_part,
    plan_training,
)
from cost_simulation import simulate_round, simulate_steps

SIZES = {"10 million": 10_000_000, "1 billion": 1_000_000_000}
GPUS = (8, 64, 1024)
SIMULATED = (8, 64)
SEED = 0
# Name of each variant, and whether a recovery labels only the images of the next round. selfmark labels all
# images; labeling on demand is not implemented.
LABELS_ON_DEMAND = {"as built": False, "labeling on demand": True}
ROOT = Path(__file__).parent.parent
_BYTES = {"PB": 1e15, "TB": 1e12, "GB": 1e9, "MB": 1e6, "KB": 1e3, "B": 1.0}
# A duration is printed in the first unit whose minimum it reaches.
_MIN_SECONDS = {"days": 2 * 86_400.0, "h": 2 * 3_600.0, "min": 2 * 60.0, "s": 1.0, "ms": 1e-3, "us": 0.0}
_SECONDS_PER_UNIT = {"days": 86_400.0, "h": 3_600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}


def main() -> None:
    """Print the tables or write them into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="Markdown page whose tables are replaced")
    arguments = parser.parse_args()
    new_tables = build_tables()
    if arguments.write is None:
        print("\n\n".join(f"{name}\n\n{table}" for name, table in new_tables.items()))
    else:
        arguments.write.write_text(insert_tables(arguments.write.read_text(), new_tables))


def build_tables() -> dict[str, str]:
    """Return all tables of the page, as a mapping from names to Markdown."""
    rates, origins = read_rates(ROOT / "docs" / "results")
    return {
        "rates": _build_rates_table(rates, origins),
        "assumptions": _build_assumptions_table(),
        "storage": _build_storage_table(),
        "gradients": _build_gradients_table(rates),
        "sums": _build_sums_table(),
        "gpu hours": _build_gpu_hours_table(rates),
        "wall clock": _build_wall_clock_table(rates),
        "kmeans": _build_kmeans_table(rates),
        "simulation": _build_simulation_table(rates),
    }


def insert_tables(page: str, new_tables: dict[str, str]) -> str:
    """Return the page with the table after each marker `<!-- table: NAME -->` replaced."""
    for name, table in new_tables.items():
        marker = re.compile(rf"(<!-- table: {name} -->\n\n)(?:\|.*\n)*\n?")
        if not marker.search(page):
            raise ValueError(f"the page has no marker '<!-- table: {name} -->'")
        page = marker.sub(lambda match, table=table: match[1] + table + "\n\n", page)  # type: ignore[misc]
    return page


def read_rates(results: Path) -> tuple[Rates, dict[str, str]]:
    """Return the rates and the origin of each: measured if a result file has it, otherwise assumed."""
    known = {item.name: (item.default, "assumed") for item in fields(Rates)}
    for file in ("recovery.json", "speed.json"):
        path = results / file
        if not path.exists():
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        for row in content["rows"]:
            if row["name"] in known:
                known[row["name"]] = (
                    float(row["value"]),
                    f"measured, {content['hardware']} ([{file}](results/{file}))",
                )
    rates = replace(Rates(), **{name: value for name, (value, _) in known.items()})
    return rates, {name: origin for name, (_, origin) in known.items()}


# --- one function per table -------------------------------------------------------------------------


def _build_rates_table(rates: Rates, origins: dict[str, str]) -> str:
    rows = [
        [f"`{name}`", f"{getattr(rates, name):,.4g}", unit, meaning, origins[name]]
        for name, (unit, meaning) in _read_comments(Rates).items()
    ]
    return _format_table(["rate of one GPU", "value", "unit", "meaning", "origin"], rows)


def _build_assumptions_table() -> str:
    rows = [
        [f"`{name}`", f"{getattr(ASSUMPTIONS, name):,.6g}", unit, meaning]
        for name, (unit, meaning) in _read_comments(Assumptions).items()
    ]
    return _format_table(["assumption", "value", "unit", "meaning"], rows)


def _build_storage_table() -> str:
    # float32 descriptors of the image and its mirror image
    descriptor_bytes = 2 * ASSUMPTIONS.points * ASSUMPTIONS.descriptor * 4
    bytes_per_image = {
        "images as JPEG, 256 px": ASSUMPTIONS.jpeg_bytes,
        "images as uint8, 256 px": ASSUMPTIONS.raw_bytes,
        "descriptors of one recovery, all GPUs together": descriptor_bytes,
        "labeled points of a round": ASSUMPTIONS.points * ASSUMPTIONS.label_bytes,
    }
    rows = [
        [name, _format_bytes(size), *[_format_bytes(size * images) for images in SIZES.values()]]
        for name, size in bytes_per_image.items()
    ]
    for gpus in GPUS:
        per_gpu = [descriptor_bytes * images / gpus for images in SIZES.values()]
        available = 0.7 * ASSUMPTIONS.gpu_memory  # 30 % is for weights, activations and buffers
        cells = [f"{_format_bytes(size)}{'' if size < available else ', too much'}" for size in per_gpu]
        rows.append([f"descriptors of one recovery, per GPU, on {gpus:,} GPUs", "", *cells])
    return _format_table(["data", "one image", *[f"{name} images" for name in SIZES]], rows)


def _build_gradients_table(rates: Rates) -> str:
    rows = []
    for gpus in GPUS:
        step = count_sent_bytes(gpus, count_gradient_bytes())
        run = [sum(step) * _count_steps(gpus, images, rates) for images in SIZES.values()]
        rows.append(
            [
                f"{gpus:,}",
                *_format_traffic(step),
                _format_time(estimate_all_reduce(gpus, count_gradient_bytes())),
                *map(_format_bytes, run),
            ]
        )
    titles = [f"per run on {name} images" for name in SIZES]
    return _format_table(
        ["GPUs", "per step, in the node", "per step, to other nodes", "time per step", *titles], rows
    )


def _build_sums_table() -> str:
    """Build the table of the cluster sums that GPUs exchange in K-means."""
    rows = []
    for gpus in GPUS:
        sent = [
            count_sent_bytes(gpus, count_sum_bytes(clusters)) for clusters in (ASSUMPTIONS.K, ASSUMPTIONS.M)
        ]
        run = ASSUMPTIONS.restarts * ASSUMPTIONS.iterations * ASSUMPTIONS.recoveries * sum(map(sum, sent))
        rows.append(
            [
                f"{gpus:,}",
                *_format_traffic(sent[1]),  # with M clusters
                _format_time(estimate_all_reduce(gpus, count_sum_bytes(ASSUMPTIONS.M))),
                _format_bytes(run),
            ]
        )
    names = ["GPUs", "per iteration with M, in the node", "to other nodes", "time", "per run"]
    return _format_table(names, rows)


def _build_gpu_hours_table(rates: Rates) -> str:
    columns = [
        estimate_seconds_by_part(images, GPUS[0], rates, on_demand)
        for images in SIZES.values()
        for on_demand in LABELS_ON_DEMAND.values()
    ]
    rows = [[name, *[_format_hours(column[name] * GPUS[0]) for column in columns]] for name in columns[0]]
    rows.append(
        ["**total**", *[f"**{_format_hours(sum(column.values()) * GPUS[0])}**" for column in columns]]
    )
    names = [f"{name}, {variant}" for name in SIZES for variant in LABELS_ON_DEMAND]
    return _format_table([f"GPU hours, on {GPUS[0]} GPUs", *names], rows)


def _build_wall_clock_table(rates: Rates) -> str:
    rows = []
    for name, images in SIZES.items():
        for variant, on_demand in LABELS_ON_DEMAND.items():
            runs = [estimate_seconds_by_part(images, gpus, rates, on_demand) for gpus in GPUS]
            rows.append(
                [f"{name} images, {variant}", *[_format_time(sum(seconds.values())) for seconds in runs]]
            )
        plans = [
            plan_training(gpus, count_views(images, ASSUMPTIONS.min_views_stage1), rates) for gpus in GPUS
        ]
        rows.append([f"{name} images: Stage 1 alone", *[_format_time(plan.seconds) for plan in plans]])
        rows.append(
            [
                f"{name} images: steps x images per GPU in Stage 1",
                *[
                    f"{plan.steps:,.0f} x {plan.batch:.0f}{_format_idle(plan.busy, gpus)}"
                    for plan, gpus in zip(plans, GPUS, strict=True)
                ],
            ]
        )
    return _format_table(["wall clock", *[f"{gpus:,} GPUs" for gpus in GPUS]], rows)


def _build_kmeans_table(rates: Rates) -> str:
    rows = []
    for gpus in (1, *GPUS):
        exchange = [
            estimate_all_reduce(gpus, count_sum_bytes(clusters))
            for clusters in (ASSUMPTIONS.K, ASSUMPTIONS.M)
        ]
        exchanging = ASSUMPTIONS.restarts * ASSUMPTIONS.iterations * sum(exchange)
        rows.append([f"{gpus:,}", _format_time(estimate_kmeans_fit(gpus, rates)), _format_time(exchanging)])
    return _format_table(["GPUs", "fitting with K and M, one recovery", "time spent exchanging sums"], rows)


def _build_simulation_table(rates: Rates) -> str:
    rows = []
    for gpus in SIMULATED:
        rng = np.random.default_rng(SEED)
        compute = compute_step_seconds(ASSUMPTIONS.max_batch, rates)
        # recovery_fit_200k is the duration of all iterations of both K-means (with K and with M) on one GPU.
        iteration = max(
            rates.recovery_fit_200k / gpus / (2 * ASSUMPTIONS.restarts * ASSUMPTIONS.iterations),
            ASSUMPTIONS.iteration_floor,
        )
        cases = [
            (
                "a training step",
                compute * compute_slowest_gpu_factor(gpus)
                + estimate_all_reduce(gpus, count_gradient_bytes()),
                simulate_steps(gpus, compute, count_gradient_bytes(), 500, ASSUMPTIONS, rng),
            ),
            (
                "a K-means iteration with M",
                iteration * compute_slowest_gpu_factor(gpus)
                + estimate_all_reduce(gpus, count_sum_bytes(ASSUMPTIONS.M)),
                simulate_steps(gpus, iteration, count_sum_bytes(ASSUMPTIONS.M), 500, ASSUMPTIONS, rng),
            ),
            (
                "a round on 10 million images",
                estimate_round(gpus, SIZES["10 million"], rates),
                simulate_round(gpus, SIZES["10 million"], rates, ASSUMPTIONS, rng),
            ),
        ]
        for operation, formula, simulated in cases:
            # Adding 0.0 turns -0.0 into 0.0.
            difference = f"{round(100 * (formula / simulated - 1), 1) + 0.0:+.1f} %"
            rows.append([f"{gpus}", operation, _format_time(formula), _format_time(simulated), difference])
    return _format_table(["GPUs", "operation", "formula", "simulated", "error of the formula"], rows)


def _count_steps(gpus: int, images: float, rates: Rates) -> float:
    minima = (ASSUMPTIONS.min_views_stage1, ASSUMPTIONS.min_views_stage2)
    return sum(plan_training(gpus, count_views(images, minimum), rates).steps for minimum in minima)


def _format_traffic(sent: tuple[float, float]) -> tuple[str, str]:
    """Format the bytes sent inside a node and to other nodes."""
    return _format_bytes(sent[0]), _format_bytes(sent[1]) if sent[1] else "none"


def _format_idle(busy: int, gpus: int) -> str:
    return "" if busy == gpus else f" ({gpus - busy} idle)"


# --- formatting --------------------------------------------------------------------------------------


def _read_comments(kind: type[Any]) -> dict[str, tuple[str, str]]:
    """Return the unit and the meaning of each field from the comment on its line: `# unit; meaning`."""
    comments = re.findall(
        r"^    (\w+): [^#\n]+#\s*([^;]+); (.+)$", inspect.getsource(kind), flags=re.MULTILINE
    )
    return {name: (unit, meaning) for name, unit, meaning in comments}


def _format_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _format_bytes(size: float) -> str:
    unit = next((unit for unit, unit_bytes in _BYTES.items() if size >= unit_bytes), "B")
    return f"{size / _BYTES[unit]:.3g} {unit}"


def _format_time(seconds: float) -> str:
    unit = next(unit for unit, minimum in _MIN_SECONDS.items() if seconds >= minimum)
    return f"{seconds / _SECONDS_PER_UNIT[unit]:.3g} {unit}"


def _format_hours(seconds: float) -> str:
    return f"{seconds / 3600:,.3g}" if seconds < 3.6e6 else f"{seconds / 3600:,.0f}"


if __name__ == "__main__":
    main()
