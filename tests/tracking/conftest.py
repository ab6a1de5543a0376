"""Videos, as in the tests of images."""

from __future__ import annotations

from tests.images.conftest import write_video

__all__ = ["write_video"]
