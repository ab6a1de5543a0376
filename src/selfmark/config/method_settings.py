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
    """Training and random warps that the methods of other papers share, except `mallis2020`."""

    iterations: int = between(1, 10_000_000, 8_000)  # Number of iterations of the training.
    batch: int = between(1, 4_096, 32)  # Number of images in each iteration.
    # Number of control points of a random warp along each axis. The control points are moved, and the image
    # between them follows smoothly (thin-plate spline).
    warp_grid: int = between(2, 32, 5)
    # Standard deviation of the angle by which a warp rotates the image, in degrees.
    warp_rotation: float = between(0, 360, 5.0)
    # Standard deviation of the logarithm of the factor by which a warp enlarges the image. A value of 0.1 is
    # about 10 %.
    warp_scale: float = above(0, 1, 0.1)
    # Standard deviation of the distance by which a warp shifts the whole image along each axis, in half sides
    # of the image.
    warp_shift: float = above(0, 1, 0.1)
    # Standard deviation of the distance by which a warp moves each control point along each axis, in half
    # sides of the image.
    warp_all: float = above(0, 1, 0.01)
    # Standard deviation of an additional distance by which a warp moves a random half of the control points,
    # in half sides of the image.
    warp_some: float = above(0, 1, 0.06)
    # File with the weights of the network VGG16 (.safetensors, with torchvision's layer names). Methods that
    # reconstruct images compare the images by the features of VGG16. If the name is empty, they use
    # EfficientNet-Lite0 instead.
    vgg16_weights: str = ""


@dataclass(frozen=True)
class Mallis2020:
    """Merging of clusters in Stage 2, for the method `mallis2020` (Mallis et al. 2020)."""

    # Clusters that are found in a smaller fraction of the images than this value are left out of Stage 2.
    min_found: float = fraction(0.005)
    # Fraction of Stage 2 after which clusters are merged for the first time.
    first_merge: float = fraction(0.3125)
    # Number of times that clusters are merged, at equal intervals from the first time until the end of Stage
    # 2.
    merges: int = between(0, 99, 11)
    # A cluster is predicted in an image if the maximum of its heatmap is at least this value.
    min_confidence: float = fraction(0.2)
    # Two clusters are at the same place in an image if their predictions are closer than this many cells.
    merge_distance: float = above(0, 64, 1.425)
    # Two clusters are merged if they are often at the same place: in more than this fraction of the images in
    # which the rarer cluster is predicted.
    overlap: float = above(0, 1, 0.7)


@dataclass(frozen=True)
class EquivarianceSettings:
    """Landmarks that follow random warps, for the method `equivariance` (Thewlis et al. 2017)."""

    lr: float = between(0, 1, 3e-4)  # Learning rate of the optimizer Adam.
    # Unit of the alignment loss: distances are measured as if the side of the image had this length. With a
    # larger value, the alignment loss weighs more.
    side: float = above(0, 4_096, 20.0)
    # Weight of the diversity loss, which keeps the landmarks at different places.
    diversity_weight: float = between(0, 1_000_000, 500.0)
    # Side of the squares in which the diversity loss adds up the probabilities of a landmark, in cells. With
    # a larger value, landmarks keep a larger distance.
    pool: int = between(1, 64, 4)


@dataclass(frozen=True)
class DVE:
    """Embeddings matched through other images, for the method `dve` (Thewlis et al. 2019)."""

    lr: float = between(0, 1, 1e-3)  # Learning rate of the optimizer Adam.
    # How much the most similar embedding dominates when the cells of two views are matched (inverse
    # temperature). With a smaller value, less similar embeddings count more.
    sharpness: float = above(0, 10_000, 400.0)
    # The loss of a match is the distance between the matched and the correct position, raised to the power of
    # this value. With a smaller value, large errors count less.
    power: float = above(0, 4, 0.5)
    # Approximate number of cells along each axis that are matched in each image. The actual number can be up
    # to twice as large.
    matched_cells: int = between(2, 256, 32)
    # Maximum number of images whose cells are clustered into landmarks after the training. If there are more,
    # evenly spaced images are used.
    max_images: int = between(1, 100_000, 1_000)
    # How much the most similar cells dominate the position of a landmark (inverse temperature of the
    # soft-argmax). With a smaller value, less similar cells count more.
    landmark_sharpness: float = above(0, 10_000, 50.0)


@dataclass(frozen=True)
class Zhang2018Settings:
    """Autoencoder with landmarks, for the method `zhang2018` (Zhang et al. 2018)."""

    lr: float = between(0, 1, 1e-3)  # Learning rate of the optimizer Adam.
    # Weight of the penalty on landmarks whose heatmaps cover a large area.
    concentration_weight: float = between(0, 1_000_000, 100.0)
    # Weight of the penalty on landmarks that are close to each other.
    separation_weight: float = between(0, 1_000_000, 20.0)
    # Distance within which two landmarks are penalized for being close to each other, in sides of the image.
    # The penalty falls with their distance like a Gaussian with this standard deviation.
    separation_sigma: float = above(0, 1, 0.08)
    # Weight of the penalty on landmarks that do not follow the random warps.
    equivariance_weight: float = between(0, 1_000_000, 10_000.0)
    # Weight of the squared error of the reconstructed image.
    reconstruction_weight: float = between(0, 1_000_000, 0.1)
    side: int = between(16, 1_024, 80)  # Side of the reconstructed image, in pixels.
    # Length of the vector that describes the appearance of each landmark, and of the background.
    descriptor: int = between(1, 1_024, 8)
    # Standard deviation of the narrowest Gaussian that is drawn at a landmark, in sides of the image.
    sigma: float = above(0, 1, 0.125)
    # Each Gaussian at a landmark is this many times as wide as the next narrower one.
    sigma_ratio: float = between(1, 4, 1.414)
    # Number of Gaussians of different widths that are drawn at each landmark.
    levels: int = between(1, 16, 5)
    # Number of channels of the decoder at full resolution, as a fraction of `network.channels`.
    decoder_width: float = above(0, 4, 0.25)


@dataclass(frozen=True)
class Jakab2018Settings:
    """Conditional image generation, for the method `jakab2018` (Jakab et al. 2018)."""

    lr: float = between(0, 1, 1e-3)  # Learning rate of the optimizer Adam.
    # Factor by which the initial weights of the last layer of the landmark network are multiplied. If this
    # value is too small, all landmarks start at the center of the image.
    head_gain: float = above(0, 1_000, 4.0)
    # Standard deviation of the Gaussians that are drawn at the landmarks, in half sides of the image.
    sigma: float = above(0, 2, 0.1)
    # Approximate side of the maps in which the decoder receives the landmarks and the appearance, in cells.
    grid: int = between(4, 64, 16)
    # Number of channels of the first block of the encoder, as a fraction of `network.channels`.
    width: float = above(0, 4, 0.125)
    # Number of groups of channels that are normalized together in the encoder and the decoder (GroupNorm).
    norm_groups: int = between(1, 64, 4)
    # The error of each layer is divided by its running mean. This value is the weight of earlier iterations
    # in the running mean.
    momentum: float = between(0, 0.9999, 0.99)
    # Minimum of the running mean by which an error is divided. It avoids a division by almost 0.
    min_error: float = above(0, 1, 1e-8)


@dataclass(frozen=True)
class Lorenz2019Settings:
    """Parts with shape and appearance, for the method `lorenz2019` (Lorenz et al. 2019)."""

    lr: float = between(0, 1, 1e-3)  # Learning rate of the optimizer Adam.
    # Factor by which the initial weights of the last layer of the part maps are multiplied. If this value is
    # too small, all parts move to one place at first.
    initial_sharpness: float = above(0, 1_000, 20.0)
    # Length of the vector that describes the appearance of a part.
    appearance_features: int = between(1, 1_024, 64)
    # Number of channels of the decoder at its coarsest resolution, in multiples of `network.channels`. Finer
    # resolutions have fewer channels.
    decoder_width: int = between(1, 16, 2)
    # How quickly the weight of a part falls with the distance from its center. With a larger value, the
    # decoder sees narrower parts.
    bell_scale: float = above(0, 10, 0.8)
    # Value that is added to the variances of each part, in squared half sides of the image. It keeps a part
    # from becoming infinitely narrow.
    min_variance: float = above(0, 1, 1e-3)
    # Pixels near the center of a part count more in the reconstruction error. This value is the distance, in
    # half sides of the image, at which the weight of a pixel is one half.
    focus_radius: float = between(0.05, 4, 0.1)
    # Pixels whose weight is smaller than this value do not count in the reconstruction error.
    focus_floor: float = between(0, 0.5, 0.2)
    # Weight of the difference between the features of the image and of its reconstruction.
    feature_weight: float = between(0, 1_000_000, 1.0)
    # Weight of the penalty on parts whose centers do not follow the random warps.
    mean_weight: float = between(0, 1_000_000, 0.5)
    # Weight of the penalty on parts whose shapes do not follow the random warps. The shape of a part is
    # measured by its covariance.
    covariance_weight: float = between(0, 1_000_000, 0.1)
    # Whether the penalty on shapes compares the square roots of the covariances instead of the covariances.
    # Square roots are lengths; covariances are squares of lengths.
    compare_roots: bool = False


@dataclass(frozen=True)
class AutoLinkSettings:
    """Landmarks connected by learned edges, for the method `autolink` (He et al. 2022)."""

    lr: float = between(0, 1, 1e-4)  # Learning rate of the optimizer Adam.
    # Thickness of the drawn edges. The value of an edge falls to 37 % (1 divided by e) where the squared
    # distance from the edge has this value, in squared half sides of the image.
    thickness: float = above(0, 4, 2.5e-3)
    # Initial weight of the edges between landmarks. The default is softplus(-4), as in the program of He et
    # al.
    edge_weight: float = above(0, 10, 0.01815)
    # Standard deviation of the random differences between the initial weights. It applies before the softplus
    # function, which makes the weights positive.
    edge_deviation: float = between(0, 100, 0.1)
    # Factor by which edge weights learn faster than the other parameters.
    edge_speed: float = above(0, 1_000_000, 512.0)
    masked: float = fraction(0.8)  # Probability that a patch of the image is hidden from the decoder.
    mask_grid: int = between(1, 512, 16)  # Number of patches along each axis of the image.
    mirrored: float = fraction(0.5)  # Probability that an image is mirrored.
    size: int = between(32, 1_024, 128)  # Maximum side of the reconstructed image, in pixels.
    # Number of channels of the decoder at full resolution, as a fraction of `network.channels`.
    decoder_width: float = above(0, 4, 0.25)
    # Side to which images are resized before they are compared by their features, in pixels.
    perceptual_size: int = between(32, 1_024, 224)


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
    """Return a mapping from dotted names to values of the settings that a method changes in every preset.

    >>> settings_of_method("mallis2020")["correspondence.assignment"]
    'hungarian'
    """
    return dict(_METHOD_SETTINGS.get(method, {}))
