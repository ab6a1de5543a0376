"""Define all settings with their defaults and limits.

Settings from the paper (cited in the README) have the paper's names. Where the paper gives a number, this
number is the default. Where the paper leaves a choice, the preset `paper` follows the authors' program (see
`presets` and docs/fidelity.md).

Every number declares its limits (see `limits`). The comment behind or above a setting becomes its text on the
page docs/settings.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from selfmark.config.evaluation_settings import Evaluation, Refinement, Verification
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
    """Cropping and resizing of the images, in every run."""

    size: int = between(1, 4_096, 256)  # Side of the square input of the network, in pixels (Sec. 4.2).
    # How an image is cropped around the object's box (Sec. 4.1). `loose`: the side of the crop is the longer
    # side of the box plus `images.margin` on both sides. `body`: the side of the crop is the height of the
    # box times `images.body_scale`.
    box_rule: Literal["loose", "body"] = "loose"
    # Margin that the rule `loose` adds on each side of the box, as a fraction of the longer side of the box.
    # If `images.aspect` is `stretched`, the margins left and right are fractions of the width of the box, and
    # those at the top and bottom are fractions of its height.
    margin: float = above(-0.5, 10, 0.1)
    # With the rule `body`, the side of the crop is this value times the height of the box. The paper calls
    # this value c (Sec. 4.1).
    body_scale: float = above(0, 10, 1.1)
    # Shape of the crops. `square`: crops are square. `stretched`: a crop has the aspect ratio of the box, or
    # of the image if there is no box, and is stretched to a square. The rule `body` always crops squares.
    aspect: Literal["square", "stretched"] = "square"
    max_megapixels: float = above(0, 2_000, 200.0)  # Images with more megapixels than this value are skipped.
    minimum: int = between(0, 1_000_000, 8)  # A run stops if fewer images than this value are usable.


@dataclass(frozen=True)
class FirstKeypoints:
    """The first keypoints (Sec. 4.2), in runs with Stage 1 or with keypoints as labels."""

    # Detector of the first keypoints. `selfmark`, `sift` and `orb` need no download. `file` reads the
    # keypoints from `keypoints.points_file`.
    detector: DetectorName = "superpoint"
    # File with the weights of the detector `selfmark`, `superpoint`, `r2d2`, `alike-t` or `alike-n`. If the
    # name is empty, `selfmark` uses its own weights, and the other detectors use the weights that you have
    # downloaded.
    weights: str = ""
    # CSV file with the keypoints for the detector `file`. Its columns are image, x, y and, if known, score.
    # The paper starts from synthetic keypoints in some experiments (Sec. 5.1).
    points_file: str = ""
    # Side to which images are resized before keypoints are detected, in pixels.
    image_size: int = between(8, 2_048, 256)
    # Minimum confidence of a keypoint. Only the detectors `selfmark` and `superpoint` use this value.
    threshold: float = between(-1_000_000, 1_000_000, 0.015)
    # Of several keypoints within this distance of each other, only the strongest is kept. The distance is in
    # pixels of `keypoints.image_size`. The detectors `sift`, `orb` and `file` ignore this value.
    nms_radius: int = between(0, 128, 8)
    # Maximum number of keypoints that are detected in an image, before outliers are removed.
    max_points: int = between(2, 100_000, 40)
    # Fraction of the keypoints of each image that are replaced by random points. The paper tests the
    # robustness to noise in this way (Sec. 5.1).
    random_fraction: float = fraction(0.0)
    # The descriptor of each keypoint is compared with this many of the most similar descriptors. The median
    # distance to them is the outlier score of the keypoint.
    outlier_neighbors: int = between(0, 10_000, 100)
    # Fraction of all keypoints that are removed as outliers. Those with the highest outlier scores are
    # removed.
    outlier_fraction: float = fraction(0.4)
    # Maximum number of descriptors among which the most similar ones are searched. If there are more, a
    # random sample is used.
    outlier_sample: int = between(0, 10_000_000, 100_000)


@dataclass(frozen=True)
class Network:
    """The hourglass network (Sec. 3.2) of Stage 1, of Stage 2 and of the methods of other papers."""

    # Number of channels of the hourglass. A larger value makes the network larger and slower.
    channels: int = between(1, 1_024, 256)
    # Number of times that the hourglass halves the resolution. With 0, there is no hourglass, and a cell sees
    # only its surroundings.
    depth: int = between(0, 8, 4)
    descriptor: int = between(1, 4_096, 256)  # Length of a descriptor. The paper calls this value d.
    # Number of groups of channels that are normalized together (GroupNorm). The number of channels must be a
    # multiple of 8 times this value.
    norm_groups: int = between(1, 128, 32)


@dataclass(frozen=True)
class Heatmaps:
    """Heatmaps of Stage 1 and the keypoints found in them (Sec. 3.2), in runs with Stage 1."""

    # Standard deviation of the Gaussians in the target heatmaps, in cells. With 0, only the cell of the
    # keypoint is 1.
    sigma: float = between(0, 100, 0.75)
    # Minimum confidence of a keypoint. With a larger value, Stage 1 finds fewer keypoints.
    threshold: float = between(-1_000_000, 1_000_000, 0.15)
    # Of several keypoints within this distance of each other, only the strongest is kept. The distance is in
    # cells.
    nms_radius: int = between(0, 128, 2)
    max_points: int = between(1, 10_000, 64)  # Maximum number of keypoints per image.
    # How the position of a keypoint is read from a heatmap. The choices are explained at `stage2.refine`.
    refine: Literal["cell", "quarter", "parabola"] = "quarter"


@dataclass(frozen=True)
class Loss:
    """Contrastive loss and detector loss (Sec. 3.4), in runs with Stage 1."""

    # Margin m of the contrastive loss (Eq. 3). With a larger margin, descriptors that must differ are pushed
    # farther apart.
    margin: float = between(0, 1_000, 0.8)
    # Loss of a negative pair, where d is the distance of the two descriptors and m is the margin.
    # `squared-distance`: max(0, m - d^2). `distance`: max(0, m - d)^2, as in the authors' program.
    hinge: Literal["squared-distance", "distance"] = "squared-distance"
    # Whether descriptors are scaled to a length of 1 before they are compared (`unit`) or not (`raw`).
    descriptors: Literal["unit", "raw"] = "unit"
    # Weight of the detector loss compared with the contrastive loss, called lambda in the paper (Sec. 4.2).
    # This value applies to the mean over the two views of a pair; the paper's value applies to their sum.
    detector_weight: float = between(0, 1_000_000, 0.1)
    # How the contrastive loss is averaged. `together`: one mean over all pairs. `apart`: the mean over the
    # positive pairs plus the mean over the negative pairs.
    average: Literal["together", "apart"] = "together"
    # Weight of negative pairs compared with positive pairs.
    negative_weight: float = between(0, 1_000_000, 1.0)
    # Which descriptors form negative pairs. `same-image`: distant points of one image. `different-cluster`:
    # keypoints of two images that belong to different clusters.
    negatives: Literal["same-image", "different-cluster"] = "same-image"
    # Number of random points per image that form negative pairs with the keypoints. Only `same-image`
    # negatives use them.
    random_negatives: int = between(0, 10_000, 128)
    # Minimum distance of the two points of a `same-image` negative pair, in cells.
    negative_distance: float = between(0, 1_024, 5.7)


@dataclass(frozen=True)
class Correspondence:
    """Correspondence recovery (Sec. 3.3), in runs with Stage 1 or with keypoints as labels."""

    # Which images form pairs in the rounds. `clustering`: two images, or two deformed copies of one image.
    # `equivariance`: always two deformed copies of one image.
    mode: Literal["clustering", "equivariance"] = "clustering"
    # How keypoints are assigned to clusters. `nearest`: each keypoint is assigned to the nearest cluster; if
    # several keypoints of an image share a cluster, only the one nearest to its center keeps it. `hungarian`:
    # in each image, keypoints and clusters are paired so that the sum of their squared distances is smallest,
    # as in the authors' earlier method.
    assignment: Literal["nearest", "hungarian"] = "nearest"
    # Which keypoints are kept. `clusters`: keypoints are first grouped into K clusters, and at most one
    # keypoint per image and cluster is kept. `distance`: keypoints far from the center of their cluster are
    # removed, as in the authors' earlier method.
    filter: Literal["clusters", "distance"] = "clusters"
    # What happens if several keypoints of an image belong to the same one of the M clusters. One of them gets
    # the label of the cluster. The others are `kept` without a label or `removed`. With the filter
    # `distance`, they are always removed.
    extra_points: Literal["kept", "removed"] = "kept"
    iterations: int = between(0, 100_000, 100)  # Maximum number of iterations of K-means.
    # Number of times that K-means is run from different random starts. The best result is used.
    restarts: int = between(1, 1_000, 10)
    # Maximum number of descriptors from which K-means computes the centers of its clusters. If there are
    # more, a random sample is used.
    sample: int = between(1, 10_000_000, 800_000)
    # Images with fewer keypoints than this value are left out of the warm-up or the round.
    min_points: int = between(0, 10_000, 2)


@dataclass(frozen=True)
class AutoK:
    """Choice of the number of landmarks, in runs in which K is 0."""

    # Numbers of landmarks to try.
    candidates: tuple[int, ...] = between(2, 10_000, (4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 50))
    # Number of times that the images are divided at random into two halves. Each half is clustered
    # separately, and the two results are compared.
    splits: int = between(2, 1_000, 5)
    # Number of blocks into which the sequence of images is divided. All images of a block are in the same
    # half, because neighboring video frames are similar.
    blocks: int = between(2, 100_000, 20)
    # Maximum number of images that are used. If there are more, evenly spaced images are used.
    max_images: int = between(0, 1_000_000, 400)
    # Keypoints whose margin is smaller than this value are ignored. The margin of a keypoint is 0 halfway
    # between two clusters and 1 at the center of a cluster.
    clear_margin: float = fraction(0.1)
    # A landmark counts as unstable in all images if the agreement of the two halves on this landmark is at
    # most this value. The agreement is 0 for chance and 1 if the halves always agree.
    dissolved_agreement: float = fraction(0.5)
    # The run warns that the number is a guess if the best score is lower than this value. Cluttered images
    # can cause low scores.
    weak_score: float = between(0, 1_000, 0.3)


@dataclass(frozen=True)
class Optimizer:
    """RMSprop, the optimizer of Stage 1 and Stage 2 (Sec. 4.2)."""

    lr: float = between(0, 1, 2e-4)  # Learning rate at the start of each stage.
    weight_decay: float = between(0, 1, 1e-5)  # Strength of the weight decay of all parameters.
    # Maximum length of the gradient. A longer gradient is shortened to this value. With 0, gradients are not
    # shortened.
    clip_norm: float = between(0, 1_000_000, 0.0)


@dataclass(frozen=True)
class Warmup:
    """Warm-up before the first round (Sec. 3.5), in runs with Stage 1."""

    # How Stage 1 starts. `equivariance`: with a warm-up on pairs of two deformed copies of an image.
    # `detector-descriptors`: without a warm-up; the first round clusters the descriptors of the first
    # keypoints, as in the authors' earlier method.
    bootstrap: Literal["equivariance", "detector-descriptors"] = "equivariance"
    iterations: int = between(0, 10_000_000, 30_000)  # Number of iterations of the warm-up.


@dataclass(frozen=True)
class Rounds:
    """Rounds of correspondence recovery and training (Algorithm 1), in runs with Stage 1."""

    count: int = between(1, 1_000, 34)  # Number of rounds. The paper calls this value T.
    # Number of iterations in each round. The paper's Stage 1 has 200,000 iterations: a warm-up of 30,000 and
    # 34 rounds of 5,000.
    iterations: int = between(0, 10_000_000, 5_000)
    # Fractions of Stage 1, including the warm-up, after which the learning rate drops to a tenth. In the
    # paper, it drops after 150,000 and 180,000 iterations.
    lr_drops: tuple[float, ...] = between(0, 1, (0.75, 0.9))
    # Fraction of the pairs that are two deformed copies of the same image. Pairs of nearby video frames are
    # not counted.
    same_image_fraction: float = fraction(0.5)
    # Whether to keep the weights of every round, in the files checkpoints/round-01.safetensors,
    # checkpoints/round-02.safetensors and so on.
    keep_weights: bool = False


@dataclass(frozen=True)
class Stage2:
    """Training of the landmark detector Psi (Sec. 3.6), in runs with Stage 2."""

    iterations: int = between(1, 10_000_000, 200_000)  # Number of iterations of Stage 2.
    batch: int = between(1, 4_096, 16)  # Number of images in each iteration.
    # Fractions of Stage 2 after which the learning rate drops to a tenth. In the paper, it drops after 50,000
    # and 70,000 iterations.
    lr_drops: tuple[float, ...] = between(0, 1, (0.25, 0.35))
    # Learning rate of the backbone, as a fraction of `optimizer.lr`.
    backbone_lr: float = between(0, 100, 0.1)
    # Head of Phi from which the head of Psi starts: the one that finds keypoints (`detector`) or the one that
    # describes them (`descriptor`).
    head: Literal["detector", "descriptor"] = "detector"
    # Standard deviation of the Gaussians in the target heatmaps, in cells.
    sigma: float = between(0.05, 100, 0.75)
    # How the position of a landmark is read from its heatmap. `cell`: the center of the highest cell.
    # `quarter`: this center, moved a quarter of a cell toward the higher neighbor. `parabola`: the highest
    # point of a parabola through the highest cell and its neighbors. `centroid`: the mean of all cells,
    # weighted by the squares of their values.
    refine: PeakMethod = "quarter"
    # Landmarks over which the loss of an image is averaged. `found`: the landmarks that Stage 1 found in the
    # image. `all`: all K landmarks.
    average: Literal["found", "all"] = "found"
    # What Psi learns if a landmark is moved out of the image by augmentation. `ignored`: nothing. `absent`:
    # an empty heatmap.
    outside: Literal["ignored", "absent"] = "ignored"
    # Side of the square that is erased from an image, in pixels of an image with a side of 256 pixels.
    cutout: int = between(0, 4_096, 80)
    cutout_color: Literal["gray", "black"] = "gray"  # Color of the erased square.
    cutout_fraction: float = fraction(0.5)  # Fraction of the images from which a square is erased.


@dataclass(frozen=True)
class Flip:
    """Mirrored images (Sec. 3.7), in runs with `self-training`, `zero-shot` or `mallis2020`."""

    train: bool = True  # Whether the networks are also trained on mirrored images.
    # Whether a prediction is the average of the heatmaps of an image and of its mirror image. This setting
    # needs `flip.train`.
    test: bool = True
    # What a landmark becomes in a mirrored image. `found`: its mirror partner, which is found automatically.
    # `itself`: every landmark is its own partner, as in side views.
    partner: Literal["found", "itself"] = "found"

    @property
    def finds_partners(self) -> bool:
        """Whether keypoints get a separate label for the mirrored image (Sec. 3.7)."""
        return self.train and self.partner == "found"


@dataclass(frozen=True)
class Temporal:
    """Pairs of nearby video frames (Sec. 4.2), in runs with Stage 1 and `--temporal`."""

    # Whether pairs of nearby video frames are used in the rounds of Stage 1. Optical flow moves the keypoints
    # from one frame to the other.
    enabled: bool = False
    # Fraction of the pairs that are two nearby frames, as far as there are nearby frames.
    fraction: float = fraction(0.5)
    # Two frames are nearby if they are at most this many frames of the video apart. The previous and the next
    # frame that the run uses always count as nearby.
    max_frame_gap: int = between(1, 1_000_000, 5)
    # Number of nearby frames that are drawn for each frame in each round.
    neighbors: int = between(1, 100, 2)
    # Side of the window in which optical flow is computed around a keypoint, in pixels (Lucas-Kanade
    # tracker).
    window: int = between(3, 255, 15)
    # Number of times that images are halved for optical flow. With more levels, larger movements are found.
    levels: int = between(0, 16, 3)
    # A keypoint is left out if it does not return to its start when it is moved to the other frame and back.
    # This value is the maximum distance from the start, in pixels.
    max_return_error: float = between(0, 4_096, 1.0)


@dataclass(frozen=True)
class Augment:
    """Random changes of training images, and of images in the checks without labels."""

    # Maximum angle by which an image is rotated in either direction, in degrees.
    rotation: float = between(0, 360, 40.0)
    # Smallest and largest factor by which the width and the height of an image are multiplied. The factors
    # for width and height are drawn separately.
    scale: tuple[float, float] = between(0.01, 100, (0.8, 1.2))
    # Maximum distance by which an image is shifted along each axis, as a fraction of its side.
    shift: float = between(0, 10, 0.05)
    # Smallest and largest factor by which the contrast is multiplied. Contrast is how much each pixel differs
    # from the mean of the image.
    contrast: tuple[float, float] = between(0, 100, (0.85, 1.3))
    # Smallest and largest factor by which the brightness is multiplied. Brightness is the mean of the image.
    brightness: tuple[float, float] = between(0, 100, (0.9, 1.1))
    # Fraction of the images whose light and dark parts are exchanged, as in a photographic negative.
    negative_fraction: float = fraction(0.0)
    # Pixels that are outside the original image after a deformation. `repeated`: copies of the nearest border
    # pixels. `black`: black pixels.
    border: BorderColor = "repeated"
    noise_fraction: float = fraction(1.0)  # Fraction of the images to which noise is added.
    # Maximum standard deviation of the noise. Pixel values are between 0 and 1.
    noise: float = between(0, 10, 0.05)
    blur_fraction: float = fraction(0.3)  # Fraction of the images that are blurred.
    # Smallest and largest standard deviation of the Gaussian that blurs an image, in pixels.
    blur_sigma: tuple[float, float] = between(0.01, 100, (0.3, 1.2))
    color_fraction: float = fraction(0.3)  # Fraction of the images whose hue and saturation are changed.
    # Maximum change of the hue in either direction, in degrees of the color circle.
    hue: float = between(0, 360, 20.0)
    # Smallest and largest factor by which the saturation is multiplied. Saturation is how much each color
    # differs from gray.
    saturation: tuple[float, float] = between(0, 100, (0.7, 1.3))


@dataclass(frozen=True)
class Runtime:
    """How a run is computed; you can change these settings when you resume a run."""

    # Number of pairs in each iteration of Stage 1. A pair consists of two images.
    batch: int = between(1, 4_096, 16)
    # Maximum number of images that a network processes at a time outside training. There are fewer if memory
    # is low.
    predict_batch: int = between(1, 4_096, 128)
    # Number format of the computation. `fp32`: 32 bits. `bf16`: mostly 16 bits. `auto`: `bf16` on a CUDA GPU,
    # which is faster there, and `fp32` elsewhere.
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    # Whether a GPU uses faster programs for the hourglass, which need Triton and the precision `bf16`.
    # `auto`: they are used if the GPU and the network allow it. `plain`: they are never used.
    kernels: Literal["auto", "plain"] = "auto"
    # Images are kept in GPU memory if they take at most this fraction of the free GPU memory. The same limit
    # applies to descriptors and to features.
    device_fraction: float = fraction(0.4)
    checkpoint_every: int = between(1, 1_000_000_000, 1_000)  # Number of iterations between two checkpoints.
    log_every: int = between(1, 1_000_000_000, 50)  # Number of iterations between two entries in the log.
    # Maximum size of the images in main memory, in gigabytes. Larger sets of images are kept in a file. The
    # same limit applies to features.
    store_gigabytes: float = between(0, 100_000, 16.0)


@dataclass(frozen=True)
class Guards:
    """Limits beyond which a training has collapsed, or new images are unfamiliar, in every run."""

    # Minimum number of keypoints per image that Stage 1 must find on average.
    min_points: float = between(0, 1_000_000, 0.5)
    # Minimum spread of the descriptors, which is their mean squared distance from their mean. The spread is 0
    # if all descriptors are equal, and usually 0.3 to 1.
    min_descriptor_spread: float = between(0, 1_000_000, 0.01)
    # Minimum spread of the keypoints or landmarks of an image, which is their mean distance from their
    # center. The spread is a fraction of the side of the image.
    min_point_spread: float = between(0, 1_000_000, 0.01)
    max_empty_fraction: float = between(0, 1_000_000, 0.5)  # Maximum fraction of clusters without keypoints.
    # The training has collapsed if all landmarks in the checked images have scores below this value.
    min_score: float = between(0, 1_000_000, 1e-3)
    # Number of training images in which the landmarks of a detector are checked before it is saved.
    num_samples: int = between(1, 100_000, 64)
    # Number of training images from which the usual appearance of the images is computed.
    familiar_images: int = between(2, 10_000, 128)
    # Maximum number of new images that are compared with the usual appearance of the training images.
    compared_images: int = between(1, 10_000, 24)
    # New images are unfamiliar if their features are too far from the mean of the training images. The limit
    # is this value times the usual squared distance, which 95 % of the training images do not exceed. The
    # limit is compared with the median over the new images.
    max_unfamiliarity: float = above(0, 1_000_000, 1.0)


@dataclass(frozen=True)
class Config:
    """All settings of one run; change them with `dataclasses.replace` or `override`."""

    # Name of the preset from which these settings started. Choose another one with `--preset`.
    preset: str = "paper"
    # How landmarks are discovered. `self-training` trains a detector. `zero-shot` uses features without
    # training. The others are methods of other papers (see docs/methods.md).
    method: Method = "self-training"
    # Number from which the random draws of a run start. The evaluation has its own seed, `evaluation.seed`.
    seed: int = between(0, 2**63 - 1, 0)
    # Number of landmarks. If K is 0, the run chooses the number (see `auto_k`). The method `mallis2020` finds
    # at most K landmarks, or any number if K is 0.
    K: int = between(0, 10_000, 30, _LIMIT_OF_K)
    # Number of clusters into which Stage 1 groups the keypoints. M must be at least K, and is usually several
    # times as large.
    M: int = between(0, 1_000_000, 100)
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
        """Whether the number of landmarks is found by merging clusters; K is then the maximum number."""
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
        max_per_landmark = settings.max_candidates // self.K if self.K else 1
        return self.K * max(1, min(settings.candidates, max_per_landmark))

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
    """Raise if an image or a training batch would take more memory than the limits in the module `memory`."""
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
