"""Skip these tests where the packages that serve pages are missing."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")
