"""Check the first bytes of a video file, because a playlist may have the extension of a video."""

from __future__ import annotations

from pathlib import Path

from selfmark.errors import InputError

_HEAD = 4_096  # bytes to check
_TEXT = bytes(range(32, 127)) + b"\t\n\r"
# Lists of other files or URLs, which a video library would open.
_PLAYLISTS = (b"#extm3u", b"ffconcat", b"<mpd", b"<smil", b"[playlist]")


def require_video(path: Path) -> None:
    """Raise if a file is text or a playlist; a playlist could open any file or URL, and might never end."""
    try:
        with open(path, "rb") as handle:
            head = handle.read(_HEAD)
    except OSError:
        return  # reading the video will raise
    lowered = head.lower()
    if not head.translate(None, _TEXT) or any(word in lowered for word in _PLAYLISTS):
        raise InputError(f"{path} cannot be read as a video: it is a text file or a playlist")
