"""What becomes of landmarks without a mirror partner: left out of mirrored images, or their own partners."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from selfmark import feature_pipeline, pipeline
from selfmark.correspondence.mirror import LandmarkPartners, find_mirror_partners


@contextmanager
def unpaired_landmarks(treatment: str) -> Iterator[None]:
    """Train as selfmark does ("masked"), or make such landmarks their own partners ("itself")."""
    if treatment == "masked":
        yield
        return
    with (
        patch.object(pipeline, "find_mirror_partners", _pair_all),
        patch.object(feature_pipeline, "find_mirror_partners", _pair_all),
    ):
        yield


def _pair_all(table: npt.NDArray[np.int64]) -> LandmarkPartners:
    mirror = find_mirror_partners(table).mirror
    return LandmarkPartners(mirror, (True,) * len(mirror))
