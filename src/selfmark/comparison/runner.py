"""Run each method of a comparison in its own process, on one or several devices, and write the results."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from selfmark._version import __version__
from selfmark.comparison.comparison_page import write_page
from selfmark.comparison.comparison_plan import Comparison, MethodJob, RowName, order_rows
from selfmark.comparison.input_digests import DIGESTS_KEY, digest_inputs, require_unchanged
from selfmark.comparison.measure import Row, measure_method
from selfmark.comparison.pace import resolve_job_config
from selfmark.errors import InputError
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.images.sources import list_images
from selfmark.run.devices import select_device
from selfmark.run.files import read_json, strip_temporary, write_json
from selfmark.run.guarded_files import COMPARISON_FILE, make_folders
from selfmark.run.locks import exclusive

# Mapping from settings that --set cannot change in a comparison to the options that set them for all methods.
_OPTIONS = {"seed": "--seed", "K": "-k", "method": "--methods", "preset": "--preset"}
_ADDED_FIELDS = {"label_images": [], "normalizer": ""}  # missing in comparisons of earlier versions
_UNFINISHED_NAMES = {COMPARISON_FILE, ".lock"}  # what a comparison leaves if it is killed at once
OnStart = Callable[[str, str], None]
OnDone = Callable[[Row], None]


def run_comparison(
    comparison: Comparison,
    output: Path,
    devices: Sequence[str] = ("auto",),
    on_start: OnStart = lambda method, device: None,
    on_done: OnDone = lambda row: None,
) -> list[Row]:
    """Train and measure every method and an untrained network; write compare.json and index.html.

    Finished methods are not repeated, and interrupted methods are resumed.

    Args:
        comparison: what to compare.
        output: folder of the comparison.
        devices: devices that share the methods.
        on_start: called with a method and its device when the method starts.
        on_done: called with the row of a method when it is done.

    Returns:
        One row per method and one for the untrained network, ordered by forward error.

    Raises:
        InputError: if images or labels cannot be used, or the folder contains another comparison.
    """
    # Check labels and settings now, not after minutes of training.
    read_ground_truth(comparison.labels, list_images(comparison.evaluated_images))
    _check_settings(comparison, output, devices[0])
    _require_usable_folder(output)  # Locking a folder writes a file into it.
    make_folders(output)
    with exclusive(output):
        # Another command may have started another comparison here until now, so this needs the lock.
        _require_same_comparison(comparison, output)
        return _run_methods(comparison, output, devices, on_start, on_done)


def _check_settings(comparison: Comparison, output: Path, device: str) -> None:
    """Raise if no method can use the settings. If only some methods cannot, they become failed rows."""
    for name, option in _OPTIONS.items():
        if name in comparison.settings:
            raise InputError(f"--set {name}=... is not possible in a comparison: use {option} instead")
    num_images, errors = len(list_images(list(comparison.images))), list[InputError]()
    for method in comparison.methods:
        try:
            resolve_job_config(
                MethodJob(comparison, method, output / method, device), num_images, select_device(device)
            )
        except InputError as error:
            errors.append(error)
    if len(errors) == len(comparison.methods):
        raise errors[0]


def _run_methods(
    comparison: Comparison, output: Path, devices: Sequence[str], on_start: OnStart, on_done: OnDone
) -> list[Row]:
    """Run the jobs of `run_comparison` on the devices and write the results."""
    wanted_names: tuple[RowName, ...] = (*comparison.methods, "untrained")
    names: queue.Queue[RowName] = queue.Queue()
    for name in wanted_names:
        names.put(name)
    rows: list[Row] = []
    processes: list[BaseProcess] = []

    def work(device: str) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                name = names.get_nowait()
                on_start(name, device)
                row = run_in_process(MethodJob(comparison, name, output / name, device), processes.append)
                rows.append(row)
                on_done(row)

    with ThreadPoolExecutor(len(devices)) as pool:
        try:
            for worker in [pool.submit(work, device) for device in devices]:
                worker.result()  # raises the exception of a worker that failed
        except BaseException:  # also Ctrl-C and SIGTERM: start no other method, and save what was trained
            with contextlib.suppress(queue.Empty):
                while True:
                    names.get_nowait()
            for process in processes:
                process.terminate()
            raise
    ordered_rows = order_rows(rows)
    write_json(
        {"selfmark": __version__, **describe(comparison), "rows": ordered_rows}, output / "compare.json"
    )
    write_page(comparison, ordered_rows, output)
    return ordered_rows


def find_devices(device: str) -> list[str]:
    """Return all GPUs if `device` is auto or cuda and there are several; otherwise only `device`."""
    if device in ("auto", "cuda") and torch.cuda.device_count() > 1:
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return [device]


def describe(comparison: Comparison) -> dict[str, Any]:
    """Return the inputs and settings that all methods of a comparison share, as JSON values."""
    return {
        "images": list(comparison.images),
        "labels": str(comparison.labels),
        "train_labels": None if comparison.train_labels is None else str(comparison.train_labels),
        "k": comparison.landmarks,
        "budget_minutes": comparison.budget / 60,
        "preset": comparison.preset,
        "seed": comparison.seed,
        "settings": dict(comparison.settings),
        "label_images": list(comparison.label_images),
        "normalizer": comparison.normalizer,
    }


def _require_usable_folder(output: Path) -> None:
    """Raise if a folder contains files, but no comparison; what a killed comparison left does not count."""
    if not output.exists() or (output / COMPARISON_FILE).exists():
        return
    if {strip_temporary(path.name) for path in output.iterdir()} - _UNFINISHED_NAMES:
        raise InputError(f"{output} is not empty and contains no comparison; choose another folder with -o")


def _require_same_comparison(comparison: Comparison, output: Path) -> None:
    """Write comparison.json if it is missing; otherwise check that it describes this comparison.

    The folder must be locked.

    Raises:
        InputError: if the folder contains another comparison or other files, or if labels or images changed.
    """
    path = output / COMPARISON_FILE
    described, digests = describe(comparison), digest_inputs(comparison)
    if path.exists():
        stored = read_json(path)
        stored_digests = stored.pop(DIGESTS_KEY, {}) if isinstance(stored, dict) else {}
        if not isinstance(stored, dict) or {**_ADDED_FIELDS, **stored} != described:
            raise InputError(
                f"{output} contains another comparison, with other inputs or settings; choose another folder "
                "with -o"
            )
        if not isinstance(stored_digests, dict):
            raise InputError(
                f"{path} is damaged: '{DIGESTS_KEY}' must be an object; choose another folder with -o"
            )
        require_unchanged(stored_digests, digests, comparison, output)
        return
    _require_usable_folder(output)
    write_json(described | {DIGESTS_KEY: digests}, path)


def run_in_process(job: MethodJob, on_start: Callable[[BaseProcess], None] = lambda process: None) -> Row:
    """Run a job in a new process, to measure the job's memory and to survive a crash of the job.

    Args:
        job: the job.
        on_start: called with the process when it has started.
    """
    context = multiprocessing.get_context("spawn")  # CUDA cannot be used in a forked process
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(job, sender), daemon=True)
    process.start()
    on_start(process)
    sender.close()
    try:
        received = receiver.recv()
    except EOFError:
        process.join()
        raise InputError(
            f"the process of method {job.name} ended unexpectedly with exit code {process.exitcode}"
        ) from None
    process.join()
    if isinstance(received, BaseException):
        raise received
    row: Row = received
    return row


def _work(job: MethodJob, sender: Connection) -> None:
    """Run a job, and send its row or its exception to the parent process, unless the parent was killed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        try:
            sender.send(measure_method(job))
        except BaseException as error:
            sender.send(error)


def _end_with_parent() -> None:
    """Wait until the parent process ends or is killed, then send SIGTERM to this process.

    The handler of SIGTERM saves the training and ends the process.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
