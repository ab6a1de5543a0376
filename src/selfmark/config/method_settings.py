"""Settings of the discovery methods of other papers (`selfmark.methods`); docs/methods.md explains them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from selfmark.config.limits import above, between, fraction

Method = Literal[
    "self-training",
    "zero-shot",
    "mallis2020",
    "equivariance",
    "dve",
    "zhang2018",
    "jakab2018",
    "lorenz2019",
    "autolink",
]
"""How landmarks are discovered: our methods, then those of other papers."""

Softmax = Literal["space", "axes", "channels"]
"""How the maps of a network become one distribution over the cells per landmark.

space:    softmax over all cells of a map
axes:     softmax of the mean of each row and of each column; their product is the distribution
channels: softmax over the landmarks and the background at each cell, then divided by the sum of each map
"""


@dataclass(frozen=True)
class Methods:
    """Training and random warps that the methods of other papers share.

    A warp is a similarity transform and a thin-plate spline; positions are in units of half the image side.
    """

    iterations: int = between(1, 10_000_000, 8_000)  # iterations of the training
    batch: int = between(1, 4_096, 32)  # images per iteration
    warp_grid: int = between(2, 32, 5)  # control points of a spline along each axis
    warp_rotation: float = between(0, 360, 5.0)  # standard deviation, degrees
    warp_scale: float = above(0, 1, 0.1)  # standard deviation of the logarithm of the scale
    warp_shift: float = above(0, 1, 0.1)  # standard deviation
    warp_all: float = above(0, 1, 0.01)  # standard deviation of the shift of every control point
    warp_some: float = above(0, 1, 0.06)  # the same, in addition, for a random half of the control points
    vgg16_weights: str = ""  # .safetensors file of torchvision's VGG16; empty: compare by EfficientNet-Lite0


@dataclass(frozen=True)
class Mallis2020:
    """Merging of clusters in Stage 2, which finds the number of landmarks (Mallis et al. 2020)."""

    min_found: float = fraction(0.005)  # clusters found in a smaller fraction of the images are left out
    first_merge: float = fraction(0.3125)  # fraction of stage2.iterations after which clusters first merge
    merges: int = between(0, 99, 11)  # how often clusters merge, in equal intervals from first_merge on
    min_confidence: float = fraction(0.2)  # heatmaps with a lower maximum do not count as predictions
    merge_distance: float = above(0, 64, 1.425)  # predictions closer than this are at one place, cells
    overlap: float = above(0, 1, 0.7)  # two clusters merge if more of the rarer one's predictions are there


@dataclass(frozen=True)
class Equivariance:
    """Landmarks that follow random warps and differ from each other (Thewlis et al. 2017)."""

    lr: float = between(0, 1, 1e-3)  # learning rate of Adam
    side: float = above(0, 4_096, 20.0)  # side of the image in the unit of the alignment loss
    diversity_weight: float = between(0, 1_000_000, 500.0)  # weight of the diversity loss
    pool: int = between(1, 64, 4)  # side of the squares whose probabilities are added, cells


@dataclass(frozen=True)
class DVE:
    """Dense embeddings that are matched through another image (Thewlis et al. 2019)."""

    lr: float = between(0, 1, 1e-3)  # learning rate of Adam
    sharpness: float = above(0, 10_000, 400.0)  # inverse temperature at which embeddings are matched
    power: float = above(0, 4, 0.5)  # power of the distance between the matched and the right place
    matched_cells: int = between(2, 256, 32)  # cells along each axis of a view that are matched, at most
    max_images: int = between(1, 100_000, 1_000)  # landmarks are clusters of the cells of so many images
    landmark_sharpness: float = above(0, 10_000, 50.0)  # inverse temperature of the soft-argmax of landmarks


@dataclass(frozen=True)
class Zhang2018:
    """Autoencoder with landmarks as its bottleneck (Zhang et al. 2018); lengths are in sides of the image."""

    lr: float = between(0, 1, 1e-3)  # learning rate of Adam
    # weight of the area over which distributions spread
    concentration_weight: float = between(0, 1_000_000, 100.0)
    separation_weight: float = between(0, 1_000_000, 20.0)  # weight of landmarks that are close to each other
    separation_sigma: float = above(0, 1, 0.08)  # distance at which landmarks begin to count as close
    # weight of landmarks that do not follow the warps
    equivariance_weight: float = between(0, 1_000_000, 10_000.0)
    # weight of the squared error of the reconstructed image
    reconstruction_weight: float = between(0, 1_000_000, 0.1)
    side: int = between(16, 1_024, 80)  # side of the reconstructed image, pixels
    descriptor: int = between(1, 1_024, 8)  # numbers that describe a landmark, or the background
    sigma: float = above(0, 1, 0.125)  # standard deviation of the narrowest Gaussian of a landmark
    sigma_ratio: float = between(1, 4, 1.414)  # each Gaussian is this many times as wide as the one before
    levels: int = between(1, 16, 5)  # number of Gaussians per landmark
    decoder_width: float = above(0, 4, 0.25)  # channels of the decoder at full resolution / network.channels


@dataclass(frozen=True)
class Jakab2018:
    """Conditional image generation through K Gaussians (Jakab et al. 2018)."""

    lr: float = between(0, 1, 2e-3)  # learning rate of Adam
    head_gain: float = above(0, 1_000, 4.0)  # factor on the first weights of the layer that gives the K maps
    sigma: float = above(0, 2, 0.1)  # standard deviation of the Gaussians, in units of half the image side
    grid: int = between(4, 64, 16)  # side of the maps in which Gaussians and appearance meet, about, cells
    width: float = above(0, 4, 0.125)  # channels of the encoder's first block, as a fraction of the network's
    norm_groups: int = between(1, 64, 4)  # groups of GroupNorm in the encoder and the decoder
    momentum: float = between(0, 0.9999, 0.99)  # weight of the past in the running mean of a layer's error
    min_error: float = above(0, 1, 1e-8)  # smallest running mean by which an error is divided


@dataclass(frozen=True)
class Lorenz2019:
    """Parts with shape and appearance (Lorenz et al. 2019); lengths are in units of half the image side."""

    lr: float = between(0, 1, 1e-3)  # learning rate of Adam
    initial_sharpness: float = above(0, 1_000, 20.0)  # factor on the last layer of the part maps at the start
    appearance_features: int = between(1, 1_024, 64)  # length of the appearance vector of a part
    decoder_width: int = between(1, 16, 2)  # coarse channels over `network.channels`; fewer where it is fine
    bell_scale: float = above(0, 10, 0.8)  # factor on the distance, in standard deviations, from a part
    min_variance: float = above(0, 1, 1e-3)  # added to the variances of a part, so that it has an inverse
    focus_radius: float = between(0.05, 4, 0.1)  # distance from a part at which a pixel's weight is one half
    focus_floor: float = between(0, 0.5, 0.2)  # pixels with a smaller weight do not count
    # weight of the relative difference of perceptual features
    feature_weight: float = between(0, 1_000_000, 1.0)
    mean_weight: float = between(0, 1_000_000, 0.5)  # weight of the equivariance of means
    covariance_weight: float = between(0, 1_000_000, 0.1)  # weight of the equivariance of covariances
    compare_roots: bool = False  # compare symmetric roots of the covariances, whose unit is a length


@dataclass(frozen=True)
class AutoLink:
    """Landmarks connected by learned edges (He et al. 2022)."""

    lr: float = between(0, 1, 1e-4)  # learning rate of Adam
    thickness: float = above(0, 4, 2.5e-3)  # squared distance to an edge where its map is 1/e, half sides^2
    edge_weight: float = above(0, 10, 0.01815)  # first weight of the edges; softplus(-4) in the program
    # standard deviation of the first weights, before the softplus
    edge_deviation: float = between(0, 100, 0.1)
    edge_speed: float = above(0, 1_000_000, 512.0)  # factor on the learning rate of the edge parameters
    masked: float = fraction(0.8)  # probability that a patch of the image is hidden from the decoder
    mask_grid: int = between(1, 512, 16)  # patches along each axis
    mirrored: float = fraction(0.5)  # probability that an image is mirrored
    size: int = between(32, 1_024, 128)  # largest side of the reconstructed image, pixels
    decoder_width: float = above(0, 4, 0.25)  # the decoder's channels at full size / network.channels
    perceptual_size: int = between(32, 1_024, 224)  # side of the images that are compared, pixels


# Settings in which a method differs from a preset; the user's own settings have priority.
_METHOD_SETTINGS: dict[str, dict[str, Any]] = {
    "dve": {"network.descriptor": 64},
    "mallis2020": {
        "warmup.bootstrap": "detector-descriptors",
        "correspondence.assignment": "hungarian",
        "correspondence.filter": "distance",
        "loss.negatives": "different-cluster",
        "loss.hinge": "distance",
        "loss.descriptors": "raw",
        "loss.average": "together",
        "loss.negative_weight": 1.0,
        "loss.detector_weight": 0.2,
        "stage2.head": "descriptor",
        "stage2.backbone_lr": 1.0,
        "stage2.outside": "absent",
        "stage2.cutout_fraction": 0.0,
        "guards.max_empty_fraction": 0.95,  # empty clusters do no harm, because Stage 2 leaves them out
        "flip.train": False,
        "flip.test": False,
    },
}


def settings_of_method(method: str) -> dict[str, Any]:
    """Return the settings in which a method differs from the presets, by dotted name.

    >>> settings_of_method("mallis2020")["correspondence.assignment"]
    'hungarian'
    """
    return dict(_METHOD_SETTINGS.get(method, {}))
