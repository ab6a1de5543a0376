"""Feed batches of images to a network: from device memory if all images fit, otherwise from the host.

If the images do not fit, a thread gathers batches in pinned memory and copies them to the device while
earlier batches are processed. The device then holds only a few batches, regardless of the number of images.
On the host, the images may be in memory or memory-mapped from a file.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfmark.run.devices import measure_free_memory

_PREFETCH = 3  # batches to fetch before they are needed

Rows = npt.NDArray[np.int64]
Item = TypeVar("Item")


class PixelFeed:
    """Batches of images [B, 3, S, S] uint8 on the training device, from a store [N, 3, S, S] uint8."""

    def __init__(self, pixels: Tensor, device: torch.device, device_fraction: float = 1.0) -> None:
        """Move the pixels to the device if they take at most `device_fraction` of its free memory."""
        self.device = device
        self.pixels = pixels
        if device.type == "cuda" and pixels.numel() <= device_fraction * measure_free_memory(device):
            self.pixels = pixels.to(device)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.pixels)

    @property
    def is_on_device(self) -> bool:
        """Return True if the images are in the memory of the training device."""
        return self.pixels.device.type == self.device.type

    def batches(self, batch_rows: Iterable[Rows]) -> Iterator[Tensor]:
        """Yield one batch of images for each array of row numbers in `batch_rows`."""
        if self.is_on_device:
            return (self.pixels[to_device(rows, self.device)] for rows in batch_rows)
        return self._prefetch(batch_rows)

    def sequential_batches(self, batch: int, rows: slice | None = None) -> Iterator[Tensor]:
        """Yield all images, or the images of a slice, in order and in batches of `batch` images."""
        first, stop, _ = (rows or slice(None)).indices(len(self))
        return self.batches(np.arange(start, min(start + batch, stop)) for start in range(first, stop, batch))

    def _prefetch(self, batch_rows: Iterable[Rows]) -> Iterator[Tensor]:
        """Gather batches on the host and copy them to the device on another stream, a few batches ahead."""
        ready: queue.Queue[tuple[Tensor, torch.cuda.Event] | BaseException | None] = queue.Queue(_PREFETCH)
        stopped = threading.Event()
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

        def fetch() -> None:
            try:
                for rows in batch_rows:
                    pinned = self.pixels[torch.from_numpy(rows)].pin_memory()
                    with torch.cuda.stream(stream):
                        images = pinned.to(self.device, non_blocking=True)
                        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                        event.record(stream)
                    if not _put(ready, (images, event), stopped):
                        return
                _put(ready, None, stopped)
            except BaseException as error:  # re-raised in the thread that waits for the batch
                _put(ready, error, stopped)

        thread = threading.Thread(target=fetch, name="selfmark-feed", daemon=True)
        thread.start()
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                images, event = item
                current = torch.cuda.current_stream(self.device)
                current.wait_event(event)
                images.record_stream(current)
                yield images
        finally:
            stopped.set()
            thread.join()


def to_device(values: Rows, device: torch.device) -> Tensor:
    """Copy an array to a device without waiting for the device to finish earlier work."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def _put(ready: queue.Queue[Item], item: Item, stopped: threading.Event) -> bool:
    """Put an item into the queue; return False if the consumer has stopped."""
    while not stopped.is_set():
        try:
            ready.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False
