"""Estimate the memory of a network from the settings, and refuse settings that would need too much.

A network with few weights can still need much memory: the heatmaps of 10,000 landmarks in an image of
1,024 px take 2.6 GB, and several copies of them exist at a time.
"""

from __future__ import annotations

from selfmark.errors import InputError

MAX_IMAGE_BYTES = 2 << 30
"""Maximum memory, in bytes, of one image and its mirror image in a forward pass."""

MAX_BATCH_BYTES = 256 << 30
"""Maximum memory, in bytes, of the batch of a training step, without gradients."""

ENCODER_CHANNELS = 256
"""An encoder takes as much memory as an hourglass with this many channels."""

_FLOAT_BYTES = 4
_FEATURE_MAPS = 9  # measured number of feature maps, each with all channels, that exist at a time
_HEATMAP_COPIES = 3  # measured number of copies of all heatmaps that exist at a time


def estimate_feature_bytes(channels: int, cells: int) -> int:
    """Return the bytes of the feature maps [channels, cells, cells] of one image, without gradients."""
    return _FEATURE_MAPS * channels * cells**2 * _FLOAT_BYTES


def estimate_heatmap_bytes(landmarks: int, cells: int) -> int:
    """Return the bytes of the heatmaps [landmarks, cells, cells] of one image."""
    return _HEATMAP_COPIES * landmarks * cells**2 * _FLOAT_BYTES


def check_image_memory(landmarks: int, size: int, channels: int, cells: int, passes: int) -> None:
    """Raise if one image would take more than `MAX_IMAGE_BYTES`.

    Args:
        landmarks: number of landmarks K.
        size: side of the image, pixels, for the message.
        channels: channels of the network, or `ENCODER_CHANNELS`.
        cells: side of the heatmaps, cells.
        passes: 2 if the mirror image is processed too, otherwise 1.
    """
    num_bytes = passes * (estimate_feature_bytes(channels, cells) + estimate_heatmap_bytes(landmarks, cells))
    if num_bytes > MAX_IMAGE_BYTES:
        raise InputError(
            f"config: {landmarks:,} landmarks in images of {size:,} px take about {num_bytes / 2**30:.1f} "
            f"GiB of memory per image, more than the {MAX_IMAGE_BYTES >> 30} GiB allowed: lower K or "
            "images.size"
        )


def check_batch_memory(name: str, images: int, landmarks: int, channels: int, cells: int) -> None:
    """Raise if a batch of training images would take more than `MAX_BATCH_BYTES`.

    Args:
        name: dotted name of the setting for the batch size, for the message.
        images: number of images in a batch.
        landmarks: number of landmarks K.
        channels: channels of the network, or `ENCODER_CHANNELS`.
        cells: side of the heatmaps, cells.
    """
    num_bytes = images * (estimate_feature_bytes(channels, cells) + estimate_heatmap_bytes(landmarks, cells))
    if num_bytes > MAX_BATCH_BYTES:
        raise InputError(
            f"config: a batch of {images:,} images takes about {num_bytes / 2**30:,.0f} GiB of memory, more "
            f"than the {MAX_BATCH_BYTES >> 30} GiB allowed: lower {name}"
        )
