"""References to single images: a file, a frame of a video, and where the object is in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

Box = tuple[float, float, float, float]
"""x, y, width and height in pixels, measured from pixel corners."""
ClipFrame = tuple[str, int]
"""Name of a video and 0-based number of one of its frames."""


@dataclass(frozen=True)
class ImageRef:
    """One object to process: a still image or a video frame, and the box of the object in it.

    path:  the file, as the user named it
    frame: 0-based frame number in a video file; None for still images
    box:   x, y, w, h of the object in pixels of the upright original, measured from pixel corners; None: the
           object fills the image
    track: number of the object in its video, the same in every frame; None if unknown
    clip:  video and frame number of a still image that was exported from a video; None for other images

    >>> ImageRef(Path("fly.mp4"), frame=7).name
    'fly.mp4#7'
    """

    path: Path
    frame: int | None = None
    box: Box | None = None
    track: int | None = None
    clip: ClipFrame | None = None

    @property
    def name(self) -> str:
        """Name of the image in output files."""
        return str(self.path) if self.frame is None else f"{self.path}#{self.frame}"

    @property
    def source_frame(self) -> ClipFrame | None:
        """Video and frame number the image comes from; None for a still image of its own."""
        return self.clip if self.frame is None else (str(self.path), self.frame)
