"""Change how training treats landmarks without a mirror partner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from selfmark import pipeline
from selfmark.correspondence.mirror import LandmarkPartners, find_mirror_partners
from selfmark.feature_discovery import feature_pipeline


@contextmanager
def override_unpaired_treatment(treatment: str) -> Iterator[None]:
    """Override how runs in this context treat landmarks without a mirror partner.

    Args:
        treatment: "masked" leaves them out of mirrored images, as selfmark does; "itself" makes them their
            own partners.
    """
    if treatment == "masked":
        yield
        return
    with (
        patch.object(pipeline, "find_mirror_partners", _pair_all),
        patch.object(feature_pipeline, "find_mirror_partners", _pair_all),
    ):
        yield


def _pair_all(table: npt.NDArray[np.int64]) -> LandmarkPartners:
    """Find mirror partners and mark every landmark as paired."""
    mirror = find_mirror_partners(table).mirror
    return LandmarkPartners(mirror, (True,) * len(mirror))
