"""Build ONNX graphs of networks that turn each image before they locate landmarks.

The nodes follow `model.turned_network` step by step.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from selfmark.export.onnx_encoder import add_feature_heatmaps, add_part_features
from selfmark.export.onnx_graph import Maps, Recorder, to_array
from selfmark.export.onnx_nodes import Value, integers
from selfmark.features.direction import choose_reductions
from selfmark.model.turned_network import DirectionFinder, TurnedPsi


def add_turned_heatmaps(recorder: Recorder, network: TurnedPsi, images: Value, size: int) -> Maps:
    """Add a network that turns images [B, 3, size, size], floats 0..255, and return its K heatmaps.

    Raises:
        InputError: An encoder cannot be exported.
    """
    graph = recorder.graph
    angle = _add_angles(recorder, network.finder, images, size)
    cosine, sine = (angle.apply(name).reshape(-1, 1, 1) for name in ("Cos", "Sin"))
    turned = _add_rotation(images, cosine, sine, size, "border")
    maps = add_feature_heatmaps(recorder, network.psi, turned, size)
    back = _add_rotation(Value(graph, maps.name), cosine, sine * -1.0, maps.side, "zeros")
    return Maps(back.name, maps.channels, maps.side)


def _add_angles(recorder: Recorder, finder: DirectionFinder, images: Value, size: int) -> Value:
    """Add nodes that compute the angles [B, 1] that `finder` returns, in radians.

    Each image is rotated in steps over the full circle, and its features are compared with the finder's
    template. The result is the angle of the highest similarity plus the finder's offset.
    """
    graph, settings = recorder.graph, finder.settings
    reduction, pooling = choose_reductions(size, finder.encoder.size_multiple, settings)
    small, side = _add_pooling(images, reduction), size // reduction
    template = to_array(finder.template).reshape(-1, 1)
    similarities = []
    for number in range(settings.rotations):
        angle = 2 * math.pi * number / settings.rotations
        cosine, sine = (
            Value(graph, graph.add("Identity", np.full((1, 1, 1), function(angle), np.float32)))
            for function in (math.cos, math.sin)
        )
        rotated = _add_rotation(small, cosine, sine, side, "border")
        features = add_part_features(recorder, finder.encoder, rotated, side)
        pooled = _add_pooling(Value(graph, features.name), pooling)
        flat = pooled.reshape(-1, len(template))
        similarities.append(flat.apply("MatMul", template))
    similarity = similarities[0].apply("Concat", *similarities[1:], axis=1)
    return _add_best_angles(similarity, settings.rotations) + to_array(finder.offset)


def _add_best_angles(similarity: Value, rotations: int) -> Value:
    """Add the interpolated angle [B, 1] of the highest similarity, as in `features.direction.best_angles`.

    Args:
        similarity: [B, rotations], one column per rotation.
        rotations: Number of rotations, evenly spaced over the full circle.
    """
    step = 2 * math.pi / rotations
    peak = similarity.apply("ArgMax", axis=1, keepdims=1)
    position = peak.cast(np.float32)
    if rotations < 3:
        return position * step

    def similarity_at(offset: int) -> Value:
        neighbor = peak.apply("Add", integers(rotations + offset)).apply("Mod", integers(rotations))
        return similarity.apply("GatherElements", neighbor, axis=1)

    before, at_peak, after = similarity_at(-1), similarity_at(0), similarity_at(1)
    curvature = (at_peak * 2.0 - before - after).apply("Max", 1e-9)
    fraction = ((after - before) * 0.5 / curvature).clip(-0.5, 0.5)
    return (position + fraction) * step


def _add_rotation(maps: Value, cosine: Value, sine: Value, side: int, padding: str) -> Value:
    """Add the rotation of maps [B, C, side, side] around their center, as in `augment.warp_images`.

    Args:
        maps: Maps to rotate.
        cosine: [B, 1, 1] cosine of each angle, or [1, 1, 1] for one angle.
        sine: Sine of the angles, with the shape of `cosine`.
        side: Side of the maps, in cells.
        padding: Values outside the maps: "border" or "zeros".
    """
    x, y = _make_centered_grid(side)
    columns, rows = cosine * x + sine * y, cosine * y - sine * x
    grid = columns.apply("Unsqueeze", integers([3])).apply(
        "Concat", rows.apply("Unsqueeze", integers([3])), axis=3
    )
    # Repeat the grid of a single angle for all images of the batch.
    batch = maps.apply("Shape").apply("Slice", integers([0]), integers([1]))
    shape = Value(maps.graph, maps.graph.add("Concat", batch.name, integers([side, side, 2]), axis=0))
    return maps.apply("GridSample", grid.apply("Expand", shape), mode="bilinear", padding_mode=padding)


def _make_centered_grid(side: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return x and y of the cell centers, each [1, side, side]; -1 and 1 are the outer edges of the maps."""
    line = (2 * np.arange(side) + 1) / side - 1
    y, x = np.meshgrid(line, line, indexing="ij")
    return x[None].astype(np.float32), y[None].astype(np.float32)


def _add_pooling(maps: Value, factor: int) -> Value:
    """Add nodes that average squares of `factor` x `factor` cells."""
    if factor == 1:
        return maps
    return maps.apply("AveragePool", kernel_shape=[factor, factor], strides=[factor, factor])
