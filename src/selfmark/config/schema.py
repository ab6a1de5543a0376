"""Every number of the method, defined once and named as in the paper.

The defaults are the `paper` preset: the paper's numbers and, where it is silent, those of the authors' program.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from selfmark.config.limits import check_limits, require

DetectorName = Literal["sift", "orb", "selfmark", "superpoint", "r2d2", "alike-t", "alike-n", "file"]
Reading = Literal["quarter", "parabola", "centroid"]  # how Stage 2 finds a landmark below one cell of its map


@dataclass(frozen=True)
class Images:
    size: int = 256  # side of the square the network sees, pixels (Implementation Details)
    box_rule: Literal["loose", "body"] = "loose"  # loose: longer side plus margin; body: side c*H (Datasets)
    margin: float = 0.1  # loose rule: added on each side, as a share of the longer side
    body_scale: float = 1.1  # body rule: c in s = c*H/200, so the side is 200*s = c*H (1.35 for PennAction)
    max_megapixels: float = 200.0  # larger images are skipped, not decoded
    minimum: int = 8  # fewer usable images than this cannot be clustered


@dataclass(frozen=True)
class FirstKeypoints:
    detector: DetectorName = "superpoint"  # the paper's choice; selfmark, orb and sift need no weights
    weights: str = ""  # weights file for the learned detectors; empty: the cache
    points_file: str = ""  # for detector "file": points from elsewhere (synthetic initializations)
    image_size: int = 256  # images are resized to this side before detection
    threshold: float = 0.015  # learned detectors: least confidence
    nms_radius: int = 8  # learned detectors: non-maximum suppression, pixels of image_size
    max_points: int = 40  # most points per image
    random_fraction: float = 0.0  # share of points replaced by uniform random ones (Robustness to noise)
    outlier_neighbors: int = 100  # outlier score = median distance to this many nearest descriptors
    outlier_fraction: float = 0.4  # worst share dropped
    outlier_sample: int = 100_000  # neighbors are sought among at most this many descriptors


@dataclass(frozen=True)
class Network:
    channels: int = 256  # width of the hourglass
    depth: int = 4  # halvings inside the hourglass
    descriptor: int = 256  # d, length of a descriptor
    norm_groups: int = 32  # GroupNorm groups


@dataclass(frozen=True)
class Heatmaps:
    sigma: float = 0.75  # Gaussian width of Stage 1, cells: essentially a 3x3 patch
    threshold: float = 0.15  # least confidence of a Stage 1 keypoint
    nms_radius: int = 2  # cells
    max_points: int = 64  # most Stage 1 keypoints per image before correspondence recovery
    refine: Literal["quarter", "parabola"] = "quarter"  # Stage 1 below one cell: a step, or the vertex


@dataclass(frozen=True)
class Loss:
    margin: float = 0.8  # m of the contrastive loss
    detector_weight: float = 0.1  # lambda on the detector loss
    average: Literal["together", "apart"] = "together"  # one mean of all pairs, or one per kind
    negative_weight: float = 1.0  # factor on the negatives' term
    negatives: Literal["same-image", "different-cluster"] = "same-image"  # Negative-Pair Selection
    random_negatives: int = 128  # random places per image that keypoints are pushed away from
    negative_distance: float = 5.7  # cells; nearer places of the same image are no negatives


@dataclass(frozen=True)
class Correspondence:
    mode: Literal["clustering", "equivariance"] = "clustering"  # where Stage 1 positives come from
    assignment: Literal["nearest", "hungarian"] = "nearest"  # hungarian: the authors' earlier method
    iterations: int = 100  # K-means
    restarts: int = 10  # K-means, best of
    sample: int = 800_000  # vectors K-means is fitted on, at most
    min_points: int = 2  # images with fewer points are left out of the round


@dataclass(frozen=True)
class AutoK:
    candidates: tuple[int, ...] = (4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 50)  # tried where K is 0
    splits: int = 5  # times the images are split into halves that are clustered on their own
    blocks: int = 20  # stretches of neighboring images (frames of a video, say) that stay in one half
    max_images: int = 400  # images looked at, at most, evenly spaced
    clear_margin: float = (
        0.1  # a point is clear from this share of the way from a cluster's border to its centroid
    )
    dissolved_agreement: float = 0.5  # a landmark on which halves agree no more than this counts as none
    weak_score: float = (
        0.3  # a best score below this says little: descriptors in front of clutter reach as much
    )


@dataclass(frozen=True)
class Optimizer:
    lr: float = 2e-4  # RMSprop
    weight_decay: float = 1e-5  # of all weights
    clip_norm: float = 0.0  # gradient norm; 0: no clipping


@dataclass(frozen=True)
class Warmup:
    bootstrap: Literal["equivariance", "detector-descriptors"] = "equivariance"  # the latter: earlier method
    iterations: int = 30_000  # on an image and its deformation


@dataclass(frozen=True)
class Rounds:
    count: int = 34  # 30k + 34 x 5k = 200k iterations in all
    iterations: int = 5_000  # between two label updates
    lr_drops: tuple[float, ...] = (0.75, 0.9)  # x0.1 at these shares of warm-up plus rounds (150k, 180k)
    same_image_fraction: float = 0.5  # pairs made of one image twice
    keep_weights: bool = False  # keep the weights of every round: checkpoints/round-01.safetensors and so on


@dataclass(frozen=True)
class Stage2:
    iterations: int = 200_000  # of heatmap regression
    batch: int = 16  # images per iteration
    lr_drops: tuple[float, ...] = (0.25, 0.35)  # x0.1 at these shares (50k, 70k)
    backbone_lr: float = 0.1  # backbone learns at this share of lr
    sigma: float = 0.75  # Gaussian width, cells
    refine: Reading = "quarter"  # of the highest cell; mean of heat
    cutout: int = 80  # side of the square cut out, pixels at 256; scaled with the image
    cutout_fraction: float = 0.5  # images that get one


@dataclass(frozen=True)
class Flip:
    train: bool = True  # flipping augmentation in both stages
    test: bool = True  # average with the mirror image at test time
    partner: Literal["found", "itself"] = "found"  # a landmark's, in the mirror image; itself: side views

    @property
    def finds_partners(self) -> bool:
        """Whether points get a label of their own for when their image is flipped (Sec. 3.7)."""
        return self.train and self.partner == "found"


@dataclass(frozen=True)
class Temporal:
    enabled: bool = False  # pairs of nearby video frames
    fraction: float = 0.5  # of the pairs of different images, how many are nearby frames
    max_frame_gap: int = 5  # most frames apart, counted in the frames used
    neighbors: int = 2  # nearby frames drawn per frame and round
    window: int = 15  # Lucas-Kanade window, pixels
    levels: int = 3  # pyramid levels
    max_return_error: float = 1.0  # most pixels between a point and itself carried there and back


@dataclass(frozen=True)
class Augment:
    rotation: float = 40.0  # degrees, both ways
    scale: tuple[float, float] = (0.8, 1.2)  # per axis
    shift: float = 0.05  # share of the side
    contrast: tuple[float, float] = (0.85, 1.3)  # factor on what differs from the mean
    brightness: tuple[float, float] = (0.9, 1.1)  # factor on the mean
    negative_fraction: float = 0.0  # images with light and dark exchanged
    noise: float = 0.05  # largest sigma, of a 0..1 image
    blur_fraction: float = 0.3  # images blurred
    blur_sigma: tuple[float, float] = (0.3, 1.2)  # pixels
    color_fraction: float = 0.3  # images with changed hue and saturation
    hue: float = 20.0  # degrees, both ways
    saturation: tuple[float, float] = (0.7, 1.3)  # factor on what differs from gray


@dataclass(frozen=True)
class Runtime:
    batch: int = 16  # pairs per iteration (twice as many images)
    predict_batch: int = 128  # images per forward pass outside training; fewer where memory is short
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 on CUDA, fp32 elsewhere
    kernels: Literal["auto", "plain"] = "auto"  # auto: fused ones for bf16 on CUDA where Triton is installed
    device_fraction: float = (
        0.4  # images, and descriptors, are held on the GPU up to this share of what is free
    )
    checkpoint_every: int = 1_000  # iterations
    log_every: int = 50  # iterations
    store_gigabytes: float = 16.0  # images are held in memory up to this size, beyond it memory-mapped


@dataclass(frozen=True)
class Guards:
    min_points: float = 0.5  # points per image Phi must still find, on average
    min_descriptor_spread: float = (
        0.01  # mean square distance of descriptors from their mean; sound ones: 0.3 to 1
    )
    min_point_spread: float = 0.01  # mean distance of points from their image's middle point, of its side
    max_empty_fraction: float = 0.5  # share of clusters that may be given to no point
    min_score: float = 1e-3  # of the surest landmark in any of the images looked at
    num_samples: int = 64  # images the finished detector is tried on before it is saved


@dataclass(frozen=True)
class Evaluation:
    seed: int = 0  # of the draws below
    min_visibility: int = 1  # annotated points of less are left out; 2 leaves out those COCO calls hidden
    ridges: tuple[float, ...] = (0.1, 0.01, 0.001, 0.0)  # lambda over the largest entry of X'X
    ridge: float = 0.01  # of the headline figures; authors: 0.1 on LS3D, 0.001 forward on CelebA
    fit_images: tuple[int, ...] = (1, 5, 10, 100, 300, 800)  # annotated images fitted on; all of them besides
    draws: int = 10  # random draws of so many images
    max_curve_error: float = 20.0  # percent; how far the curve of the share of points within an error reaches
    hit_pixels: float = 6.0  # a raw landmark hits its annotated point within this, of hit_side
    hit_side: int = 128  # image side hit_pixels counts at
    hit_fraction: float = 0.2  # a hit for faces: within this share of the inter-ocular distance
    pck_fraction: float = 0.3  # a hit for bodies (PCK): within this share of the torso
    oks_thresholds: tuple[float, ...] = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)  # of AP, AR
    oks_single: tuple[float, ...] = (0.5, 0.4)  # thresholds reported on their own
    oks_sigma: float = 0.05  # spread of points whose COCO value is not known
    precision_fraction: float = (
        0.1  # a generic keypoint is right within this share of the inter-ocular distance
    )
    completion_iterations: int = 500  # singular value thresholding, at most
    num_samples: int = 200  # images the checks without labels look at, at most
    deformations: int = 2  # known deformations of each of them
    flip: Literal["as-trained", "never"] = "as-trained"  # at test time
    agreement_radius: float = 0.05  # a landmark agrees with itself within this share of the image's side


@dataclass(frozen=True)
class Tracking:
    num_samples: int = 60  # frames from all over a video whose median is its background
    max_side: int = 480  # longer side at which frames are looked at for animals, at most
    min_contrast: float = 12.0  # gray levels an animal differs from the background, at least
    opening_fraction: float = 0.07  # parts thinner than twice this share of an animal's length are taken away
    min_area: float = 0.25  # blobs of less than this share of an animal's area are no animal
    max_step: float = 2.0  # animal lengths one can move from frame to frame
    max_gap: float = 0.5  # seconds an animal may be lost and its place still be filled in
    smoothing: float = 0.08  # seconds, width of the bell that smooths an animal's way
    size_fraction: float = 0.95  # share of frames in which the square holds all of an animal
    margin: float = 0.1  # added to that square on each side, for legs and tails
    rotation: float = 180.0  # augment.rotation of a discovery among found animals: seen from above they turn


@dataclass(frozen=True)
class Config:
    """All settings of one run. Change with `dataclasses.replace` or `override`."""

    preset: str = "paper"  # the preset these settings started from
    seed: int = 0  # of everything random
    K: int = 30  # landmarks to discover; 0: chosen from the images once the warm-up is done (auto_k)
    M: int = 100  # clusters that label the training set in Stage 1, M >> K
    images: Images = field(default_factory=Images)
    keypoints: FirstKeypoints = field(default_factory=FirstKeypoints)
    network: Network = field(default_factory=Network)
    heatmaps: Heatmaps = field(default_factory=Heatmaps)
    loss: Loss = field(default_factory=Loss)
    correspondence: Correspondence = field(default_factory=Correspondence)
    auto_k: AutoK = field(default_factory=AutoK)
    optimizer: Optimizer = field(default_factory=Optimizer)
    warmup: Warmup = field(default_factory=Warmup)
    rounds: Rounds = field(default_factory=Rounds)
    stage2: Stage2 = field(default_factory=Stage2)
    flip: Flip = field(default_factory=Flip)
    temporal: Temporal = field(default_factory=Temporal)
    augment: Augment = field(default_factory=Augment)
    runtime: Runtime = field(default_factory=Runtime)
    guards: Guards = field(default_factory=Guards)
    evaluation: Evaluation = field(default_factory=Evaluation)
    tracking: Tracking = field(default_factory=Tracking)

    def __post_init__(self) -> None:
        check_model(self.images, self.network)
        check_limits(self)

    @property
    def map_size(self) -> int:
        """Side of the heatmaps: the stem reduces the image fourfold."""
        return self.images.size // STRIDE


STRIDE = 4  # pixels per heatmap cell: 7x7 stride 2, then average pooling


# What a model may ask for, whoever made it: each is far above any use and far below what harms a machine.
_LIMITS = {"size": 4_096, "channels": 1_024, "descriptor": 4_096, "depth": 8, "norm_groups": 128}
_MOST_MEGAPIXELS = 2_000.0


def check_model(images: Images, network: Network) -> None:
    """Refuse a network that cannot be built, or would take all memory to build or to feed."""
    given = {"size": images.size, **dataclasses.asdict(network)}
    for name, most in _LIMITS.items():
        section = "images" if name == "size" else "network"
        require(
            1 <= given[name] <= most, f"{section}.{name} must lie between 1 and {most}, not {given[name]}"
        )
    coarsest = STRIDE * 2**network.depth
    require(
        images.size >= coarsest and images.size % coarsest == 0,
        f"images.size must be a multiple of {coarsest} for a depth of {network.depth}, not {images.size}",
    )
    require(
        network.channels % (8 * network.norm_groups) == 0,
        f"network.channels must be a multiple of 8 x norm_groups ({8 * network.norm_groups}), "
        f"not {network.channels}",
    )
    require(
        0 < images.max_megapixels <= _MOST_MEGAPIXELS,
        f"images.max_megapixels must be positive and at most {_MOST_MEGAPIXELS:g}, "
        f"not {images.max_megapixels:g}",
    )
    require(
        -0.5 < images.margin <= 10 and 0 < images.body_scale <= 10,
        "images.margin and images.body_scale must be small shares",
    )
