"""Execute the runs of docs/results/quality.json and claims.json that are still missing.

    python benchmarks/quality/run.py --data-folder D --weights-folder W --out DIR [--only NAME ...]

D contains the data sets, zipped or not, and W the weights of the learned detectors. Each run discovers
landmarks, evaluates them, and writes DIR/RUN.json (its rows) and DIR/RUN.jpg (a contact sheet of the images
that errors are measured on). `merge.py` collects the rows, and `quality_pages.py` formats them.

NAME is an experiment ("clusters-50"), its run with one seed ("yt68-superpoint-s1"), or `results`, `ablations`
or `claims` for all experiments of that kind; the default is `results ablations`. NAME can also be a variant,
such as "flip-train", which evaluates the run of another experiment; its name selects that run.

Runs in DIR are skipped, unless the settings of their experiment have changed. Without --again, the same holds
for the runs in docs/results/quality.json and claims.json. An interrupted run resumes if its folder below
--work still exists.

Several runs share the GPU (--processes): while one reads images, clusters or evaluates, another trains. Each
worker process executes one run after the other, and thus imports torch and initializes the GPU only once.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import math
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
from typing import Any

from claim_experiments import CLAIM_EXPERIMENTS
from experiments import ABLATIONS, EXPERIMENTS, RESULTS, RIDGES, Experiment, build_run_name

ROOT = Path(__file__).resolve().parent.parent.parent
QUALITY, CLAIMS = (ROOT / "docs" / "results" / name for name in ("quality.json", "claims.json"))

Job = tuple[Experiment, int]


def main() -> None:
    """Execute the missing runs and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--weights-folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=["results", "ablations"], metavar="NAME")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds-left", type=float, default=float("inf"), help="time limit in seconds")
    parser.add_argument(
        "--work", type=Path, default=Path("runs/quality"), help="folder for unfinished runs and unpacked data"
    )
    parser.add_argument(
        "--commit", default="", help="commit of the code; by default, that of the git checkout"
    )
    parser.add_argument("--again", action="store_true", help="repeat runs that are already published")
    parser.add_argument("--keep-model", action="store_true", help="copy the model folders to --out")
    parser.add_argument("--smoke", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()

    from single_run import Workspace

    deadline = time.monotonic() + arguments.seconds_left
    workspace = Workspace(
        data=arguments.data_folder,
        weights=arguments.weights_folder,
        work=arguments.work,
        out=arguments.out,
        commit=arguments.commit or read_commit(),
        processes=arguments.processes,
        smoke=arguments.smoke,
        keep_model=arguments.keep_model,
    )
    jobs = find_missing(select_runs(arguments.only), workspace.out, arguments.again)
    names = ", ".join(build_run_name(experiment.name, seed) for experiment, seed in jobs)
    print(f"{len(jobs)} runs to do: {names}", flush=True)
    absent = [
        data
        for data in dict.fromkeys(experiment.data for experiment, _ in jobs)
        if not workspace.prepare(data)
    ]
    if absent:
        print(f"skipping data sets that are not in {workspace.data}: {', '.join(absent)}", flush=True)
    jobs = [(experiment, seed) for experiment, seed in jobs if experiment.data not in absent]
    finished = execute_all(jobs, workspace, arguments.processes, deadline)
    print(format_summary([workspace.result_path(name) for name in finished]))
    # Workers are daemons, so runs that are unfinished at the deadline end here; --work has their checkpoints.
    sys.exit(0 if len(finished) == len(jobs) else 1)


def select_runs(names: Sequence[str]) -> list[Job]:
    """Return the runs behind the names, each once, in the order of declaration."""
    groups = {"results": RESULTS, "ablations": ABLATIONS, "claims": CLAIM_EXPERIMENTS}
    # Variants are rows that share the run of their experiment.
    declared_experiments = (*EXPERIMENTS, *CLAIM_EXPERIMENTS)
    owners = {
        variant: experiment.name for experiment in declared_experiments for variant in experiment.variants
    }
    wanted_names = {experiment.name for name in names for experiment in groups.get(name, ())}
    wanted_names |= {owners.get(name, name) for name in names if name not in groups}
    jobs = [
        (experiment, seed)
        for experiment in declared_experiments
        for seed in experiment.seeds
        if experiment.name in wanted_names or build_run_name(experiment.name, seed) in wanted_names
    ]
    known_names = {
        name for experiment, seed in jobs for name in (experiment.name, build_run_name(experiment.name, seed))
    }
    unknown_names = sorted(wanted_names - known_names)
    if unknown_names:
        raise SystemExit(
            f"unknown run '{unknown_names[0]}'; benchmarks/quality/experiments.py lists all runs"
        )
    return jobs


def find_missing(jobs: Sequence[Job], out: Path, again: bool) -> list[Job]:
    """Return the runs that are missing in the output folder and in the published files.

    A run also counts as missing if the settings of its experiment have changed since it was made.

    Args:
        jobs: Runs to check.
        out: Output folder.
        again: Whether to ignore the published files.
    """
    from claim_records import read_records

    from selfmark.errors import InputError
    from selfmark.run.files import read_json

    existing_runs: dict[str, Any] = {}
    if not again:
        existing_runs |= read_json(QUALITY)["runs"] if QUALITY.exists() else {}
        existing_runs |= {record["run"]: record for record in read_records(CLAIMS)}
    existing_runs |= {path.stem: read_json(path)["run"] for path in out.glob("*.json")}

    def is_done(experiment: Experiment, seed: int) -> bool:
        try:
            return bool(
                existing_runs.get(build_run_name(experiment.name, seed), {}).get("digest")
                == experiment.compute_digest()
            )
        except InputError:  # an unknown setting; the run itself will report it
            return False

    return [job for job in jobs if not is_done(*job)]


def format_summary(paths: Sequence[Path]) -> str:
    """Return a short table of result files: forward errors with every ridge, backward errors with 0.01.

    Column `mean bwd` is the backward error of the mean shape.
    """
    from selfmark.run.files import read_json

    lines = [
        f"{'row':34} {'stage':>5} "
        + " ".join(f"fwd {ridge:<6g}" for ridge in RIDGES)
        + "  bwd 0.01  mean bwd  minutes"
    ]
    for path in paths:
        rows = read_json(path)["rows"]
        for name, stage in dict.fromkeys((row["name"], row["stage"]) for row in rows):
            by_ridge = {row["ridge"]: row for row in rows if (row["name"], row["stage"]) == (name, stage)}
            forward = " ".join(f"{by_ridge[ridge]['forward']:10.2f}" for ridge in RIDGES)
            label = f"{path.stem}" + (f" ({name})" if not path.stem.startswith(name) else "")
            backward, minutes = by_ridge[0.01]["backward"], by_ridge[0.01]["minutes"]
            mean_shape = by_ridge[0.01].get("mean_shape_backward", math.nan)
            lines.append(f"{label:34} {stage:>5} {forward} {backward:9.2f} {mean_shape:9.2f} {minutes:8.2f}")
    return "\n".join(lines)


def read_commit() -> str:
    """Return the git commit, with `+changes` if the package has uncommitted changes."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return f"{head}+changes" if _git("status", "--porcelain", "src") else head
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


# --- worker processes ------------------------------------------------------------------------------------


def execute_all(jobs: Sequence[Job], workspace: object, processes: int, deadline: float) -> list[str]:
    """Execute runs on worker processes until all are done or the deadline has passed.

    Args:
        jobs: Runs to execute.
        workspace: `single_run.Workspace`.
        processes: Number of worker processes.
        deadline: Time on the monotonic clock.

    Returns:
        The names of the finished runs.
    """
    waiting_jobs: queue.Queue[Job] = queue.Queue()
    for job in jobs:
        waiting_jobs.put(job)
    finished: list[str] = []
    threads = [
        threading.Thread(target=_feed_worker, args=(waiting_jobs, workspace, deadline, finished), daemon=True)
        for _ in range(min(processes, len(jobs)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX)))
    return sorted(finished)


def _feed_worker(
    waiting_jobs: queue.Queue[Job], workspace: object, deadline: float, finished: list[str]
) -> None:
    """Hand runs to one worker process. Replace it after a failure, because its GPU state may be broken."""
    worker = None
    with contextlib.suppress(queue.Empty):
        while True:
            experiment, seed = waiting_jobs.get_nowait()
            name = build_run_name(experiment.name, seed)
            if time.monotonic() + experiment.seconds > deadline:
                print(f"{name}: skipped, not enough time left", flush=True)
                continue
            worker = worker or _Worker()
            started = time.monotonic()
            failure = worker.execute(experiment, seed, workspace)
            print(f"{name}: {failure or 'done'} after {time.monotonic() - started:.0f} s", flush=True)
            if failure:
                worker = None
            else:
                finished.append(name)


class _Worker:
    """Process that executes one run after the other."""

    def __init__(self) -> None:
        # CUDA does not survive a fork. A daemon ends together with this process.
        context = multiprocessing.get_context("spawn")
        self._pipe, child_end = context.Pipe()
        context.Process(target=_run_worker, args=(child_end,), daemon=True).start()
        child_end.close()

    def execute(self, experiment: Experiment, seed: int, workspace: object) -> str:
        """Execute one run and return a description of the failure, or an empty string."""
        try:
            self._pipe.send((experiment, seed, workspace))
            return str(self._pipe.recv())
        except (EOFError, OSError):
            return "failed (the worker process died)"


def _run_worker(pipe: Connection) -> None:
    """Execute the runs that arrive through the pipe, and send back "" or a description of the failure."""
    import torch
    from single_run import execute_run

    while True:
        try:
            experiment, seed, workspace = pipe.recv()
        except EOFError:
            return
        try:
            execute_run(experiment, seed, workspace)
            failure = ""
        except Exception as error:  # a failed run must not stop the others
            traceback.print_exc()
            failure = f"failed ({type(error).__name__}: {error})"
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        pipe.send(failure)
        if failure:
            return


if __name__ == "__main__":
    main()
