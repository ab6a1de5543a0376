"""Every number of the method, once, named as in the paper.

Three presets: `paper` (the paper's own numbers; where it is silent, the authors' published program),
`fast` (one modern GPU, minutes) and `tiny` (two CPU cores, minutes). A config is written to every run
folder as YAML and read back from there on resume.

>>> preset("tiny").images.size
128
>>> override(preset("paper"), {"K": 20, "stage2.iterations": 1000}).stage2.iterations
1000
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from selfmark.bounds import check, require
from selfmark.errors import InputError
from selfmark.files import whole
from selfmark.typed import build, from_yaml

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
    points_file: str = ""  # for detector "file": points from elsewhere (synthetic initialisations)
    image_size: int = 256  # images are resized to this side before detection
    threshold: float = 0.015  # learned detectors: least confidence
    nms_radius: int = 8  # learned detectors: non-maximum suppression, pixels of image_size
    max_points: int = 40  # most points per image
    random_share: float = 0.0  # share of points replaced by uniform random ones (Robustness to noise)
    outlier_neighbours: int = 100  # outlier score = median distance to this many nearest descriptors
    outlier_share: float = 0.4  # worst share dropped
    outlier_sample: int = 100_000  # neighbours are sought among at most this many descriptors


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
    least_points: int = 2  # images with fewer points are left out of the round


@dataclass(frozen=True)
class AutoK:
    candidates: tuple[int, ...] = (4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 50)  # tried where K is 0
    splits: int = 5  # times the images are split into halves that are clustered on their own
    blocks: int = 20  # stretches of neighbouring images (frames of a video, say) that stay in one half
    images: int = 400  # images looked at, at most, evenly spaced
    clear: float = 0.1  # a point is clear from this share of the way from a cluster's border to its centroid
    dissolved: float = 0.5  # a landmark on which halves agree no more than this counts as none
    weak: float = 0.3  # a best score below this says little: descriptors in front of clutter reach as much


@dataclass(frozen=True)
class Optimiser:
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
    same_image_share: float = 0.5  # pairs made of one image twice
    keep: bool = False  # keep the weights of every round: checkpoints/round-01.safetensors and so on


@dataclass(frozen=True)
class Stage2:
    iterations: int = 200_000  # of heatmap regression
    batch: int = 16  # images per iteration
    lr_drops: tuple[float, ...] = (0.25, 0.35)  # x0.1 at these shares (50k, 70k)
    backbone_lr: float = 0.1  # backbone learns at this share of lr
    sigma: float = 0.75  # Gaussian width, cells
    refine: Reading = "quarter"  # of the highest cell; mean of heat
    cutout: int = 80  # side of the square cut out, pixels at 256; scaled with the image
    cutout_share: float = 0.5  # images that get one


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
    share: float = 0.5  # of the pairs of different images, how many are nearby frames
    reach: int = 5  # most frames apart, counted in the frames used
    neighbours: int = 2  # nearby frames drawn per frame and round
    window: int = 15  # Lucas-Kanade window, pixels
    levels: int = 3  # pyramid levels
    check: float = 1.0  # most pixels between a point and itself carried there and back


@dataclass(frozen=True)
class Augment:
    rotation: float = 40.0  # degrees, both ways
    scale: tuple[float, float] = (0.8, 1.2)  # per axis
    shift: float = 0.05  # share of the side
    contrast: tuple[float, float] = (0.85, 1.3)  # factor on what differs from the mean
    brightness: tuple[float, float] = (0.9, 1.1)  # factor on the mean
    negative_share: float = 0.0  # images with light and dark exchanged
    noise: float = 0.05  # largest sigma, of a 0..1 image
    blur_share: float = 0.3  # images blurred
    blur_sigma: tuple[float, float] = (0.3, 1.2)  # pixels
    colour_share: float = 0.3  # images with changed hue and saturation
    hue: float = 20.0  # degrees, both ways
    saturation: tuple[float, float] = (0.7, 1.3)  # factor on what differs from grey


@dataclass(frozen=True)
class Runtime:
    batch: int = 16  # pairs per iteration (twice as many images)
    predict_batch: int = 128  # images per forward pass outside training; fewer where memory is short
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 on CUDA, fp32 elsewhere
    kernels: Literal["auto", "plain"] = "auto"  # auto: fused ones for bf16 on CUDA where Triton is installed
    device_share: float = 0.4  # images, and descriptors, are held on the GPU up to this share of what is free
    checkpoint_every: int = 1_000  # iterations
    log_every: int = 50  # iterations
    store_gigabytes: float = 16.0  # images are held in memory up to this size, beyond it memory-mapped


@dataclass(frozen=True)
class Guards:
    least_found: float = 0.5  # points per image Phi must still find, on average
    least_spread: float = 0.01  # mean square distance of descriptors from their mean; sound ones: 0.3 to 1
    least_reach: float = 0.01  # mean distance of points from their image's middle point, of its side
    most_empty: float = 0.5  # share of clusters that may be given to no point
    least_score: float = 1e-3  # of the surest landmark in any of the images looked at
    look_at: int = 64  # images the finished detector is tried on before it is saved


@dataclass(frozen=True)
class Evaluation:
    seed: int = 0  # of the draws below
    least_visibility: int = 1  # annotated points of less are left out; 2 leaves out those COCO calls hidden
    ridges: tuple[float, ...] = (0.1, 0.01, 0.001, 0.0)  # lambda over the largest entry of X'X
    ridge: float = 0.01  # of the headline figures; authors: 0.1 on LS3D, 0.001 forward on CelebA
    fit_images: tuple[int, ...] = (1, 5, 10, 100, 300, 800)  # annotated images fitted on; all of them besides
    draws: int = 10  # random draws of so many images
    worst_error: float = 20.0  # percent; how far the curve of the share of points within an error reaches
    hit_pixels: float = 6.0  # a raw landmark hits its annotated point within this, of hit_side
    hit_side: int = 128  # image side hit_pixels counts at
    hit_share: float = 0.2  # a hit for faces: within this share of the inter-ocular distance
    pck_share: float = 0.3  # a hit for bodies (PCK): within this share of the torso
    oks_thresholds: tuple[float, ...] = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)  # of AP, AR
    oks_single: tuple[float, ...] = (0.5, 0.4)  # thresholds reported on their own
    oks_sigma: float = 0.05  # spread of points whose COCO value is not known
    precision_share: float = 0.1  # a generic keypoint is right within this share of the inter-ocular distance
    completion_iterations: int = 500  # singular value thresholding, at most
    look_at: int = 200  # images the checks without labels look at, at most
    deformations: int = 2  # known deformations of each of them
    flip: Literal["as-trained", "never"] = "as-trained"  # at test time
    near: float = 0.05  # a landmark agrees with itself within this share of the image's side


@dataclass(frozen=True)
class Tracking:
    samples: int = 60  # frames from all over a video whose median is its background
    side: int = 480  # longer side at which frames are looked at for animals, at most
    contrast: float = 12.0  # grey levels an animal differs from the background, at least
    opening: float = 0.07  # parts thinner than twice this share of an animal's length are taken away
    least_area: float = 0.25  # blobs of less than this share of an animal's area are no animal
    reach: float = 2.0  # animal lengths one can move from frame to frame
    gap: float = 0.5  # seconds an animal may be lost and its place still be filled in
    smooth: float = 0.08  # seconds, width of the bell that smooths an animal's way
    size_share: float = 0.95  # share of frames in which the square holds all of an animal
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
    optimiser: Optimiser = field(default_factory=Optimiser)
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
        check(self)

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


def preset(name: str) -> Config:
    """The settings called `paper`, `fast` or `tiny`."""
    if name not in PRESETS:
        raise InputError(f"there is no preset '{name}'; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


def choose(preset_name: str, cuda: bool, images: int, K: int | Literal["auto"] | None) -> tuple[Config, str]:
    """Turn a preset's name, `auto` among them, into settings for this machine and data, and say why."""
    if preset_name == "auto":
        config = preset("fast" if cuda else "tiny")
        why = (
            "a CUDA device is here, and this preset takes minutes on it"
            if cuda
            else "no CUDA device is here, and this preset takes minutes on a few CPU cores"
        )
    else:
        config, why = preset(preset_name), "you asked for it"
    if isinstance(K, int):
        config = with_landmarks(config, K)
    # A cluster needs company: with few images M is lowered so that about ten points share each label.
    affordable = max(config.K, images * config.K // 10)
    if preset_name == "auto" and affordable < config.M:
        config = replace(config, M=affordable)
        why += f"; M lowered to {affordable} because {images} images hold few points"
    return (replace(config, K=0) if K == "auto" else config), why


def with_landmarks(config: Config, K: int) -> Config:
    """The same with K landmarks, and at least as many clusters."""
    return replace(config, K=K, M=max(config.M, K))


# --- YAML ------------------------------------------------------------------------------------------


def to_dict(config: Config) -> dict[str, Any]:
    """Plain dictionaries and lists, ready for YAML or JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, tuple) else value

    result: dict[str, Any] = plain(dataclasses.asdict(config))
    return result


def from_dict(values: Mapping[str, Any], where: str = "config") -> Config:
    """Build a config from dictionaries; missing entries take the `paper` preset's value."""
    result: Config = build(Config, values, where)
    return result


Section = TypeVar("Section")


def section_from_dict(kind: type[Section], values: Mapping[str, Any], where: str) -> Section:
    """Build one section of a config, e.g. `Images`, from a dictionary."""
    result: Section = build(kind, values, where)
    return result


def write_yaml(config: Config, path: Path) -> None:
    with whole(path) as temporary:
        temporary.write_text(yaml.safe_dump(to_dict(config), sort_keys=False), encoding="utf-8")


def read_yaml(path: Path) -> Config:
    try:
        values = from_yaml(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file in UTF-8") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} must hold settings as 'name: value' lines")
    return from_dict(values, str(path))


def override(config: Config, changes: Mapping[str, Any]) -> Config:
    """Change settings by dotted name, e.g. {"K": 20, "flip.test": False}; text values are read as YAML."""
    values = to_dict(config)
    for name, value in changes.items():
        *path, last = name.split(".")
        section = values
        for part in path:
            section = section.get(part, {}) if isinstance(section, dict) else {}
        if not isinstance(section, dict) or last not in section:
            raise InputError(f"there is no setting '{name}'; docs/settings.md lists them")
        section[last] = (
            from_yaml(value, f"the value of {name}") if isinstance(value, str) and value else value
        )
    return from_dict(values, "settings")


PRESETS: dict[str, Config] = {
    "paper": Config(),
    "fast": Config(
        preset="fast",
        keypoints=FirstKeypoints(detector="selfmark"),
        heatmaps=Heatmaps(refine="parabola"),
        loss=Loss(average="apart", negative_weight=10.0),
        correspondence=Correspondence(restarts=4),
        optimiser=Optimiser(clip_norm=1.0),
        warmup=Warmup(iterations=1_500),
        rounds=Rounds(count=4, iterations=1_200, lr_drops=(0.81,)),
        stage2=Stage2(iterations=1_800, batch=32, lr_drops=(0.75,), sigma=2.0, refine="centroid"),
        runtime=Runtime(checkpoint_every=500),
    ),
    "tiny": Config(
        preset="tiny",
        K=10,
        M=30,
        images=Images(size=128),
        keypoints=FirstKeypoints(detector="selfmark", image_size=128, nms_radius=4, outlier_sample=20_000),
        network=Network(channels=64, descriptor=64, norm_groups=8),
        heatmaps=Heatmaps(sigma=1.0, threshold=0.1, refine="parabola"),
        loss=Loss(average="apart", negative_weight=10.0, negative_distance=4.0),
        correspondence=Correspondence(restarts=4, iterations=50),
        optimiser=Optimiser(lr=5e-4, clip_norm=1.0),
        warmup=Warmup(iterations=500),
        rounds=Rounds(count=4, iterations=150, lr_drops=(0.85,)),
        stage2=Stage2(iterations=350, lr_drops=(0.75,), backbone_lr=0.5, sigma=1.5, refine="centroid"),
        runtime=Runtime(batch=8, checkpoint_every=100, log_every=10),
    ),
}
