"""Decode and crop still images for the main process, in a separate process.

In one process, only one thread at a time can run Python code, which limits how fast its threads read images.
Further processes are therefore started, with `subprocess`. `multiprocessing` would import the user's script
again, or fork the main process, which does not work with CUDA. Crops are returned in shared memory;
everything else, such as paths and boxes, passes through a pipe. A process ends when the main process closes
its end of the pipe or is killed.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import cv2
import numpy as np

from selfmark.config import Images
from selfmark.image_ref import Box, ImageRef
from selfmark.images.decode import Pixels
from selfmark.images.read_crops import Crop, Outcome, read_crops

CAPACITY = 16  # crops that fit into the shared memory of a process

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from selfmark.images.reading_process import serve_crops; serve_crops(int(sys.argv[2]), int(sys.argv[3]))"
)
# Each process works on one image at a time, so threads of its libraries would only compete for the cores.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_EXIT_SECONDS = 5.0  # time that a process gets to finish its image


@dataclass(frozen=True)
class StillImage:
    """An image file, and the references to objects in it."""

    path: Path
    refs: Sequence[ImageRef]


class ReadingProcess:
    """A running process that crops images to the size given by the settings."""

    def __init__(self, images: Images) -> None:
        """Start the process; it is ready after about half a second.

        Raises:
            OSError: if the process cannot be started.
        """
        self._images = images
        self._memory = os.memfd_create("selfmark-crops")
        shape = (CAPACITY, 3, images.size, images.size)
        os.ftruncate(self._memory, int(np.prod(shape)))
        self._crops = _map_crops(self._memory, shape)
        self._connection, other_end = Pipe()
        try:
            words = [
                json.dumps([str(entry) for entry in sys.path]),
                str(other_end.fileno()),
                str(self._memory),
            ]
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD},
                pass_fds=(other_end.fileno(), self._memory),
                process_group=0,  # Ctrl-C in a terminal reaches the main process only.
            )
            self._connection.send(images)
        except BaseException:
            self._connection.close()
            os.close(self._memory)
            raise
        finally:
            other_end.close()

    def read(self, stills: Sequence[StillImage]) -> list[list[Outcome]]:
        """Return the result of `read_crops` for each image; at most `CAPACITY` references in all.

        An error that `read_crops` raises in the process is raised here again.

        Raises:
            EOFError, OSError: if the process has ended.
        """
        self._connection.send([(str(still.path), [ref.box for ref in still.refs]) for still in stills])
        reply = self._connection.recv()
        if isinstance(reply, BaseException):
            raise reply
        outcomes: list[list[Outcome]] = []
        row = 0
        for answers in reply:
            outcomes.append([])
            for answer in answers:
                if isinstance(answer, str):
                    outcomes[-1].append(answer)
                    continue
                size, region = answer
                outcomes[-1].append(Crop(self._crops[row].copy(), size, np.array(region)))
                row += 1
        return outcomes

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._memory)


def can_start_processes() -> bool:
    """Return True if the processes can be started: on Linux, with an ordinary Python interpreter."""
    is_python = "python" in Path(sys.executable or "").name.lower() and not getattr(sys, "frozen", False)
    return hasattr(os, "memfd_create") and is_python


def serve_crops(connection_descriptor: int, memory_descriptor: int) -> None:
    """Read images until the connection is closed; the main function of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides when to end
    cv2.setNumThreads(1)
    connection = Connection(connection_descriptor)
    try:
        images: Images = connection.recv()
        crops = _map_crops(memory_descriptor, (CAPACITY, 3, images.size, images.size))
        while True:
            connection.send(_answer(connection.recv(), images, crops))
    except (EOFError, OSError):
        return


def _answer(
    stills: list[tuple[str, list[Box | None]]], images: Images, crops: Pixels
) -> list[list[str | tuple[tuple[int, int], list[float]]]] | Exception:
    """Write the crops of images to the shared memory.

    Returns:
        For each image, one answer per box: the size of the original and the region of the crop, or the reason
        why there is no crop. If an error occurs, the error.
    """
    answers: list[list[str | tuple[tuple[int, int], list[float]]]] = []
    row = 0
    try:
        for name, boxes in stills:
            path = Path(name)
            answers.append([])
            for outcome in read_crops(path, [ImageRef(path, box=box) for box in boxes], images):
                if isinstance(outcome, str):
                    answers[-1].append(outcome)
                    continue
                crops[row] = outcome.pixels
                answers[-1].append((outcome.size, outcome.region.tolist()))
                row += 1
    except Exception as error:
        return error
    return answers


def _map_crops(descriptor: int, shape: tuple[int, int, int, int]) -> Pixels:
    """Return the shared memory as an array of crops with this shape."""
    return np.frombuffer(mmap.mmap(descriptor, int(np.prod(shape))), np.uint8).reshape(shape)
