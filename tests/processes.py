"""Run a function or a command in several processes that form a process group on the CPU, as with torchrun."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from selfmark.errors import SelfmarkError
from selfmark.run.processes import ProcessGroup
from tests.conftest import selfmark

_TIMEOUT = 300  # seconds to wait for the result of a process
# Processes are forked from a server that has imported torch, so that they start quickly. Each process that
# runs tests has only one such server.
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["tests.processes", "tests.reliability.runs"])


def run_in_processes(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call `function(group, *arguments)` in each of `size` processes.

    Returns:
        The results in rank order. If the function raised an error of selfmark, the result is this error. If
        the process died, the result is None.
    """
    return _run_children(size, _call_with_group, function, *arguments)


def run_command_in_processes(size: int, *words: Any) -> list[tuple[int, str] | None]:
    """Run a command of selfmark in each of `size` processes.

    Returns:
        The exit code and the output of each process in rank order; None for a process that died.
    """
    return _run_children(size, _run_command, *words)


def run_patched_command_in_processes(
    size: int, patch: Callable[[], None], *words: Any
) -> list[tuple[int, str]]:
    """Run a command of selfmark in each of `size` processes, after calling `patch` there.

    Returns:
        The exit code and the output of each process in rank order.
    """
    return _run_children(size, _run_patched_command, patch, *words)


def _run_children(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        port = free_socket.getsockname()[1]
    pipes = [FORKSERVER.Pipe(duplex=False) for _ in range(size)]
    children = [
        FORKSERVER.Process(target=_run_child, args=(rank, size, port, pipes[rank][1], function, arguments))
        for rank in range(size)
    ]
    for child in children:
        child.start()
    for _, sender in pipes:
        sender.close()
    try:
        return [_receive_result(receiver) for receiver, _ in pipes]
    finally:
        for child in children:
            child.join(_TIMEOUT)
            child.kill()


def _receive_result(receiver: Connection) -> Any:
    if not receiver.poll(_TIMEOUT):
        raise TimeoutError("a process returned no result")
    try:
        return pickle.loads(receiver.recv_bytes())
    except EOFError:
        return None


def _run_child(
    rank: int,
    size: int,
    port: int,
    sender: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in variables.items()}, MASTER_ADDR="127.0.0.1")
    torch.set_num_threads(1)
    sender.send_bytes(pickle.dumps(function(*arguments)))
    if dist.is_initialized():
        dist.destroy_process_group()


def _call_with_group(function: Callable[..., Any], *arguments: Any) -> Any:
    group = ProcessGroup.from_environment(torch.device("cpu"))
    try:
        return function(group, *arguments)
    except SelfmarkError as error:
        return error


def _run_patched_command(patch: Callable[[], None], *words: Any) -> tuple[int, str]:
    patch()
    return _run_command(*words)


def _run_command(*words: Any) -> tuple[int, str]:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = selfmark(*words)
    return code, output.getvalue()
