"""All settings with their defaults and limits; settings from the paper (cited in the README) keep its names.

The defaults are the numbers of the paper, where it gives them. Where the paper leaves a choice, the preset
`paper` follows the authors' program (see `presets` and docs/fidelity.md).

Every number declares its limits (see `limits`). The comment behind or above a setting becomes its text on the
page docs/settings.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from selfmark.config.feature_settings import Features, Student
from selfmark.config.limits import above, between, check_limits, fraction, require
from selfmark.config.memory import ENCODER_CHANNELS, check_batch_memory, check_image_memory
from selfmark.config.method_settings import (
    DVE,
    AutoLinkSettings,
    EquivarianceSettings,
    Jakab2018Settings,
    Lorenz2019Settings,
    Mallis2020,
    Method,
    Methods,
    Zhang2018Settings,
)
from selfmark.config.schedule_settings import Schedule
from selfmark.config.video_settings import Smoothing, Tracking

DetectorName = Literal["sift", "orb", "selfmark", "superpoint", "r2d2", "alike-t", "alike-n", "file"]

BorderColor = Literal["repeated", "black"]  # pixels outside a warped image
PeakMethod = Literal["cell", "quarter", "parabola", "centroid"]
"""How a position is read from a heatmap.

cell:     the center of the highest cell
quarter:  this center, moved a quarter of a cell toward the higher neighbor along each axis
parabola: the vertex of a parabola through the logarithms of the highest cell and its neighbors
centroid: the mean of all cells, weighted by the squares of their values
"""

STRIDE = 4  # pixels per heatmap cell: a 7x7 convolution with stride 2, then average pooling
_LIMIT_OF_K = "between 1 and 10,000, or 0 for a number chosen from the images"


@dataclass(frozen=True)
class Images:
    """How images are cropped and resized."""

    size: int = between(1, 4_096, 256)  # side of the network's square input, pixels (Sec. 4.2)
    # loose: the longer side of the box plus margins; body: see body_scale
    box_rule: Literal["loose", "body"] = "loose"
    # loose rule: margin added on each side, as a fraction of the longer side of the box; with aspect
    # stretched, as a fraction of its width (left and right) and of its height (top and bottom)
    margin: float = above(-0.5, 10, 0.1)
    body_scale: float = above(0, 10, 1.1)  # body rule: c, side of the crop / height of the box
    # stretched: a loose crop has the aspect ratio of the box, and is stretched to a square
    aspect: Literal["square", "stretched"] = "square"
    max_megapixels: float = above(0, 2_000, 200.0)  # larger images are skipped
    minimum: int = between(0, 1_000_000, 8)  # minimum number of usable images


@dataclass(frozen=True)
class FirstKeypoints:
    """Generic keypoints that discovery starts from, and the removal of outliers (Sec. 4.2)."""

    detector: DetectorName = "superpoint"  # generic detector; selfmark, orb and sift need no download
    weights: str = ""  # weights file of a learned detector; empty: the file in the cache
    points_file: str = ""  # CSV file of keypoints, for detector "file" (synthetic initializations)
    image_size: int = between(8, 2_048, 256)  # side to which images are resized for detection, pixels
    threshold: float = between(-1_000_000, 1_000_000, 0.015)  # learned detectors: minimum confidence
    # learned detectors: radius of non-maximum suppression, pixels of image_size
    nms_radius: int = between(0, 128, 8)
    max_points: int = between(2, 100_000, 40)  # maximum number of points per image
    random_fraction: float = fraction(0.0)  # fraction replaced by random points (Robustness to noise)
    # the outlier score is the median distance to this many nearest descriptors
    outlier_neighbors: int = between(0, 10_000, 100)
    outlier_fraction: float = fraction(0.4)  # fraction of points removed as outliers
    # maximum number of descriptors among which neighbors are searched
    outlier_sample: int = between(0, 10_000_000, 100_000)


@dataclass(frozen=True)
class Network:
    """The hourglass backbone and its heads (Sec. 3.2)."""

    channels: int = between(1, 1_024, 256)  # width of the hourglass
    # number of times the hourglass halves its resolution; 0: no hourglass, cells see only what is near them
    depth: int = between(0, 8, 4)
    descriptor: int = between(1, 4_096, 256)  # d, length of a descriptor
    norm_groups: int = between(1, 128, 32)  # groups of GroupNorm


@dataclass(frozen=True)
class Heatmaps:
    """Heatmaps of Stage 1 and how keypoints are read from them (Sec. 3.2)."""

    # standard deviation of the target Gaussians, cells; 0: a single cell is set to 1
    sigma: float = between(0, 100, 0.75)
    threshold: float = between(-1_000_000, 1_000_000, 0.15)  # minimum confidence of a keypoint
    nms_radius: int = between(0, 128, 2)  # radius of non-maximum suppression, cells
    max_points: int = between(1, 10_000, 64)  # maximum number of keypoints per image
    # how a position is read from a heatmap, see stage2.refine
    refine: Literal["cell", "quarter", "parabola"] = "quarter"


@dataclass(frozen=True)
class Loss:
    """Contrastive loss and detector loss of Stage 1 (Sec. 3.4)."""

    margin: float = between(0, 1_000, 0.8)  # m of the contrastive loss
    hinge: Literal["squared-distance", "distance"] = "squared-distance"  # max(0, m - d^2) or max(0, m - d)^2
    descriptors: Literal["unit", "raw"] = "unit"  # whether descriptors are normalized before comparison
    # lambda, weight of the detector loss, which is a mean over both views
    detector_weight: float = between(0, 1_000_000, 0.1)
    # one mean over all pairs, or one over positive and one over negative pairs
    average: Literal["together", "apart"] = "together"
    negative_weight: float = between(0, 1_000_000, 1.0)  # weight of the negative pairs
    negatives: Literal["same-image", "different-cluster"] = "same-image"  # where negative pairs come from
    random_negatives: int = between(0, 10_000, 128)  # random locations per image that are used as negatives
    # minimum distance of the two points of a negative pair in the same image, cells
    negative_distance: float = between(0, 1_024, 5.7)


@dataclass(frozen=True)
class Correspondence:
    """Correspondence recovery: K-means over the descriptors of all images (Sec. 3.3)."""

    mode: Literal["clustering", "equivariance"] = "clustering"  # where the positive pairs come from
    assignment: Literal["nearest", "hungarian"] = "nearest"  # hungarian: the authors' earlier method
    # clusters: keep one point per image and each of K clusters; distance: drop points far from their
    # centroid, as in the authors' earlier method
    filter: Literal["clusters", "distance"] = "clusters"
    # if several points of an image are in one of the M clusters, one gets its label; the others are kept
    # without a label, or removed
    extra_points: Literal["kept", "removed"] = "kept"
    iterations: int = between(0, 100_000, 100)  # maximum number of iterations of K-means
    restarts: int = between(1, 1_000, 10)  # runs of K-means; the best one is used
    sample: int = between(1, 10_000_000, 800_000)  # maximum number of descriptors that K-means is fitted on
    min_points: int = between(0, 10_000, 2)  # images with fewer points are left out of the round


@dataclass(frozen=True)
class AutoK:
    """Choice of K if it is 0: the smallest number of landmarks that is about as stable as the best one."""

    # values of K to try
    candidates: tuple[int, ...] = between(2, 10_000, (4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 50))
    # number of random splits of the images into two halves, which are clustered separately
    splits: int = between(2, 1_000, 5)
    # number of blocks of consecutive images (video frames); a block stays in the same half
    blocks: int = between(2, 100_000, 20)
    max_images: int = between(0, 1_000_000, 400)  # maximum number of images used, evenly spaced
    # points with a smaller margin are ignored; the margin is 0 at the border between two clusters and 1 at a
    # centroid
    clear_margin: float = fraction(0.1)
    # a landmark on which the two halves agree no more often than this is dissolved: it counts as stable in
    # no image
    dissolved_agreement: float = fraction(0.5)
    weak_score: float = between(0, 1_000, 0.3)  # warn if the best score is lower, as for cluttered images


@dataclass(frozen=True)
class Optimizer:
    """RMSprop, the optimizer of both stages (Sec. 4.2)."""

    lr: float = between(0, 1, 2e-4)  # learning rate
    weight_decay: float = between(0, 1, 1e-5)  # weight decay of all parameters
    clip_norm: float = between(0, 1_000_000, 0.0)  # maximum norm of the gradients; 0: no clipping


@dataclass(frozen=True)
class Warmup:
    """Bootstrapping of Stage 1 before the first round (Sec. 3.5)."""

    # detector-descriptors: no warm-up, as in the authors' earlier method
    bootstrap: Literal["equivariance", "detector-descriptors"] = "equivariance"
    iterations: int = between(0, 10_000_000, 30_000)  # iterations on pairs of an image and a deformed copy


@dataclass(frozen=True)
class Rounds:
    """Rounds of correspondence recovery and self-training (Algorithm 1)."""

    count: int = between(1, 1_000, 34)  # T, number of rounds; paper: 30k + 34 x 5k = 200k iterations
    iterations: int = between(0, 10_000_000, 5_000)  # iterations per round
    # fractions of Stage 1 after which the learning rate drops to a tenth (paper: 150k and 180k iterations)
    lr_drops: tuple[float, ...] = between(0, 1, (0.75, 0.9))
    # fraction of the pairs, without temporal pairs, that are an image and a deformed copy
    same_image_fraction: float = fraction(0.5)
    keep_weights: bool = False  # keep the weights of every round in checkpoints/round-01.safetensors, ...


@dataclass(frozen=True)
class Stage2:
    """Training of the landmark detector Psi (Sec. 3.6)."""

    iterations: int = between(1, 10_000_000, 200_000)  # iterations of heatmap regression
    batch: int = between(1, 4_096, 16)  # images per iteration
    # fractions of the iterations after which the learning rate drops to a tenth (paper: 50k and 70k)
    lr_drops: tuple[float, ...] = between(0, 1, (0.25, 0.35))
    backbone_lr: float = between(0, 100, 0.1)  # learning rate of the backbone, as a fraction of optimizer.lr
    head: Literal["detector", "descriptor"] = "detector"  # head of Phi that Psi's head starts from
    sigma: float = between(0.05, 100, 0.75)  # standard deviation of the target Gaussians, cells
    # how a position is read from a heatmap: the center of the highest cell, this center moved a quarter of a
    # cell toward the higher neighbor, the vertex of a parabola through the neighbors, or the weighted mean of
    # all cells
    refine: PeakMethod = "quarter"
    # loss: mean over the landmarks found in an image, or over all K
    average: Literal["found", "all"] = "found"
    # landmarks moved out of the image: no loss, or an empty target (absent)
    outside: Literal["ignored", "absent"] = "ignored"
    cutout: int = between(0, 4_096, 80)  # side of the erased square, pixels of a 256-pixel image
    cutout_color: Literal["gray", "black"] = "gray"  # color of the erased square
    cutout_fraction: float = fraction(0.5)  # fraction of images with an erased square


@dataclass(frozen=True)
class Flip:
    """Mirrored images (Sec. 3.7)."""

    train: bool = True  # train on mirrored images, in both stages
    test: bool = True  # when predicting, average the heatmaps of an image and its mirror image
    partner: Literal["found", "itself"] = "found"  # mirror partner of a landmark; itself: for side views

    @property
    def finds_partners(self) -> bool:
        """Whether keypoints get a separate label for the mirrored image (Sec. 3.7)."""
        return self.train and self.partner == "found"


@dataclass(frozen=True)
class Temporal:
    """Pairs of nearby video frames, connected by optical flow."""

    enabled: bool = False  # train on pairs of nearby video frames
    fraction: float = fraction(0.5)  # fraction of pairs that are two nearby frames
    # maximum gap between nearby frames, in frames of the video; the previous and the next used frame always
    # count as nearby
    max_frame_gap: int = between(1, 1_000_000, 5)
    neighbors: int = between(1, 100, 2)  # number of nearby frames drawn for each frame in each round
    window: int = between(3, 255, 15)  # window of the Lucas-Kanade tracker, pixels
    levels: int = between(0, 16, 3)  # pyramid levels of the tracker
    # a point is dropped if it returns farther than this from its start when tracked forward and back, pixels
    max_return_error: float = between(0, 4_096, 1.0)


@dataclass(frozen=True)
class Augment:
    """Random changes of training images."""

    rotation: float = between(0, 360, 40.0)  # maximum rotation in either direction, degrees
    scale: tuple[float, float] = between(0.01, 100, (0.8, 1.2))  # range of the scale factor of each axis
    shift: float = between(0, 10, 0.05)  # maximum shift, as a fraction of the image's side
    # range of the factor on the difference from the mean
    contrast: tuple[float, float] = between(0, 100, (0.85, 1.3))
    brightness: tuple[float, float] = between(0, 100, (0.9, 1.1))  # range of the factor on the mean
    negative_fraction: float = fraction(0.0)  # fraction of images with inverted brightness
    border: BorderColor = "repeated"  # pixels outside a warped image: those of its border, or black
    noise_fraction: float = fraction(1.0)  # fraction of images with noise
    noise: float = between(0, 10, 0.05)  # maximum standard deviation of the noise, for values in 0..1
    blur_fraction: float = fraction(0.3)  # fraction of blurred images
    # range of the blur's standard deviation, pixels
    blur_sigma: tuple[float, float] = between(0.01, 100, (0.3, 1.2))
    color_fraction: float = fraction(0.3)  # fraction of images with changed hue and saturation
    hue: float = between(0, 360, 20.0)  # maximum change of hue in either direction, degrees
    # range of the factor on the difference from gray
    saturation: tuple[float, float] = between(0, 100, (0.7, 1.3))


@dataclass(frozen=True)
class Runtime:
    """How a run is computed; these settings may change when a run is resumed."""

    batch: int = between(1, 4_096, 16)  # pairs per iteration of Stage 1 (two images each)
    # images per forward pass outside training; fewer if memory is low
    predict_batch: int = between(1, 4_096, 128)
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 on CUDA, fp32 elsewhere
    kernels: Literal["auto", "plain"] = "auto"  # auto: fused kernels for bf16 on CUDA if Triton is installed
    # fraction of the free GPU memory that images may take; descriptors may take as much
    device_fraction: float = fraction(0.4)
    checkpoint_every: int = between(1, 1_000_000_000, 1_000)  # iterations between checkpoints
    log_every: int = between(1, 1_000_000_000, 50)  # iterations between log entries
    # maximum size of the images in memory; larger sets are memory-mapped
    store_gigabytes: float = between(0, 100_000, 16.0)


@dataclass(frozen=True)
class Guards:
    """Limits beyond which a training counts as collapsed, and new images as unfamiliar."""

    min_points: float = between(0, 1_000_000, 0.5)  # minimum average number of keypoints per image
    # minimum mean squared distance of descriptors from their mean; usual are 0.3 to 1
    min_descriptor_spread: float = between(0, 1_000_000, 0.01)
    # minimum mean distance of an image's points from their mean, as a fraction of the image's side
    min_point_spread: float = between(0, 1_000_000, 0.01)
    max_empty_fraction: float = between(0, 1_000_000, 0.5)  # maximum fraction of clusters without points
    # minimum of the highest landmark score in the checked images
    min_score: float = between(0, 1_000_000, 1e-3)
    num_samples: int = between(1, 100_000, 64)  # images on which the detector is checked before it is saved
    # number of training images from which the usual appearance (mean and limit) of a detector is computed
    familiar_images: int = between(2, 10_000, 128)
    # number of new images that are compared with the training images
    compared_images: int = between(1, 10_000, 24)
    # new images are unfamiliar if the median of their squared distances from the mean of the training images
    # is more than this many times the squared distance that 95 % of the training images do not exceed
    max_unfamiliarity: float = above(0, 1_000_000, 1.0)


@dataclass(frozen=True)
class Evaluation:
    """Metrics and label-free checks (Sec. 4.2)."""

    seed: int = between(0, 2**63 - 1, 0)  # random seed of the draws below
    # minimum COCO visibility v of a point; 2 leaves out occluded points. Points with v=0 are never annotated.
    min_visibility: int = between(1, 2, 1)
    # ridge penalties to evaluate, relative to the largest entry of X'X
    ridges: tuple[float, ...] = between(0, 1_000_000, (0.1, 0.01, 0.001, 0.0))
    # ridge penalty of the headline numbers; authors: 0.1 on LS3D, 0.001 on CelebA (forward)
    ridge: float = between(0, 1_000_000, 0.01)
    # numbers of images to fit on, in addition to all images
    fit_images: tuple[int, ...] = between(1, 10_000_000, (1, 5, 10, 100, 300, 800))
    draws: int = between(1, 10_000, 10)  # random draws of images for each of these numbers
    max_curve_error: float = between(0.001, 10_000, 20.0)  # end of the cumulative error curve, percent
    # a raw landmark is a hit within this distance, pixels of hit_side
    hit_pixels: float = above(0, 100_000, 6.0)
    hit_side: int = between(1, 100_000, 128)  # image side that hit_pixels refers to
    # faces: a hit is within this fraction of the inter-ocular distance
    hit_fraction: float = above(0, 1_000, 0.2)
    pck_fraction: float = above(0, 1_000, 0.3)  # bodies (PCK): a hit is within this fraction of the torso
    # OKS thresholds of AP and AR
    oks_thresholds: tuple[float, ...] = fraction((0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95))
    oks_single: tuple[float, ...] = fraction((0.5, 0.4))  # OKS thresholds that are also reported separately
    oks_sigma: float = between(1e-6, 1_000, 0.05)  # OKS sigma of points without a COCO value
    # a generic keypoint is correct within this fraction of the inter-ocular distance; of the normalizer for
    # objects without eyes
    precision_fraction: float = between(0, 1_000, 0.1)
    # Stage 1: maximum iterations of singular value thresholding, which fills in missing landmarks
    completion_iterations: int = between(0, 1_000_000, 500)
    num_samples: int = between(1, 1_000_000, 200)  # maximum number of images for the checks without labels
    deformations: int = between(1, 1_000, 2)  # random deformations of each image in these checks
    flip: Literal["as-trained", "never"] = "as-trained"  # mirroring at test time
    # two positions agree within this fraction of the image's side
    agreement_radius: float = between(0, 1_000, 0.05)
    # a landmark fits the common shape within this distance, as a fraction of the shape's radius
    constellation_radius: float = between(0, 1_000, 0.3)
    # two landmarks mark the same place within this fraction of the image's side
    duplicate_radius: float = between(0, 1_000, 0.02)
    min_images: int = between(1, 10_000_000, 30)  # a run on fewer training images is called uncertain
    # The weights below are fitted by benchmarks/trust/trust_model.py, see docs/results/trust.json.

    # expected error of a landmark: constant, weight of its unstable fraction (deformations that it does not
    # follow), weight of the appearance error
    error_weights: tuple[float, float, float] = between(0, 1_000, (0.06, 0.32, 0.7))
    # the same for verified runs, then the weight of the second run's error
    verified_error_weights: tuple[float, float, float, float] = between(0, 1_000, (0.05, 0.31, 0.61, 0.13))
    # expected error of a run: constant, weight of the error of its best landmarks
    run_error_weights: tuple[float, float] = between(0, 1_000, (0.04, 0.85))
    best_fraction: float = above(0, 1, 0.1)  # fraction of the landmarks that count as the best ones
    # trust is lower if Stage 1 found a landmark in a smaller fraction of the images
    full_found_rate: float = above(0, 1, 0.5)
    # videos: half the side of the squares around landmarks that are compared with the median frame, pixels
    background_radius: int = between(0, 1_024, 4)
    # two squares look alike up to this mean difference, gray levels
    background_difference: float = between(0, 255, 8.0)
    # landmarks that look like the median frame in more than this fraction of the frames are background
    max_background_rate: float = fraction(0.9)
    # landmarks that move less than this fraction of the image's side may be background
    fixed_spread: float = between(0, 1_000, 0.01)
    # fixed_spread applies only if the median landmark moves more than this fraction of the side
    moving_spread: float = between(0, 1_000, 0.03)
    # a run is good up to this expected forward error, relative to guessing
    good_error: float = between(0, 1_000, 0.3)
    # a run has failed at this expected forward error or more, relative to guessing
    failed_error: float = between(0, 1_000, 0.75)
    # above this separation of their features, images seem to show two kinds of objects
    max_kind_separation: float = fraction(0.28)


@dataclass(frozen=True)
class Verification:
    """Comparison with a second, shorter run from another seed on a part of the images."""

    enabled: bool = False  # hold out images and train a second detector
    held_out_fraction: float = above(0, 0.5, 0.1)  # fraction of the images that neither run is trained on
    max_held_out: int = between(1, 1_000_000, 200)  # maximum number of held-out images
    training_fraction: float = above(0, 1, 0.5)  # fraction of the other images that the second run uses
    schedule_fraction: float = above(0, 1, 0.5)  # iterations of the second run / iterations of the first run
    min_images: int = between(2, 10_000_000, 40)  # runs on fewer images are verified only on request


@dataclass(frozen=True)
class Refinement:
    """Short training of a detector's head with corrected landmarks (`selfmark refine`)."""

    # iterations per training; there is one training for each group left out, and one with all images
    iterations: int = between(1, 1_000_000, 80)
    batch: int = between(1, 4_096, 16)  # images per iteration, half of them without corrections
    lr: float = between(0, 1, 1e-3)  # peak learning rate of the head; AdamW, one cycle
    warmup_fraction: float = fraction(0.1)  # fraction of the iterations in which the learning rate rises
    weight_decay: float = between(0, 1, 1e-4)  # decoupled weight decay
    # weight of the loss that keeps heatmaps without a correction as they were
    keep_weight: float = between(0, 1_000, 0.5)
    views: int = between(1, 1_000, 8)  # augmented views of each corrected image
    # number of other images of the run on which landmarks should stay
    kept_images: int = between(0, 100_000, 48)
    kept_views: int = between(1, 1_000, 1)  # augmented views of each of the kept images
    # corrected images are divided into at most this many groups, which are left out in turn
    folds: int = between(2, 1_000, 5)
    max_gigabytes: float = above(0, 10_000, 1.0)  # maximum memory of the stored features


@dataclass(frozen=True)
class Config:
    """All settings of one run; change them with `dataclasses.replace` or `override`."""

    preset: str = "paper"  # the preset that these settings started from
    method: Method = "self-training"  # zero-shot: features without training; others: see docs/methods.md
    seed: int = between(0, 2**63 - 1, 0)  # seed of all random numbers
    K: int = between(0, 10_000, 30, _LIMIT_OF_K)  # number of landmarks; 0: chosen from the images, see auto_k
    M: int = between(0, 1_000_000, 100)  # number of clusters in Stage 1, M >> K
    images: Images = field(default_factory=Images)
    keypoints: FirstKeypoints = field(default_factory=FirstKeypoints)
    features: Features = field(default_factory=Features)
    student: Student = field(default_factory=Student)
    network: Network = field(default_factory=Network)
    heatmaps: Heatmaps = field(default_factory=Heatmaps)
    loss: Loss = field(default_factory=Loss)
    correspondence: Correspondence = field(default_factory=Correspondence)
    auto_k: AutoK = field(default_factory=AutoK)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    warmup: Warmup = field(default_factory=Warmup)
    rounds: Rounds = field(default_factory=Rounds)
    stage2: Stage2 = field(default_factory=Stage2)
    flip: Flip = field(default_factory=Flip)
    temporal: Temporal = field(default_factory=Temporal)
    augment: Augment = field(default_factory=Augment)
    runtime: Runtime = field(default_factory=Runtime)
    guards: Guards = field(default_factory=Guards)
    evaluation: Evaluation = field(default_factory=Evaluation)
    verification: Verification = field(default_factory=Verification)
    refinement: Refinement = field(default_factory=Refinement)
    tracking: Tracking = field(default_factory=Tracking)
    smoothing: Smoothing = field(default_factory=Smoothing)
    methods: Methods = field(default_factory=Methods)
    mallis2020: Mallis2020 = field(default_factory=Mallis2020)
    equivariance: EquivarianceSettings = field(default_factory=EquivarianceSettings)
    dve: DVE = field(default_factory=DVE)
    zhang2018: Zhang2018Settings = field(default_factory=Zhang2018Settings)
    jakab2018: Jakab2018Settings = field(default_factory=Jakab2018Settings)
    lorenz2019: Lorenz2019Settings = field(default_factory=Lorenz2019Settings)
    autolink: AutoLinkSettings = field(default_factory=AutoLinkSettings)

    def __post_init__(self) -> None:
        check_limits(self)
        check_model(self.images, self.network)
        _check_combinations(self)
        _check_memory(self)

    @property
    def map_size(self) -> int:
        """Side of the heatmaps in cells."""
        return self.images.size // STRIDE

    @property
    def is_from_another_paper(self) -> bool:
        """Whether landmarks are found by a method of another paper (`selfmark.methods`)."""
        return self.method not in ("self-training", "zero-shot")

    @property
    def merges_clusters(self) -> bool:
        """Whether the number of landmarks is found by merging clusters; K is then its maximum."""
        return self.method == "mallis2020"

    @property
    def uses_features(self) -> bool:
        """Whether landmarks are found with pretrained features."""
        return self.features.name != "none"

    @property
    def num_candidates(self) -> int:
        """Number of candidate landmarks that are found with features: K, or a multiple of it.

        >>> [Config(K=K).num_candidates for K in (0, 10, 16, 20, 30)]
        [0, 30, 48, 40, 30]
        """
        settings = self.features
        most = settings.max_candidates // self.K if self.K else 1
        return self.K * max(1, min(settings.candidates, most))

    @property
    def stage1_landmarks(self) -> int:
        """Number of landmarks of Stage 1: all candidates if features are used, otherwise K."""
        return self.num_candidates if self.uses_features else self.K


def check_model(images: Images, network: Network) -> None:
    """Raise if a setting is outside its limits, or if no network can be built with these settings."""
    check_limits(images, "images.")
    check_limits(network, "network.")
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


def _check_memory(config: Config) -> None:
    """Raise if an image or a training batch would take more memory than `memory` allows."""
    channels = ENCODER_CHANNELS if config.uses_features else config.network.channels
    cells, size = config.map_size, config.images.size
    check_image_memory(config.K, size, channels, cells, 1 + config.flip.test)
    for name, images in (
        ("runtime.batch", 2 * config.runtime.batch),
        ("stage2.batch", config.stage2.batch),
        ("student.batch", config.student.batch),
        ("methods.batch", config.methods.batch),
    ):
        check_batch_memory(name, images, config.K, channels, cells)


def _check_combinations(config: Config) -> None:
    """Raise if settings contradict each other."""
    require(config.M >= config.K, f"M must be at least K ({config.K}), not {config.M}")
    require(
        config.flip.train or not config.flip.test,
        "flip.test needs flip.train, which finds the mirror partners; set both to false",
    )
    require(
        config.uses_features or config.method != "zero-shot",
        "method zero-shot needs features, for example --features efficientnet-lite0",
    )
    require(
        not (config.is_from_another_paper and config.uses_features),
        f"method {config.method} does not use features: leave out --features",
    )
    require(
        config.K > 0 or not config.is_from_another_paper or config.merges_clusters,
        f"method {config.method} cannot choose the number of landmarks: give it with -k",
    )
    require(len(config.auto_k.candidates) > 0, "auto_k.candidates must be a list of at least one number")
    require(
        len(config.evaluation.oks_thresholds) > 0,
        "evaluation.oks_thresholds must be a list of at least one number",
    )
    require(
        config.auto_k.max_images >= config.images.minimum, "auto_k.max_images must be at least images.minimum"
    )
    require(
        config.warmup.bootstrap == "detector-descriptors" or config.warmup.iterations >= 1,
        "warmup.iterations must be at least 1 unless warmup.bootstrap is detector-descriptors",
    )
