"""Run a function in several processes that form a process group on the CPU, as with torchrun."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from selfmark.errors import SelfmarkError
from selfmark.run.processes import ProcessGroup

_TIMEOUT = 60  # seconds to wait for the result of a process
# Processes are forked from a server that has imported torch, so that they start quickly.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "selfmark.correspondence.recovery"])


def run_in_processes(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call `function(group, *arguments)` in each of `size` processes.

    Returns:
        The results in rank order. The result of a process is the error if the function raised an error of
        selfmark, and None if the process died.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(size)]
    children = [
        _CONTEXT.Process(target=_run_child, args=(rank, size, port, pipes[rank][1], function, arguments))
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
    group = ProcessGroup.from_environment(torch.device("cpu"))
    try:
        result = function(group, *arguments)
    except SelfmarkError as error:
        result = error
    sender.send_bytes(pickle.dumps(result))
    group.close()
