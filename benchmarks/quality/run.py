"""Make the declared runs that are still missing: `selfmark discover` and `selfmark evaluate`, then rows.

    python benchmarks/quality/run.py --data-folder D --weights-folder W --out DIR [--only NAME ...]

NAME is a row ("clusters-50"), one run of it ("yt68-superpoint-s1"), or `results` or `ablations` for all of
them; a row that is measured of another's run ("flip-train") stands for that run. D holds the data sets,
zipped or not, W the weights of the learned detectors. Every finished run is at once DIR/RUN.json (its rows)
and DIR/RUN.jpg (a contact sheet of test images). What is already in DIR is not made again, nor, without
--again, what docs/results/quality.json has; and a run that was stopped goes on where it stood if its folder
below --work is still there. `merge.py` gathers the rows, `quality_pages.py` lays them out.

Several runs share the GPU (--processes): while one reads images, clusters or is evaluated, another trains.
Each worker process makes one run after the other, so that start-up is paid once.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import multiprocessing
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from rows import ABLATIONS, DECLARED, RESULTS, RIDGES, Declared, run_name

ROOT = Path(__file__).resolve().parent.parent.parent
QUALITY = ROOT / "docs" / "results" / "quality.json"

Job = tuple[Declared, int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--weights-folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=["results", "ablations"], metavar="NAME")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds-left", type=float, default=float("inf"), help="stop after so many seconds")
    parser.add_argument(
        "--work", type=Path, default=Path("runs/quality"), help="for unfinished runs and data"
    )
    parser.add_argument("--commit", default="", help="of the code; default: what git says")
    parser.add_argument("--again", action="store_true", help="also what quality.json holds already")
    parser.add_argument("--keep-model", action="store_true", help="copy the model folders to --out")
    parser.add_argument("--smoke", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()

    from one import Place

    deadline = time.monotonic() + arguments.seconds_left
    place = Place(
        data=arguments.data_folder,
        weights=arguments.weights_folder,
        work=arguments.work,
        out=arguments.out,
        commit=arguments.commit or commit(),
        processes=arguments.processes,
        smoke=arguments.smoke,
        keep_model=arguments.keep_model,
    )
    jobs = missing(chosen(arguments.only), place.out, arguments.again)
    print(
        f"{len(jobs)} runs to make: {', '.join(run_name(one.name, seed) for one, seed in jobs)}", flush=True
    )
    absent = [
        data for data in dict.fromkeys(declared.data for declared, _ in jobs) if not place.prepare(data)
    ]
    if absent:
        print(f"not in {place.data}, so left out: {', '.join(absent)}", flush=True)
    jobs = [(declared, seed) for declared, seed in jobs if declared.data not in absent]
    made = make(jobs, place, arguments.processes, deadline)
    print(summary([place.rows(name) for name in made]))
    # Workers are daemons: runs still going on at the deadline end here, their checkpoints stay in --work.
    sys.exit(0 if len(made) == len(jobs) else 1)


def chosen(names: Sequence[str]) -> list[Job]:
    """The runs behind the names, each once, in the order of declaration."""
    groups = {"results": RESULTS, "ablations": ABLATIONS}
    homes = {variant: one.name for one in DECLARED for variant in one.variants}  # measured of another's run
    wanted = {one.name for name in names for one in groups.get(name, ())}
    wanted |= {homes.get(name, name) for name in names if name not in groups}
    jobs = [
        (declared, seed)
        for declared in DECLARED
        for seed in declared.seeds
        if declared.name in wanted or run_name(declared.name, seed) in wanted
    ]
    known = {name for declared, seed in jobs for name in (declared.name, run_name(declared.name, seed))}
    unknown = sorted(wanted - known)
    if unknown:
        raise SystemExit(f"there is no declared run '{unknown[0]}'; see benchmarks/quality/rows.py")
    return jobs


def missing(jobs: Sequence[Job], out: Path, again: bool) -> list[Job]:
    """Of these runs, the ones that neither the out folder nor quality.json has with today's settings."""
    from selfmark.errors import InputError
    from selfmark.run.files import read_json

    made = {} if again or not QUALITY.exists() else dict(read_json(QUALITY)["runs"])
    made |= {path.stem: read_json(path)["run"] for path in out.glob("*.json")}

    def done(declared: Declared, seed: int) -> bool:
        try:
            return bool(made.get(run_name(declared.name, seed), {}).get("digest") == declared.digest())
        except InputError:  # a setting that does not exist: the run will say so
            return False

    return [job for job in jobs if not done(*job)]


def summary(paths: Sequence[Path]) -> str:
    """A short table of what was made: Stage 2 with every ridge, backward with the headline one."""
    from selfmark.run.files import read_json

    lines = [
        f"{'row':34} {'stage':>5} " + " ".join(f"fwd {ridge:<6g}" for ridge in RIDGES) + "  bwd 0.01  minutes"
    ]
    for path in paths:
        rows = read_json(path)["rows"]
        for name, stage in dict.fromkeys((row["name"], row["stage"]) for row in rows):
            by = {row["ridge"]: row for row in rows if (row["name"], row["stage"]) == (name, stage)}
            forward = " ".join(f"{by[ridge]['forward']:10.2f}" for ridge in RIDGES)
            label = f"{path.stem}" + (f" ({name})" if not path.stem.startswith(name) else "")
            lines.append(
                f"{label:34} {stage:>5} {forward} {by[0.01]['backward']:9.2f} {by[0.01]['minutes']:8.2f}"
            )
    return "\n".join(lines)


def commit() -> str:
    """What git calls the code, `+changes` where the package has uncommitted ones."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return f"{head}+changes" if _git("status", "--porcelain", "src") else head
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


# --- several at a time -----------------------------------------------------------------------------------


def make(jobs: Sequence[Job], place: object, processes: int, deadline: float) -> list[str]:
    """Make the runs on several worker processes until all are done or time is up; returns those done."""
    waiting: queue.Queue[Job] = queue.Queue()
    for job in jobs:
        waiting.put(job)
    made: list[str] = []
    threads = [
        threading.Thread(target=_serve, args=(waiting, place, deadline, made), daemon=True)
        for _ in range(min(processes, len(jobs)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX)))
    return sorted(made)


def _serve(waiting: queue.Queue[Job], place: object, deadline: float, made: list[str]) -> None:
    """Hand runs to one worker process; after a failure to a fresh one, for a broken GPU stays broken."""
    worker = None
    with contextlib.suppress(queue.Empty):
        while True:
            declared, seed = waiting.get_nowait()
            name = run_name(declared.name, seed)
            if time.monotonic() + declared.seconds > deadline:
                print(f"{name}: left for the next call", flush=True)
                continue
            worker = worker or _Worker()
            started = time.monotonic()
            outcome = worker.do(declared, seed, place)
            print(f"{name}: {outcome or 'done'} after {time.monotonic() - started:.0f} s", flush=True)
            if outcome:
                worker = None
            else:
                made.append(name)


class _Worker:
    """A process that makes runs one after the other."""

    def __init__(self) -> None:
        # Not forked: CUDA does not survive that. A daemon, so that it ends with this process.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        context.Process(target=_work, args=(theirs,), daemon=True).start()
        theirs.close()

    def do(self, declared: Declared, seed: int, place: object) -> str:
        """Make one run; returns what went wrong, empty if nothing did."""
        try:
            self._pipe.send((declared, seed, place))
            return str(self._pipe.recv())
        except (EOFError, OSError):
            return "its process died"


def _work(pipe: Connection) -> None:
    import torch
    from one import carry_out

    while True:
        try:
            declared, seed, place = pipe.recv()
        except EOFError:
            return
        try:
            carry_out(declared, seed, place)
            outcome = ""
        except Exception as error:  # a run that fails must not stop the others
            traceback.print_exc()
            outcome = f"failed ({type(error).__name__}: {error})"
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        pipe.send(outcome)
        if outcome:
            return


if __name__ == "__main__":
    main()
