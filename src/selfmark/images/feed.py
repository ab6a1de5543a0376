"""Where training reads its pixels: on the device if they fit there, otherwise from the host, ahead of need.

Images that do not fit are gathered by a thread into pinned memory and copied to the device while earlier
batches are worked on; the store itself may be in memory or mapped from a file. The device then holds a few
batches, whatever the number of images.
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

from selfmark.run.devices import free_memory

_AHEAD = 3  # batches fetched before they are needed

Rows = npt.NDArray[np.int64]
Item = TypeVar("Item")


class PixelFeed:
    """Batches of images [B, 3, S, S] uint8 on the training device, from a store [N, 3, S, S] uint8."""

    def __init__(self, pixels: Tensor, device: torch.device, device_share: float = 1.0) -> None:
        """Move the store to the device if it takes at most `device_share` of the memory free there."""
        self.device = device
        self.pixels = pixels
        if device.type == "cuda" and pixels.numel() <= device_share * free_memory(device):
            self.pixels = pixels.to(device)

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def at_hand(self) -> bool:
        """Whether the images lie where training happens."""
        return self.pixels.device.type == self.device.type

    def batches(self, wanted: Iterable[Rows]) -> Iterator[Tensor]:
        """The images `wanted` names, batch by batch."""
        if self.at_hand:
            return (self.pixels[to_device(rows, self.device)] for rows in wanted)
        return self._fetched(wanted)

    def in_order(self, batch: int, rows: slice | None = None) -> Iterator[Tensor]:
        """All images, or those of a slice, `batch` at a time."""
        first, last, _ = (rows or slice(None)).indices(len(self))
        return self.batches(np.arange(start, min(start + batch, last)) for start in range(first, last, batch))

    def _fetched(self, wanted: Iterable[Rows]) -> Iterator[Tensor]:
        """Gather on the host and copy across on a stream of its own, a few batches ahead."""
        ready: queue.Queue[tuple[Tensor, torch.cuda.Event] | BaseException | None] = queue.Queue(_AHEAD)
        stopped = threading.Event()
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

        def fetch() -> None:
            try:
                for rows in wanted:
                    pinned = self.pixels[torch.from_numpy(rows)].pin_memory()
                    with torch.cuda.stream(stream):
                        images = pinned.to(self.device, non_blocking=True)
                        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                        event.record(stream)
                    if not _put(ready, (images, event), stopped):
                        return
                _put(ready, None, stopped)
            except BaseException as error:  # shown where the batch is missed
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
    """Numbers from the host, without waiting for the device to be done with earlier work."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def _put(ready: queue.Queue[Item], item: Item, stopped: threading.Event) -> bool:
    """Hand over an item unless nobody waits for it any more."""
    while not stopped.is_set():
        try:
            ready.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False
