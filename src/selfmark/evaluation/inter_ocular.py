"""Measure errors of 68 facial points with two definitions of the inter-ocular distance.

The first definition is that of this package. The second definition is that of the authors' program.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from selfmark.annotations import AnnotatedObjects
from selfmark.evaluation.nme import IntArray
from selfmark.evaluation.normalizers import list_inter_ocular_specs, measure_unchecked_lengths
from selfmark.evaluation.protocol import Metrics
from selfmark.images.crop import region_sides
from selfmark.points import FloatArray


def measure_by_definition(
    truth: AnnotatedObjects,
    regions: FloatArray,
    size: int,
    measure: Callable[[str, IntArray, FloatArray], Metrics],
) -> Metrics:
    """Measure errors once for each definition of the inter-ocular distance.

    Both measurements use the same images: those in which both distances are known and not zero.

    Args:
        truth: N test objects.
        regions: [N, 4] x, y, w, h of the network images in the originals.
        size: Side of the network image.
        measure: Takes the spec of a definition, the rows [T] of the images to measure, and the inter-ocular
            distances [T] in these images in network pixels; returns the metrics.

    Returns:
        One entry for each definition (see `list_inter_ocular_specs`): its `normaliser`, the number of images,
        and the metrics. Empty if the objects do not have 68 facial points, or if no image has both distances.
    """
    specs = list_inter_ocular_specs(truth.names)
    scale = size / region_sides(regions)
    lengths = {name: measure_unchecked_lengths(truth, spec, regions) * scale for name, spec in specs.items()}
    if not lengths:
        return {}
    # Unknown lengths are NaN, for which the comparison is False.
    rows = np.flatnonzero(np.all([length > 0 for length in lengths.values()], axis=0))
    if len(rows) == 0:
        return {}
    return {
        name: {
            "normaliser": spec,
            "test_images_used": len(rows),
            **measure(spec, rows, lengths[name][rows]),
        }
        for name, spec in specs.items()
    }
