"""Check the type of a video file before a library opens it, and the claims of its header before decoding."""

from __future__ import annotations

import os
from pathlib import Path

from selfmark.errors import InputError
from selfmark.images.input_files import MAX_PIXELS_PER_BYTE, MIN_PIXELS_TO_CHECK
from selfmark.images.mp4_header import check_mp4_header
from selfmark.run.guarded_files import open_to_read

_HEAD = 4_096  # bytes at the start of a file that are checked
_TEXT = bytes(range(32, 127)) + b"\t\n\r"  # bytes of a text file
# Lists of other files or URLs, which a video library would open.
_PLAYLISTS = (b"#extm3u", b"ffconcat", b"<mpd", b"<smil", b"[playlist]")


def require_video(path: Path) -> None:
    """Raise if a file is text, a playlist, or an MP4 file whose header claims more than the file contains.

    A playlist could open any file or URL, and might never end.
    """
    try:
        with open_to_read(path) as handle:
            head = handle.read(_HEAD)
    except OSError:
        return  # Opening the video will raise an error that explains this.
    lowered = head.lower()
    if not head.translate(None, _TEXT) or any(word in lowered for word in _PLAYLISTS):
        raise InputError(f"{path} cannot be read as a video: it is a text file or a playlist")
    check_mp4_header(path)


def ffmpeg_path(path: Path) -> str:
    """Return the path of a file in a form that FFmpeg cannot take for a URL.

    FFmpeg reads `SCHEME:REST` as a URL, for example a file called `http:example.org:80.mp4`, or a recording
    called `2024-05-01T10:30:00.mp4`.

    >>> ffmpeg_path(Path("/videos/cache:b.mp4"))
    '/videos/cache:b.mp4'
    """
    return os.path.abspath(path)


def require_plausible_frame_size(path: Path, width: int, height: int) -> None:
    """Raise if frames have more pixels than a file of this size can contain; called before decoding."""
    size = path.stat().st_size
    if width * height > max(MIN_PIXELS_TO_CHECK, size * MAX_PIXELS_PER_BYTE):
        raise InputError(
            f"the header of {path} claims frames of {width:,} x {height:,} pixels, but the file has {size:,} "
            "bytes; convert it, for example to MP4 (H.264)"
        )
