"""The tables of docs/scale.md: what a run would cost at sizes nobody here can run.

    python benchmarks/cost_model.py                         # print them
    python benchmarks/cost_model.py --write docs/scale.md   # put them into the page

Rates of one GPU are read from docs/results/speed.json and docs/results/recovery.json; what is not there yet
is assumed, and the first table says which is which. Formulas are in `cost_formulas.py`, the simulation that
checks them in `cost_simulation.py`.
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
    GIVEN,
    Assumptions,
    Rates,
    all_reduce,
    gradient_size,
    kmeans_fit,
    parts,
    round_formula,
    slowest,
    step_compute,
    sums_size,
    traffic,
    training,
    views,
)
from cost_simulation import simulate_round, simulate_steps

SIZES = {"10 million": 10_000_000, "1 billion": 1_000_000_000}
GPUS = (8, 64, 1024)
SIMULATED = (8, 64)
SEED = 0
ROOT = Path(__file__).parent.parent
_BYTES = {"PB": 1e15, "TB": 1e12, "GB": 1e9, "MB": 1e6, "KB": 1e3, "B": 1.0}
_TIMES = {"days": 2 * 86_400.0, "h": 2 * 3_600.0, "min": 2 * 60.0, "s": 1.0, "ms": 1e-3, "us": 0.0}
_SECONDS = {"days": 86_400.0, "h": 3_600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="page whose tables to replace")
    arguments = parser.parse_args()
    made = tables()
    if arguments.write is None:
        print("\n\n".join(f"{name}\n\n{table}" for name, table in made.items()))
    else:
        arguments.write.write_text(put(arguments.write.read_text(), made))


def tables() -> dict[str, str]:
    """Every table of the page by name, as Markdown."""
    rates, origins = read_rates(ROOT / "docs" / "results")
    return {
        "rates": _rates(rates, origins),
        "assumptions": _assumptions(),
        "storage": _storage(),
        "gradients": _gradients(rates),
        "sums": _sums(),
        "gpu hours": _gpu_hours(rates),
        "wall clock": _wall_clock(rates),
        "kmeans": _kmeans(rates),
        "simulation": _simulation(rates),
    }


def put(page: str, made: dict[str, str]) -> str:
    """The page with each table after its mark, `<!-- table: NAME -->`, in place of the one that is there."""
    for name, table in made.items():
        mark = re.compile(rf"(<!-- table: {name} -->\n\n)(?:\|.*\n)*\n?")
        if not mark.search(page):
            raise ValueError(f"the page has no place for the table '{name}'")
        page = mark.sub(lambda found, table=table: found[1] + table + "\n\n", page)  # type: ignore[misc]
    return page


def read_rates(results: Path) -> tuple[Rates, dict[str, str]]:
    """Rates as measured where a result says so, else as assumed, and where each comes from."""
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


def _rates(rates: Rates, origins: dict[str, str]) -> str:
    rows = [
        [f"`{name}`", f"{getattr(rates, name):,.4g}", unit, what, origins[name]]
        for name, (unit, what) in _comments(Rates).items()
    ]
    return _table(["rate of one GPU", "value", "unit", "what", "from"], rows)


def _assumptions() -> str:
    rows = [
        [f"`{name}`", f"{getattr(GIVEN, name):,.6g}", unit, what]
        for name, (unit, what) in _comments(Assumptions).items()
    ]
    return _table(["assumption", "value", "unit", "what"], rows)


def _storage() -> str:
    each = {
        "images as JPEG, 256 px": GIVEN.jpeg_bytes,
        "images as uint8, 256 px": GIVEN.raw_bytes,
        "descriptors of one recovery, all GPUs together": 2 * GIVEN.points * GIVEN.descriptor * 4,
        "labelled points of a round": GIVEN.points * GIVEN.label_bytes,
    }
    rows = [
        [what, _bytes(size), *[_bytes(size * images) for images in SIZES.values()]]
        for what, size in each.items()
    ]
    for gpus in GPUS:
        share = [2 * GIVEN.points * GIVEN.descriptor * 4 * images / gpus for images in SIZES.values()]
        fits = [f"{_bytes(size)}{'' if size < 0.7 * GIVEN.gpu_memory else ', too much'}" for size in share]
        rows.append([f"descriptors of one recovery, per GPU, on {gpus:,} GPUs", "", *fits])
    return _table(["what", "one image", *[f"{name} images" for name in SIZES]], rows)


def _gradients(rates: Rates) -> str:
    rows = []
    for gpus in GPUS:
        step = traffic(gpus, gradient_size())
        run = [sum(step) * _steps(gpus, images, rates) for images in SIZES.values()]
        rows.append([f"{gpus:,}", *_both(step), _time(all_reduce(gpus, gradient_size())), *map(_bytes, run)])
    runs = [f"a run on {name} images" for name in SIZES]
    return _table(["GPUs", "a step, in the node", "a step, to other nodes", "time of a step", *runs], rows)


def _sums() -> str:
    rows = []
    for gpus in GPUS:
        both = [traffic(gpus, sums_size(clusters)) for clusters in (GIVEN.K, GIVEN.M)]
        run = GIVEN.restarts * GIVEN.iterations * GIVEN.recoveries * sum(map(sum, both))
        rows.append([f"{gpus:,}", *_both(both[1]), _time(all_reduce(gpus, sums_size(GIVEN.M))), _bytes(run)])
    names = ["GPUs", "an iteration with M, in the node", "to other nodes", "time", "a run"]
    return _table(names, rows)


def _gpu_hours(rates: Rates) -> str:
    columns = [
        parts(images, GPUS[0], rates, only_next) for images in SIZES.values() for only_next in (False, True)
    ]
    rows = [[name, *[_hours(column[name] * GPUS[0]) for column in columns]] for name in columns[0]]
    rows.append(["**all**", *[f"**{_hours(sum(column.values()) * GPUS[0])}**" for column in columns]])
    names = [f"{name}, {how}" for name in SIZES for how in ("as built", "labelling what is needed")]
    return _table([f"GPU hours, on {GPUS[0]} GPUs", *names], rows)


def _wall_clock(rates: Rates) -> str:
    rows = []
    for name, images in SIZES.items():
        for how, only_next in (("as built", False), ("labelling what is needed", True)):
            whole = [parts(images, gpus, rates, only_next) for gpus in GPUS]
            rows.append([f"{name} images, {how}", *[_time(sum(one.values())) for one in whole]])
        plans = [training(gpus, views(images, GIVEN.views), rates) for gpus in GPUS]
        rows.append([f"{name} images: Stage 1 alone", *[_time(plan.seconds) for plan in plans]])
        rows.append(
            [
                f"{name} images: its steps x images per GPU",
                *[
                    f"{plan.steps:,.0f} x {plan.batch:.0f}{_idle(plan.busy, gpus)}"
                    for plan, gpus in zip(plans, GPUS, strict=True)
                ],
            ]
        )
    return _table(["wall clock", *[f"{gpus:,} GPUs" for gpus in GPUS]], rows)


def _kmeans(rates: Rates) -> str:
    rows = []
    for gpus in (1, *GPUS):
        exchange = [all_reduce(gpus, sums_size(clusters)) for clusters in (GIVEN.K, GIVEN.M)]
        of_exchange = GIVEN.restarts * GIVEN.iterations * sum(exchange)
        rows.append([f"{gpus:,}", _time(kmeans_fit(gpus, rates)), _time(of_exchange)])
    return _table(["GPUs", "fitting with K and M, one recovery", "of it, exchange of sums"], rows)


def _simulation(rates: Rates) -> str:
    rows = []
    for gpus in SIMULATED:
        rng = np.random.default_rng(SEED)
        compute = step_compute(GIVEN.most_images, rates)
        iteration = max(
            rates.recovery_fit_200k / gpus / (2 * GIVEN.restarts * GIVEN.iterations), GIVEN.iteration_floor
        )
        cases = [
            (
                "a training step",
                compute * slowest(gpus) + all_reduce(gpus, gradient_size()),
                simulate_steps(gpus, compute, gradient_size(), 500, GIVEN, rng),
            ),
            (
                "a K-means iteration with M",
                iteration * slowest(gpus) + all_reduce(gpus, sums_size(GIVEN.M)),
                simulate_steps(gpus, iteration, sums_size(GIVEN.M), 500, GIVEN, rng),
            ),
            (
                "a round on 10 million images",
                round_formula(gpus, SIZES["10 million"], rates),
                simulate_round(gpus, SIZES["10 million"], rates, GIVEN, rng),
            ),
        ]
        for what, formula, simulated in cases:
            difference = f"{round(100 * (formula / simulated - 1), 1) + 0.0:+.1f} %"
            rows.append([f"{gpus}", what, _time(formula), _time(simulated), difference])
    return _table(["GPUs", "what", "formula", "simulated", "formula is off by"], rows)


def _steps(gpus: int, images: float, rates: Rates) -> float:
    least = (GIVEN.views, GIVEN.views_stage2)
    return sum(training(gpus, views(images, one), rates).steps for one in least)


def _both(sent: tuple[float, float]) -> tuple[str, str]:
    """Bytes sent inside a node and to other nodes."""
    return _bytes(sent[0]), _bytes(sent[1]) if sent[1] else "none"


def _idle(busy: int, gpus: int) -> str:
    return "" if busy == gpus else f" ({gpus - busy} idle)"


# --- words and numbers -------------------------------------------------------------------------------


def _comments(kind: type[Any]) -> dict[str, tuple[str, str]]:
    """Unit and meaning of each field, from the comment behind it."""
    found = re.findall(r"^    (\w+): [^#\n]+#\s*([^;]+); (.+)$", inspect.getsource(kind), flags=re.MULTILINE)
    return {name: (unit, what) for name, unit, what in found}


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _bytes(size: float) -> str:
    unit, scale = next(((u, s) for u, s in _BYTES.items() if size >= s), ("B", 1.0))
    return f"{size / scale:.3g} {unit}"


def _time(seconds: float) -> str:
    unit = next(unit for unit, least in _TIMES.items() if seconds >= least)
    return f"{seconds / _SECONDS[unit]:.3g} {unit}"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.3g}" if seconds < 3.6e6 else f"{seconds / 3600:,.0f}"


if __name__ == "__main__":
    main()
