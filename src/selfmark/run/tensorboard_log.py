"""Write the events of a run for TensorBoard: losses as curves, previews as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from selfmark.errors import report_write_errors, require_package
from selfmark.run.event_log import Event
from selfmark.run.guarded_files import make_folder, open_to_read

FOLDER = "tensorboard"
_PICTURE_SIDE = 1_000  # maximum side, pixels; compressing a larger picture as PNG takes a second


class TensorBoardLog:
    """A listener that writes to RUN/tensorboard; close it at the end."""

    def __init__(self) -> None:
        """Check that TensorBoard is installed.

        Raises:
            InputError: if TensorBoard is not installed.
        """
        require_package("tensorboard", "'selfmark[tensorboard]'")
        self._writer: Any = None
        # Mapping from stage and round to the number of iterations before this round.
        self._offset: dict[tuple[str, int], int] = {}
        self._last_step = 0  # highest position on the x axis of the curves so far

    def open(self, run: Path) -> None:
        """Start writing to the folder of a run."""
        from torch.utils.tensorboard import SummaryWriter

        with report_write_errors(f"to {run / FOLDER}"):
            make_folder(run / FOLDER)  # raises if the folder is a link
            self._writer = SummaryWriter(str(run / FOLDER))

    def __call__(self, event: Event) -> None:
        """Write the losses of a `train` event or the picture of a `preview` event; ignore other events."""
        if self._writer is None:
            return
        if event["event"] == "train":
            self._write_losses(event)
        elif event["event"] == "preview":
            with open_to_read(Path(event["path"])) as file, Image.open(file) as picture:
                picture.thumbnail((_PICTURE_SIDE, _PICTURE_SIDE))
                pixels = np.asarray(picture)
            self._writer.add_image(f"landmarks/{event['step']}", pixels, self._last_step, dataformats="HWC")
            self._writer.flush()

    def close(self) -> None:
        """Write everything to disk."""
        if self._writer is not None:
            self._writer.close()

    def _write_losses(self, event: Event) -> None:
        """Add the losses of an event to their curves.

        Some stages count the iterations of each round from zero. Their rounds follow each other in the curve.
        """
        key = (event["stage"], event["round"])
        offset = self._offset.setdefault(key, max(0, self._last_step - event["start"]))
        step = offset + event["iteration"]
        self._last_step = max(self._last_step, step)
        for name, value in event["loss"].items():
            self._writer.add_scalar(f"{event['stage']}/{name}", value, step)
