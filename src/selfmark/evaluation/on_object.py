"""Measure how many landmarks lie on the annotated object."""

from __future__ import annotations

import cv2
import numpy as np

from selfmark.evaluation.protocol import Examples


def fraction_on_object(examples: Examples, tolerance: float) -> float | None:
    """Return the fraction of landmarks that lie in the convex hull of their image's annotated points.

    Images with fewer than three annotated points do not count.

    Args:
        examples: landmarks and annotated points of N images, in network pixels.
        tolerance: maximum distance from the hull at which a landmark outside still counts, network pixels.

    Returns:
        The fraction, or None if no image has three annotated points.
    """
    is_inside: list[bool] = []
    for landmarks, truth, visible in zip(examples.landmarks, examples.truth, examples.visible, strict=True):
        if visible.sum() < 3:
            continue
        hull = cv2.convexHull(truth[visible].astype(np.float32))
        distances = [cv2.pointPolygonTest(hull, (float(x), float(y)), True) for x, y in landmarks]
        is_inside += [distance >= -tolerance for distance in distances]
    return float(np.mean(is_inside)) if is_inside else None
