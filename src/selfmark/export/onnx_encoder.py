"""Build ONNX graphs of networks that contain an EfficientNet-Lite encoder.

Each batch norm is folded into the convolution before it. ONNX Runtime also fuses the ReLU6 that follows the
norm into this convolution. The convolutions use the dtype of the `Recorder`. As in torch, maps are resized
and scaled to unit vectors in float32.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from selfmark.config import STRIDE
from selfmark.errors import InputError
from selfmark.export.onnx_graph import Maps, Recorder, add_unit_vectors, to_array
from selfmark.export.onnx_nodes import Graph, Value, floats
from selfmark.features.cells import append_places
from selfmark.features.efficientnet_lite import EfficientNetLiteEncoder, InvertedResidual, NormalizedConv
from selfmark.features.encoder import CELL, Encoder
from selfmark.features.loading import EFFICIENTNETS
from selfmark.model.feature_network import FeaturePsi, ZeroShotPsi


def add_feature_heatmaps(
    recorder: Recorder, network: FeaturePsi | ZeroShotPsi, images: Value, size: int
) -> Maps:
    """Add a network and return its K heatmaps for images [B, 3, size, size], floats 0..255.

    Raises:
        InputError: The encoder cannot be exported.
    """
    if isinstance(network, ZeroShotPsi):
        features = add_part_features(recorder, network.encoder, images, size)
        maps = _add_similarity_heat(recorder.graph, network, features)
    else:
        blocks = _add_blocks(recorder, require_exportable(network.encoder), Maps(images.name, 3, size))
        maps = _add_head(recorder, network, _add_join(recorder.graph, blocks, size // CELL))
    return _add_resize(recorder.graph, maps, size // STRIDE)


def add_part_features(recorder: Recorder, encoder: Encoder, images: Value, size: int) -> Maps:
    """Add the part features that `encoder.describe` computes, for images [B, 3, size, size], floats 0..255.

    Raises:
        InputError: The encoder cannot be exported.
    """
    blocks = _add_blocks(recorder, require_exportable(encoder), Maps(images.name, 3, size))
    return _add_join(recorder.graph, blocks[1:], size // CELL)


def require_exportable(encoder: Encoder) -> EfficientNetLiteEncoder:
    """Return the encoder if it is an EfficientNet-Lite; otherwise raise an InputError."""
    if not isinstance(encoder, EfficientNetLiteEncoder):
        raise InputError(
            f"detectors with the features '{encoder.info.name}' cannot be exported to ONNX, only those with "
            f"{', '.join(EFFICIENTNETS)} and those without pretrained features"
        )
    return encoder


def _add_blocks(recorder: Recorder, encoder: EfficientNetLiteEncoder, images: Maps) -> list[Maps]:
    """Add the stem and the blocks, and return the outputs of the blocks listed in `encoder.blocks`."""
    network = encoder.network
    centered = (Value(recorder.graph, images.name) - 127.0) / 128.0  # the range that the encoder expects
    x = Maps(centered.cast(recorder.dtype).name, images.channels, images.side)
    x = _add_layer(recorder, network.stem, x)
    outputs = []
    for index in range(max(encoder.blocks) + 1):
        x = _add_block(recorder, network.block(index), x)
        if index in encoder.blocks:
            outputs.append(x)
    return outputs


def _add_block(recorder: Recorder, block: InvertedResidual, x: Maps) -> Maps:
    y = x
    for layer in block.layers():
        y = _add_layer(recorder, layer, y)
    return Maps(recorder.graph.add("Add", x.name, y.name), y.channels, y.side) if block.has_skip else y


def _add_layer(recorder: Recorder, layer: NormalizedConv, x: Maps) -> Maps:
    """Add a convolution that includes its batch norm, and a ReLU6 if the layer has one."""
    conv = layer.conv
    before, after = conv.pad_amounts(x.side)
    result = recorder.graph.add(
        "Conv",
        x.name,
        *(recorder.to_dtype(parameter) for parameter in conv.fold(layer.norm)),
        kernel_shape=list(conv.kernel_size),
        strides=list(conv.stride),
        pads=[before, before, after, after],
        group=conv.groups,
    )
    if layer.has_relu6:
        result = recorder.graph.add("Clip", result, np.array(0, recorder.dtype), np.array(6, recorder.dtype))
    side = -(-x.side // conv.stride[0])  # rounded up
    return Maps(result, conv.out_channels, side)


def _add_join(graph: Graph, maps: list[Maps], side: int) -> Maps:
    """Add nodes that join maps to float32 unit vectors on one grid, in the same way as `join_maps`."""
    parts = []
    for item in maps:
        part = Maps(Value(graph, item.name).cast(np.float32).name, item.channels, item.side)
        parts.append(add_unit_vectors(Value(graph, _add_resize(graph, part, side).name)))
    joined = parts[0].apply("Concat", *parts[1:], axis=1)
    return Maps(add_unit_vectors(joined).name, sum(item.channels for item in maps), side)


def _add_resize(graph: Graph, maps: Maps, side: int) -> Maps:
    """Add bilinear enlargement by an integer factor, like torch's `interpolate(align_corners=False)`."""
    if maps.side == side:
        return maps
    factor = side // maps.side
    resized = graph.add(
        "Resize",
        maps.name,
        "",
        floats([1, 1, factor, factor]),
        mode="linear",
        coordinate_transformation_mode="half_pixel",
    )
    return Maps(resized, maps.channels, side)


def _add_head(recorder: Recorder, network: FeaturePsi, features: Maps) -> Maps:
    """Add the head and return its maps in float32."""
    scaled = (Value(recorder.graph, features.name) * network.feature_scale).cast(recorder.dtype)
    x = Maps(scaled.name, features.channels, features.side)
    for layer in network.head:
        if isinstance(layer, nn.Conv2d):
            x = recorder.conv(layer, x)
        else:
            x = Maps(recorder.graph.add("Relu", x.name), x.channels, x.side)
    return Maps(Value(recorder.graph, x.name).cast(np.float32).name, x.channels, x.side)


def _add_similarity_heat(graph: Graph, network: ZeroShotPsi, features: Maps) -> Maps:
    """Add one heatmap per centroid, computed in the same way as in `feature_network.similarity_heat`."""
    channels = network.encoder.part_channels
    weights = to_array(network.centroids[:, :channels])[:, :, None, None]
    product = Value(graph, features.name).apply("Conv", weights, kernel_shape=[1, 1])
    # The similarity of a cell to a centroid is 1 - |f - c|^2 / 2. Both vectors, f and c, consist of image
    # features and a place (see `append_places`). The image features of a cell are a unit vector. So only the
    # product of the image features of f and c depends on the image; the other terms are constants.
    empty = network.centroids.new_zeros(1, channels, features.side, features.side)
    places = append_places(empty, network.settings)[0, channels:]
    place_distance = (places - network.centroids[:, channels:, None, None]).square().sum(dim=1)
    squared_lengths = 1 + network.centroids[:, :channels].square().sum(dim=1)[:, None, None]
    similarity = product + to_array(1 - (squared_lengths + place_distance) / 2)
    highest = similarity.apply("ReduceMax", axes=[2, 3], keepdims=1)
    falloff = ((similarity - highest) * (network.sharpness / 2)).apply("Exp")
    return Maps((falloff * highest.apply("Max", 0.0)).name, len(network.centroids), features.side)
