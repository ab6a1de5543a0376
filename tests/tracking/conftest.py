"""Provide the `write_video` fixture of the image tests."""

from __future__ import annotations

from tests.images.conftest import write_video

__all__ = ["write_video"]
