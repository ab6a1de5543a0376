"""Define references to images: an image file or a video frame, and the box of the object in the image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

Box = tuple[float, float, float, float]
"""x, y, width and height in pixels, measured from pixel corners."""
ClipFrame = tuple[str, int]
"""Name of a video and 0-based number of one of its frames."""
_MAX_COORDINATE = 1e6  # pixels; larger than any image that can be read


def is_possible_box(x: float, y: float, width: float, height: float) -> bool:
    """Return True if a box is at least 1 pixel wide and high and its numbers are possible in an image.

    >>> is_possible_box(0, 0, 64, 48), is_possible_box(0, 0, float("inf"), 48), is_possible_box(0, 0, 0, 48)
    (True, False, False)
    """
    is_near = all(abs(number) <= _MAX_COORDINATE for number in (x, y, width, height))
    return is_near and width >= 1 and height >= 1


@dataclass(frozen=True)
class ImageRef:
    """An object to process: an image file or a video frame, and the box of the object in the image.

    path:  the file, as given by the user
    frame: 0-based frame number in a video file; None for image files
    box:   x, y, width, height in pixels of the image after its EXIF rotation, measured from pixel corners;
           None if the object fills the image
    track: number of the object in its video, the same in every frame; None if unknown
    clip:  video and frame number of an image file that was extracted from a video; None for other files

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
        """Video and frame number that the image comes from; None if it does not come from a video."""
        return self.clip if self.frame is None else (str(self.path), self.frame)
