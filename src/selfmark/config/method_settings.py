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
"""How landmarks are discovered: selfmark's own two methods, then those of other papers."""

Softmax = Literal["space", "axes", "channels"]
"""How the K maps of a network become K distributions, one per landmark, over the cells of the map.

space:    softmax over all cells of a map
axes:     softmax over the means of the rows, times softmax over the means of the columns
channels: at each cell, softmax over the landmarks and the background; then each map is divided by its sum
"""


@dataclass(frozen=True)
class Methods:
    """Settings that the methods of other papers share: training and random warps.

    A warp is a similarity transform and a thin-plate spline. Shifts are in units of half the image side.
    """

    iterations: int = between(1, 10_000_000, 8_000)  # iterations of the training
    batch: int = between(1, 4_096, 32)  # images per iteration
    warp_grid: int = between(2, 32, 5)  # control points of a spline along each axis
    warp_rotation: float = between(0, 360, 5.0)  # standard deviation of the rotation, degrees
    warp_scale: float = above(0, 1, 0.1)  # standard deviation of the logarithm of the scale
    warp_shift: float = above(0, 1, 0.1)  # standard deviation of the shift
    warp_all: float = above(0, 1, 0.01)  # standard deviation of the shift of every control point
    warp_some: float = above(0, 1, 0.06)  # the same, in addition, for a random half of the control points
    # .safetensors file of torchvision's VGG16, which compares images; empty: EfficientNet-Lite0 does
    vgg16_weights: str = ""


@dataclass(frozen=True)
class Mallis2020:
    """Merging of clusters in Stage 2, which finds the number of landmarks (Mallis et al. 2020)."""

    min_found: float = fraction(0.005)  # clusters found in a smaller fraction of the images are left out
    first_merge: float = fraction(0.3125)  # fraction of stage2.iterations after which clusters first merge
    merges: int = between(0, 99, 11)  # how often clusters merge, in equal intervals from first_merge on
    min_confidence: float = fraction(0.2)  # heatmaps with a lower maximum do not count as predictions
    merge_distance: float = above(0, 64, 1.425)  # predictions closer than this are at the same place, cells
    # two clusters merge if they are at the same place in more than this fraction of the images in which the
    # rarer one is predicted
    overlap: float = above(0, 1, 0.7)


@dataclass(frozen=True)
class EquivarianceSettings:
    """Landmarks that follow random warps and differ from each other (Thewlis et al. 2017)."""

    lr: float = between(0, 1, 3e-4)  # learning rate of Adam
    side: float = above(0, 4_096, 20.0)  # side of the image in the unit of the alignment loss
    diversity_weight: float = between(0, 1_000_000, 500.0)  # weight of the diversity loss
    pool: int = between(1, 64, 4)  # side of the squares whose probabilities are added, cells


@dataclass(frozen=True)
class DVE:
    """Dense embeddings that are matched through another image (Thewlis et al. 2019)."""

    lr: float = between(0, 1, 1e-3)  # learning rate of Adam
    sharpness: float = above(0, 10_000, 400.0)  # inverse temperature at which embeddings are matched
    power: float = above(0, 4, 0.5)  # exponent of the distance between the matched and the correct place
    # number of matched cells along each axis of a view; up to twice as many if the number of cells is not a
    # multiple of it
    matched_cells: int = between(2, 256, 32)
    # maximum number of images whose cells are clustered into landmarks
    max_images: int = between(1, 100_000, 1_000)
    landmark_sharpness: float = above(0, 10_000, 50.0)  # inverse temperature of the soft-argmax of landmarks


@dataclass(frozen=True)
class Zhang2018Settings:
    """Autoencoder with landmarks as its bottleneck (Zhang et al. 2018); lengths are in sides of the image."""

    lr: float = between(0, 1, 1e-3)  # learning rate of Adam
    # weight of the penalty on the area over which a landmark's distribution spreads
    concentration_weight: float = between(0, 1_000_000, 100.0)
    # weight of the penalty on landmarks close to each other
    separation_weight: float = between(0, 1_000_000, 20.0)
    # two landmarks at a distance d count as close by exp(-d^2 / (2 separation_sigma^2))
    separation_sigma: float = above(0, 1, 0.08)
    # weight of the penalty on landmarks that do not follow the warps
    equivariance_weight: float = between(0, 1_000_000, 10_000.0)
    # weight of the squared error of the reconstructed image
    reconstruction_weight: float = between(0, 1_000_000, 0.1)
    side: int = between(16, 1_024, 80)  # side of the reconstructed image, pixels
    descriptor: int = between(1, 1_024, 8)  # length of the descriptor of a landmark and of the background
    sigma: float = above(0, 1, 0.125)  # standard deviation of the narrowest Gaussian of a landmark
    sigma_ratio: float = between(1, 4, 1.414)  # each Gaussian is this many times as wide as the one before
    levels: int = between(1, 16, 5)  # number of Gaussians per landmark
    decoder_width: float = above(0, 4, 0.25)  # channels of the decoder at full resolution / network.channels


@dataclass(frozen=True)
class Jakab2018Settings:
    """Conditional image generation through K Gaussians (Jakab et al. 2018)."""

    lr: float = between(0, 1, 1e-3)  # learning rate of Adam
    # factor on the initial weights of the layer that returns the K maps
    head_gain: float = above(0, 1_000, 4.0)
    sigma: float = above(0, 2, 0.1)  # standard deviation of the Gaussians, in units of half the image side
    # approximate side of the maps that combine Gaussians and appearance, cells
    grid: int = between(4, 64, 16)
    width: float = above(0, 4, 0.125)  # channels of the encoder's first block / network.channels
    norm_groups: int = between(1, 64, 4)  # groups of GroupNorm in the encoder and the decoder
    # weight of earlier iterations in the running mean of a layer's error
    momentum: float = between(0, 0.9999, 0.99)
    min_error: float = above(0, 1, 1e-8)  # lower limit of the running mean by which an error is divided


@dataclass(frozen=True)
class Lorenz2019Settings:
    """Parts with shape and appearance (Lorenz et al. 2019); lengths are in units of half the image side."""

    lr: float = between(0, 1, 1e-3)  # learning rate of Adam
    # factor on the initial weights of the last layer of the part maps
    initial_sharpness: float = above(0, 1_000, 20.0)
    appearance_features: int = between(1, 1_024, 64)  # length of the appearance vector of a part
    # channels of the decoder at its coarsest level / network.channels; finer levels have fewer
    decoder_width: int = between(1, 16, 2)
    # factor on the distance from a part, which is in standard deviations
    bell_scale: float = above(0, 10, 0.8)
    # added to the variances of a part, so that its covariance can be inverted
    min_variance: float = above(0, 1, 1e-3)
    focus_radius: float = between(0.05, 4, 0.1)  # distance from a part at which a pixel's weight is one half
    focus_floor: float = between(0, 0.5, 0.2)  # pixels with a smaller weight do not count
    # weight of the relative difference of perceptual features
    feature_weight: float = between(0, 1_000_000, 1.0)
    mean_weight: float = between(0, 1_000_000, 0.5)  # weight of the equivariance of means
    covariance_weight: float = between(0, 1_000_000, 0.1)  # weight of the equivariance of covariances
    compare_roots: bool = False  # compare the square roots of the covariances, which are lengths, instead


@dataclass(frozen=True)
class AutoLinkSettings:
    """Landmarks connected by learned edges (He et al. 2022)."""

    lr: float = between(0, 1, 1e-4)  # learning rate of Adam
    # squared distance from an edge at which its map falls to 1/e, in squared half sides of the image
    thickness: float = above(0, 4, 2.5e-3)
    # initial weight of the edges; softplus(-4) in the authors' program
    edge_weight: float = above(0, 10, 0.01815)
    # standard deviation of the initial weights, before the softplus
    edge_deviation: float = between(0, 100, 0.1)
    edge_speed: float = above(0, 1_000_000, 512.0)  # factor on the learning rate of the edge weights
    masked: float = fraction(0.8)  # probability that a patch of the image is hidden from the decoder
    mask_grid: int = between(1, 512, 16)  # patches along each axis
    mirrored: float = fraction(0.5)  # probability that an image is mirrored
    size: int = between(32, 1_024, 128)  # maximum side of the reconstructed image, pixels
    decoder_width: float = above(0, 4, 0.25)  # channels of the decoder at full resolution / network.channels
    perceptual_size: int = between(32, 1_024, 224)  # side of the images that are compared, pixels


# Settings that a method changes in every preset; the user's own settings override them.
_METHOD_SETTINGS: dict[str, dict[str, Any]] = {
    # The output of an hourglass can depend on where in the image a cell is. So the network would learn
    # landmarks that stay at the same place in all images: they nearly follow small warps, but mark no part.
    "equivariance": {"network.depth": 0},
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
    """Return the settings that a method changes in every preset, by dotted name.

    >>> settings_of_method("mallis2020")["correspondence.assignment"]
    'hungarian'
    """
    return dict(_METHOD_SETTINGS.get(method, {}))
