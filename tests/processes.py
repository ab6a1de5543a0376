"""Run a function in several processes, joined on the CPU as torchrun would join them."""

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

_PATIENCE = 60  # seconds until a process that says nothing is given up
# Children are forked from a server that has torch loaded, so starting one takes no time.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "selfmark.correspondence.recovery"])


def in_processes(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(group, *arguments)` returns in each of `size` processes, in rank order.

    An error that selfmark raises on purpose is returned; of a process that ended without a word, None.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(size)]
    children = [
        _CONTEXT.Process(target=_work, args=(rank, size, port, pipes[rank][1], function, arguments))
        for rank in range(size)
    ]
    for child in children:
        child.start()
    for _, sender in pipes:
        sender.close()
    try:
        return [_receive(receiver) for receiver, _ in pipes]
    finally:
        for child in children:
            child.join(_PATIENCE)
            child.kill()


def _receive(receiver: Connection) -> Any:
    if not receiver.poll(_PATIENCE):
        raise TimeoutError("a process says nothing")
    try:
        return pickle.loads(receiver.recv_bytes())
    except EOFError:
        return None


def _work(
    rank: int,
    size: int,
    port: int,
    sender: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
    torch.set_num_threads(1)
    group = ProcessGroup.from_environment(torch.device("cpu"))
    try:
        result = function(group, *arguments)
    except SelfmarkError as error:
        result = error
    sender.send_bytes(pickle.dumps(result))
    group.close()
