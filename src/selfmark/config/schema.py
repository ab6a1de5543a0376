"""All settings with defaults and limits; those of the paper are named as in it (cited in the README).

The defaults are the paper's numbers, where it gives them. The preset `paper` also follows the authors'
program in what the paper leaves open (see `presets` and docs/fidelity.md).
Numbers must not be negative unless their field declares another limit (see `limits`). The comments become
the page docs/settings.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from selfmark.config.limits import above, any_number, at_least, between, check_limits, fraction, require
from selfmark.config.method_settings import (
    AutoLink,
    Equivariance,
    Jakab2018,
    Lorenz2019,
    Method,
    Methods,
    Zhang2018,
)

DetectorName = Literal["sift", "orb", "selfmark", "superpoint", "r2d2", "alike-t", "alike-n", "file"]

Orientation = Literal["auto", "not-upright", "upright", "turned", "any"]
"""How objects are turned in the images.

upright:     all objects are upright
turned:      they face any direction, and every image is first rotated to a common direction
any:         they face any direction, and no common direction can be found
not-upright: decide between turned and any from the images
auto:        decide between upright, turned and any from the images
"""
BorderColor = Literal["repeated", "black"]  # pixels outside a warped image
PeakMethod = Literal["cell", "quarter", "parabola", "centroid"]
"""How a position is read from a heatmap.

cell:     the center of the highest cell
quarter:  a quarter of a cell from there toward the higher neighbor, along each axis
parabola: the vertex of a parabola through the logarithms of the highest cell and its neighbors
centroid: the mean of all cells, weighted by the squares of their values
"""

STRIDE = 4  # pixels per heatmap cell: a 7x7 convolution with stride 2, then average pooling
_LIMIT_OF_K = "at least 1, or 0 for a number chosen from the images"


@dataclass(frozen=True)
class Images:
    """How images are cropped and resized."""

    # The maxima in `Images` and `Network` are far above any practical value. They keep an untrusted model
    # file from exhausting memory.
    size: int = between(1, 4_096, 256)  # side of the network's square input, pixels (Implementation Details)
    box_rule: Literal["loose", "body"] = "loose"  # loose: longer side plus margin; body: see body_scale
    margin: float = above(-0.5, 10, 0.1)  # loose rule: added on each side, fraction of the longer side
    body_scale: float = above(0, 10, 1.1)  # body rule: c, side of the crop / height of the body
    aspect: Literal["square", "stretched"] = "square"  # stretched: loose crops keep the box's aspect ratio
    max_megapixels: float = above(0, 2_000, 200.0)  # larger images are skipped
    minimum: int = 8  # minimum number of usable images


@dataclass(frozen=True)
class FirstKeypoints:
    """Generic keypoints that discovery starts from, and the removal of outliers (Sec. 4.2)."""

    detector: DetectorName = "superpoint"  # generic detector; selfmark, orb and sift need no download
    weights: str = ""  # weights file of a learned detector; empty: from the cache
    points_file: str = ""  # CSV file of keypoints, for detector "file" (synthetic initializations)
    image_size: int = at_least(8, 256)  # side to which images are resized for detection, pixels
    threshold: float = any_number(0.015)  # learned detectors: minimum confidence
    nms_radius: int = 8  # learned detectors: non-maximum suppression, pixels of image_size
    max_points: int = at_least(2, 40)  # maximum number of points per image
    random_fraction: float = fraction(0.0)  # fraction replaced by random points (Robustness to noise)
    outlier_neighbors: int = 100  # outlier score: median distance to this many nearest descriptors
    outlier_fraction: float = fraction(0.4)  # fraction of points removed as outliers
    outlier_sample: int = 100_000  # maximum number of descriptors in which neighbors are searched


@dataclass(frozen=True)
class Network:
    """The hourglass backbone and its heads (Sec. 3.2)."""

    channels: int = between(1, 1_024, 256)  # width of the hourglass
    depth: int = between(1, 8, 4)  # number of times the hourglass halves its resolution
    descriptor: int = between(1, 4_096, 256)  # d, length of a descriptor
    norm_groups: int = between(1, 128, 32)  # groups of GroupNorm


@dataclass(frozen=True)
class Features:
    """Pretrained features that recognize parts, and the landmarks found with them before any training."""

    name: str = "none"  # none, efficientnet-lite0, -lite1, -lite2, dinov2-s, dinov2-b, or onnx:FILE
    max_images: int = at_least(8, 100_000)  # landmarks are found and trained on at most this many images
    sample: int = at_least(1, 150_000)  # maximum number of cells that K-means is fitted on
    iterations: int = at_least(1, 40)  # iterations of K-means
    restarts: int = at_least(1, 3)  # runs of K-means; the best one is used
    foreground_clusters: int = at_least(1, 100)  # clusters of all cells; each is object or background
    border: int = at_least(1, 2)  # width in cells of the image border, which is mostly background
    max_border_ratio: float = above(0, 1_000, 0.2)  # object: clusters with a lower border / inside frequency
    max_color_border_ratio: float = above(0, 1_000, 0.3)  # the same for clusters of the colors of cells
    min_foreground: float = fraction(0.05)  # if fewer cells are object, ignore the color ratio, then both
    orientation: Orientation = "auto"  # how objects are turned, see Orientation
    min_upright_accuracy: float = 0.8  # auto: upright if images are told from upside-down copies this often
    min_direction_consistency: float = fraction(0.9)  # turned if images and mirror images agree on directions
    rotations: int = at_least(1, 8)  # turned, any: number of rotated copies compared or averaged
    direction_size: int = at_least(8, 128)  # turned: side of these copies, pixels
    direction_cells: int = at_least(1, 8)  # turned: side of the grid on which their features are compared
    direction_starts: int = at_least(1, 20)  # turned: images that are tried as the first template
    turned_rotation: float = 40.0  # turned: value of augment.rotation
    rotation: float = 180.0  # any: value of augment.rotation
    places: Literal["auto", "used", "ignored"] = "auto"  # whether a cell's place is part of its description
    max_place_ratio: float = above(0, 1_000, 0.96)  # auto: use if error with / without places is at most this
    place_weight: float = 0.1  # weight of the place compared with the features
    sharpness: float = above(0, 10_000, 30.0)  # inverse temperature of the soft-argmax over similarities
    labels: Literal["auto", "cells", "keypoints"] = "auto"  # of the first rounds; auto: keypoints if upright
    max_keypoints: int = at_least(2, 100)  # labels: maximum number of keypoints per image
    keypoint_threshold: float = 0.005  # labels: minimum confidence of a keypoint
    keypoint_nms_radius: int = 4  # labels: non-maximum suppression, pixels of keypoints.image_size
    min_labeled_fraction: float = fraction(0.3)  # cells if keypoints label a smaller fraction of landmarks
    keypoint_landmarks: bool = True  # upright: also run Stage 1; use its landmarks if confirmed
    keypoint_label_rounds: int = at_least(1, 2)  # number of first rounds trained on labeled keypoints
    max_unexplained_warmup: float = 0.9  # end Stage 1 after the warm-up if more than this is unexplained
    max_unexplained: float = 0.7  # Stage 1 is confirmed up to this unexplained fraction of its landmarks
    max_unexplained_start: float = 0.9  # undo a round if more of the zero-shot landmarks is unexplained
    max_noise_ratio: float = above(0, 1_000, 1.25)  # undo a round if its reverse error grows by this factor

    @property
    def averaged_rotations(self) -> int:
        """Number of rotated copies whose features are averaged."""
        return self.rotations if self.orientation == "any" else 1

    @property
    def used_place_weight(self) -> float:
        """Weight of a cell's place; 0 if places are ignored or it is not yet known whether they help."""
        return self.place_weight if self.places == "used" else 0.0

    @property
    def labels_keypoints(self) -> bool:
        """Whether the first rounds learn from labeled keypoints instead of zero-shot landmarks."""
        return self.labels == "keypoints" or (self.labels == "auto" and self.orientation == "upright")

    @property
    def runs_stage1(self) -> bool:
        """Whether the paper's Stage 1 is run, which needs upright objects."""
        return self.keypoint_landmarks and self.orientation == "upright"


@dataclass(frozen=True)
class Student:
    """Detector on a pretrained encoder, trained in rounds on its own predictions."""

    rounds: int = 3  # number of rounds; each is trained on the predictions of the round before
    iterations: int = at_least(1, 400)  # iterations per round
    batch: int = at_least(1, 64)  # images per iteration
    lr: float = 1e-3  # peak learning rate of the head; AdamW, one cycle per round
    encoder_lr: float = 0.1  # learning rate of the encoder, as a fraction of lr; 0: frozen
    frozen_rounds: int = 1  # number of first rounds in which the encoder is frozen
    warmup_fraction: float = above(0, 1, 0.1)  # fraction of a round in which the learning rate rises
    weight_decay: float = 1e-4  # decoupled weight decay
    width: int = between(1, 4_096, 256)  # channels of the head
    depth: int = between(1, 16, 3)  # convolutions of the head before the last one
    feature_scale: float = above(0, 1_000, 8.0)  # factor on the unit features at the head's input
    sigma: float = above(0, 100, 2.4)  # standard deviation of the target Gaussians, cells of the heatmaps
    confident_fraction: float = above(0, 1, 0.7)  # fraction of each landmark's labels that count


@dataclass(frozen=True)
class Heatmaps:
    """Heatmaps of Stage 1 and how keypoints are read from them (Sec. 3.2)."""

    sigma: float = 0.75  # standard deviation of the target Gaussians, cells; 0: a single cell is set to 1
    threshold: float = any_number(0.15)  # minimum confidence of a keypoint
    nms_radius: int = 2  # non-maximum suppression, cells
    max_points: int = at_least(1, 64)  # maximum number of keypoints per image
    refine: Literal["cell", "quarter", "parabola"] = "quarter"  # see PeakMethod


@dataclass(frozen=True)
class Loss:
    """Contrastive loss and detector loss of Stage 1 (Sec. 3.4)."""

    margin: float = 0.8  # m of the contrastive loss
    hinge: Literal["squared-distance", "distance"] = "squared-distance"  # max(0, m - d^2) or max(0, m - d)^2
    descriptors: Literal["unit", "raw"] = "unit"  # whether descriptors are normalized before comparison
    detector_weight: float = 0.1  # lambda, weight of the detector loss, a mean over both views
    average: Literal["together", "apart"] = "together"  # one mean over all pairs, or one per kind of pair
    negative_weight: float = 1.0  # weight of the negative pairs
    negatives: Literal["same-image", "different-cluster"] = "same-image"  # origin of negatives
    random_negatives: int = 128  # random locations per image that are used as negatives
    negative_distance: float = 5.7  # minimum distance of a negative in the same image, cells


@dataclass(frozen=True)
class Correspondence:
    """Correspondence recovery: K-means over the descriptors of all images (Sec. 3.3)."""

    mode: Literal["clustering", "equivariance"] = "clustering"  # where the positive pairs come from
    assignment: Literal["nearest", "hungarian"] = "nearest"  # hungarian: the authors' earlier method
    extra_points: Literal["kept", "removed"] = "kept"  # all but one of an image's points in a cluster
    iterations: int = 100  # iterations of K-means
    restarts: int = at_least(1, 10)  # runs of K-means; the best one is used
    sample: int = at_least(1, 800_000)  # maximum number of descriptors K-means is fitted on
    min_points: int = 2  # images with fewer points are left out of the round


@dataclass(frozen=True)
class AutoK:
    """Choice of the number of landmarks when K is 0: the one that is most stable under resampling."""

    candidates: tuple[int, ...] = at_least(2, (4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 50))  # K to try
    splits: int = at_least(2, 5)  # random splits of the images into halves that are clustered separately
    blocks: int = at_least(2, 20)  # blocks of consecutive images (video frames) that stay in the same half
    max_images: int = 400  # maximum number of images used, evenly spaced
    clear_margin: float = 0.1  # points with a smaller margin are ignored; 0: cluster border, 1: centroid
    dissolved_agreement: float = 0.5  # landmarks count as 0 if the halves agree on them no more than this
    weak_score: float = 0.3  # a warning is given if the best score is lower, as it is for cluttered images


@dataclass(frozen=True)
class Optimizer:
    """RMSprop (Implementation Details)."""

    lr: float = 2e-4  # learning rate
    weight_decay: float = 1e-5  # weight decay of all parameters
    clip_norm: float = 0.0  # maximum norm of the gradients; 0: no clipping


@dataclass(frozen=True)
class Warmup:
    """Bootstrapping of Stage 1 before the first round (Sec. 3.5)."""

    bootstrap: Literal["equivariance", "detector-descriptors"] = (
        "equivariance"  # detector-descriptors: the authors' earlier method
    )
    iterations: int = 30_000  # iterations on pairs of an image and a deformed copy


@dataclass(frozen=True)
class Rounds:
    """Rounds of correspondence recovery and self-training (Algorithm 1)."""

    count: int = at_least(1, 34)  # T, number of rounds: 30k + 34 x 5k = 200k iterations in total
    iterations: int = 5_000  # iterations per round
    lr_drops: tuple[float, ...] = (0.75, 0.9)  # lr x0.1 at these fractions of Stage 1 (150k, 180k)
    same_image_fraction: float = fraction(0.5)  # fraction of pairs that are an image and a deformed copy
    keep_weights: bool = False  # keep the weights of every round in checkpoints/round-01.safetensors, ...


@dataclass(frozen=True)
class Stage2:
    """Training of the landmark detector Psi (Sec. 3.6)."""

    iterations: int = at_least(1, 200_000)  # iterations of heatmap regression
    batch: int = at_least(1, 16)  # images per iteration
    lr_drops: tuple[float, ...] = (0.25, 0.35)  # lr x0.1 at these fractions of the iterations (50k, 70k)
    backbone_lr: float = 0.1  # learning rate of the backbone, as a fraction of optimizer.lr
    head: Literal["detector", "descriptor"] = "detector"  # head of Phi that Psi's head starts from
    sigma: float = 0.75  # standard deviation of the target Gaussians, cells
    refine: PeakMethod = "quarter"  # how a position is read from a heatmap, see PeakMethod
    average: Literal["found", "all"] = "found"  # mean over the landmarks found in an image, or over all K
    outside: Literal["ignored", "absent"] = "ignored"  # landmarks outside the view; absent: empty target
    cutout: int = 80  # side of the erased square, pixels of a 256-pixel image
    cutout_color: Literal["gray", "black"] = "gray"  # color of the erased square
    cutout_fraction: float = fraction(0.5)  # fraction of images with an erased square


@dataclass(frozen=True)
class Flip:
    """Mirrored images (Sec. 3.7)."""

    train: bool = True  # train on mirrored images, in both stages
    test: bool = True  # average the heatmaps of an image and its mirror image
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
    max_frame_gap: int = at_least(1, 5)  # maximum gap in original frames; the next used frame always counts
    neighbors: int = at_least(1, 2)  # nearby frames drawn per frame and round
    window: int = at_least(3, 15)  # window of the Lucas-Kanade tracker, pixels
    levels: int = 3  # pyramid levels of the tracker
    max_return_error: float = 1.0  # maximum error after tracking a point forward and back, pixels


@dataclass(frozen=True)
class Augment:
    """Random changes of training images."""

    rotation: float = 40.0  # maximum rotation in either direction, degrees
    scale: tuple[float, float] = (0.8, 1.2)  # factor per axis
    shift: float = 0.05  # maximum shift, as a fraction of the image's side
    contrast: tuple[float, float] = (0.85, 1.3)  # factor on the difference from the mean
    brightness: tuple[float, float] = (0.9, 1.1)  # factor on the mean
    negative_fraction: float = fraction(0.0)  # fraction of images with inverted brightness
    border: BorderColor = "repeated"  # pixels outside a warped image: those of its border, or black
    noise_fraction: float = fraction(1.0)  # fraction of images with noise
    noise: float = 0.05  # maximum standard deviation of the noise, for values in 0..1
    blur_fraction: float = 0.3  # fraction of blurred images
    blur_sigma: tuple[float, float] = (0.3, 1.2)  # standard deviation of the blur, pixels
    color_fraction: float = fraction(0.3)  # fraction of images with changed hue and saturation
    hue: float = 20.0  # maximum change of hue in either direction, degrees
    saturation: tuple[float, float] = (0.7, 1.3)  # factor on the difference from gray


@dataclass(frozen=True)
class Runtime:
    """How a run is computed; these settings may change when a run is resumed."""

    batch: int = at_least(1, 16)  # pairs per iteration of Stage 1 (two images each)
    predict_batch: int = at_least(1, 128)  # images per forward pass outside training; fewer if memory is low
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 on CUDA, fp32 elsewhere
    kernels: Literal["auto", "plain"] = "auto"  # auto: fused kernels for bf16 on CUDA if Triton is installed
    device_fraction: float = fraction(0.4)  # fraction of free GPU memory for images; as much for descriptors
    checkpoint_every: int = at_least(1, 1_000)  # iterations between checkpoints
    log_every: int = at_least(1, 50)  # iterations between log entries
    store_gigabytes: float = 16.0  # maximum size of the images in memory; larger sets are memory-mapped


@dataclass(frozen=True)
class Guards:
    """Thresholds at which training counts as collapsed and stops with an error."""

    min_points: float = 0.5  # minimum average number of keypoints per image
    min_descriptor_spread: float = 0.01  # mean squared distance of descriptors to their mean; usual: 0.3..1
    min_point_spread: float = 0.01  # mean distance of an image's points from their mean, fraction of its side
    max_empty_fraction: float = 0.5  # fraction of clusters that may be empty
    min_score: float = 1e-3  # minimum for the highest landmark score in the checked images
    num_samples: int = at_least(1, 64)  # images on which the detector is checked before it is saved


@dataclass(frozen=True)
class Evaluation:
    """Metrics and label-free checks (Sec. 4.2)."""

    seed: int = 0  # random seed of the draws below
    min_visibility: int = 1  # minimum COCO visibility of a point; 2 leaves out occluded points
    ridges: tuple[float, ...] = (0.1, 0.01, 0.001, 0.0)  # lambda, relative to the largest entry of X'X
    ridge: float = 0.01  # lambda of the headline numbers; authors: 0.1 on LS3D, 0.001 on CelebA (forward)
    fit_images: tuple[int, ...] = (1, 5, 10, 100, 300, 800)  # numbers of images to fit on, besides all
    draws: int = 10  # random draws for each of these numbers
    max_curve_error: float = 20.0  # end of the cumulative error curve, percent
    hit_pixels: float = 6.0  # a raw landmark is a hit within this distance, pixels of hit_side
    hit_side: int = 128  # image side that hit_pixels refers to
    hit_fraction: float = 0.2  # faces: a hit is within this fraction of the inter-ocular distance
    pck_fraction: float = 0.3  # bodies (PCK): a hit is within this fraction of the torso
    oks_thresholds: tuple[float, ...] = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)  # AP and AR
    oks_single: tuple[float, ...] = (0.5, 0.4)  # OKS thresholds that are also reported separately
    oks_sigma: float = 0.05  # OKS sigma of points without a COCO value
    precision_fraction: float = 0.1  # a generic keypoint is correct within this fraction of the eye distance
    completion_iterations: int = 500  # maximum iterations of singular value thresholding
    num_samples: int = 200  # maximum number of images for the checks without labels
    deformations: int = at_least(1, 2)  # random deformations of each image in these checks
    flip: Literal["as-trained", "never"] = "as-trained"  # mirroring at test time
    agreement_radius: float = 0.05  # two positions agree within this fraction of the image's side
    constellation_radius: float = 0.3  # maximum distance from the common shape, fraction of its radius
    duplicate_radius: float = 0.02  # landmarks mark the same place within this fraction of the image's side
    min_images: int = at_least(1, 30)  # training images; a run on fewer is called uncertain
    # The weights below are fitted by benchmarks/trust/trust_model.py, see docs/results/trust.json.
    error_weights: tuple[float, ...] = (0.06, 0.32, 0.7)  # weights: constant, 1 - stable, appearance error
    verified_error_weights: tuple[float, ...] = (
        0.05,
        0.31,
        0.61,
        0.13,
    )  # the same, then the second run's error
    run_error_weights: tuple[float, ...] = (0.04, 0.85)  # weights: constant, error of the best landmarks
    best_fraction: float = above(0, 1, 0.1)  # fraction of the landmarks that count as the best ones
    full_found_rate: float = above(0, 1, 0.5)  # trust is lowered if Stage 1 found a landmark more rarely
    background_radius: int = 4  # half the side of squares compared with the median frame of a video, pixels
    background_difference: float = 8.0  # squares look alike up to this mean difference, gray levels
    max_background_rate: float = fraction(
        0.9
    )  # landmarks that look like the median frame more often: background
    fixed_spread: float = 0.01  # landmarks that move less, relative to the image's side, may be background
    moving_spread: float = 0.03  # fixed_spread applies only if the median landmark moves this far
    good_error: float = 0.3  # a run is good up to this expected forward error, relative to guessing
    failed_error: float = 0.75  # a run has failed from this expected forward error on
    max_kind_separation: float = fraction(0.28)  # above this separation, images show two kinds of objects


@dataclass(frozen=True)
class Verification:
    """Comparison with a second, shorter run from another seed and half of the images."""

    enabled: bool = False  # hold out images and train a second detector
    held_out_fraction: float = above(0, 0.5, 0.1)  # fraction of the images that neither run is trained on
    max_held_out: int = at_least(1, 200)  # maximum number of these images
    training_fraction: float = above(0, 1, 0.5)  # fraction of the other images that the second run uses
    schedule_fraction: float = above(0, 1, 0.5)  # iterations of the second run / of the first run
    min_images: int = at_least(2, 40)  # runs on fewer images are verified only on request


@dataclass(frozen=True)
class Tracking:
    """Tracking of animals in front of a fixed camera (`--find-animals`)."""

    num_samples: int = 60  # frames of a video whose median is the background
    max_side: int = 480  # maximum longer side at which frames are analyzed, pixels
    min_contrast: float = 12.0  # minimum difference between animal and background, gray levels
    opening_fraction: float = 0.07  # parts thinner than twice this fraction of an animal's length are removed
    min_area: float = 0.25  # minimum area of a blob, as a fraction of an animal's area
    max_step: float = 2.0  # maximum movement between two frames, animal lengths
    max_gap: float = 0.5  # maximum time for which a lost animal is interpolated, seconds
    smoothing: float = 0.08  # standard deviation of the Gaussian that smooths positions, seconds
    size_fraction: float = 0.95  # fraction of frames in which the crop contains the whole animal
    margin: float = 0.1  # added on each side for legs and tails, as a fraction of the animal's size
    rotation: float = 180.0  # augment.rotation for tracked animals, which can face any direction


@dataclass(frozen=True)
class Config:
    """All settings of one run; change them with `dataclasses.replace` or `override`."""

    preset: str = "paper"  # the preset that these settings started from
    method: Method = "self-training"  # zero-shot: features without training; others: see docs/methods.md
    seed: int = 0  # seed of all random numbers
    K: int = at_least(0, 30, _LIMIT_OF_K)  # number of landmarks; 0: chosen after the warm-up (auto_k)
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
    tracking: Tracking = field(default_factory=Tracking)
    methods: Methods = field(default_factory=Methods)
    equivariance: Equivariance = field(default_factory=Equivariance)
    zhang2018: Zhang2018 = field(default_factory=Zhang2018)
    jakab2018: Jakab2018 = field(default_factory=Jakab2018)
    lorenz2019: Lorenz2019 = field(default_factory=Lorenz2019)
    autolink: AutoLink = field(default_factory=AutoLink)

    def __post_init__(self) -> None:
        check_limits(self)
        check_model(self.images, self.network)
        _check_combinations(self)

    @property
    def map_size(self) -> int:
        """Side of the heatmaps in cells."""
        return self.images.size // STRIDE

    @property
    def is_from_another_paper(self) -> bool:
        """Whether landmarks are found by a method of another paper (`selfmark.methods`)."""
        return self.method not in ("self-training", "zero-shot")

    @property
    def uses_features(self) -> bool:
        """Whether landmarks are found with pretrained features."""
        return self.features.name != "none"


def check_model(images: Images, network: Network) -> None:
    """Raise if a network with these settings cannot be built or would exhaust memory."""
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
        not (config.is_from_another_paper and config.K == 0),
        f"method {config.method} cannot choose the number of landmarks: give it with -k",
    )
    require(len(config.auto_k.candidates) > 0, "auto_k.candidates must be a list of at least one number")
    require(
        config.auto_k.max_images >= config.images.minimum, "auto_k.max_images must be at least images.minimum"
    )
    require(
        config.warmup.bootstrap == "detector-descriptors" or config.warmup.iterations >= 1,
        "warmup.iterations must be at least 1 unless warmup.bootstrap is detector-descriptors",
    )
