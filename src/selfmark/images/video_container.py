"""What a file that is called a video holds, judged by its first bytes."""

from __future__ import annotations

from pathlib import Path

from selfmark.errors import InputError

_HEAD = 4_096  # bytes looked at
_TEXT = bytes(range(32, 127)) + b"\t\n\r"
# Lists of other files or addresses, which a video library would open in turn.
_PLAYLISTS = (b"#extm3u", b"ffconcat", b"<mpd", b"<smil", b"[playlist]")


def require_video(path: Path) -> None:
    """Refuse a playlist that is called a video: it may name any file or address, and may never end."""
    try:
        with open(path, "rb") as handle:
            head = handle.read(_HEAD)
    except OSError:
        return  # whoever reads it will say so
    lowered = head.lower()
    if not head.translate(None, _TEXT) or any(word in lowered for word in _PLAYLISTS):
        raise InputError(f"{path} cannot be read as a video: it is a text or a playlist")
