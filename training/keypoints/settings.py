"""Define the settings of the keypoint training."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Data:
    """Numbers and sizes of the training images."""

    side: int = 256  # side of all generated images and crops, pixels
    max_points: int = 192  # maximum number of points per image; further points are dropped
    shapes: int = 10_000  # images of separate shapes with known points
    scenes: int = 5_000  # images of many overlapping shapes
    animals: int = 1_000  # images of the demo's toy animal
    photographs: int = 4_000  # crops of photographs
    held_out: int = 48  # images that training does not use, on which every phase is evaluated
    photograph_side: tuple[int, int] = (96, 420)  # side of a crop before resizing, pixels


@dataclass(frozen=True)
class Views:
    """Ranges of the random homographies that turn an image into a network input."""

    side: int = 192  # side of a view, pixels
    zoom: tuple[float, float] = (0.55, 1.35)  # image pixels per view pixel
    stretch: float = 0.25  # maximum relative difference between the zoom of the two axes
    rotation: float = 30.0  # maximum angle in degrees, in both directions
    shear: float = 0.2  # maximum shear, in both directions
    perspective: float = 0.25  # maximum relative difference of scale between opposite edges
    shift: float = 0.1  # maximum shift of the view's center, relative to the image's side
    roam: float = 0.2  # maximum of an additional shift that both views of a pair share, relative to the side


@dataclass(frozen=True)
class Light:
    """Ranges of random pixel changes. `X_fraction` is the fraction of views that get the change `X`."""

    contrast: tuple[float, float] = (0.4, 1.3)  # factor on the difference from the mean
    brightness: float = 0.15  # maximum offset, in both directions
    gamma: tuple[float, float] = (0.6, 1.7)  # exponent of the gray values
    field: float = 0.25  # maximum strength of the smooth lighting change across the view
    field_fraction: float = 0.5
    blur: tuple[float, float] = (0.3, 3.0)  # sigma, pixels
    blur_fraction: float = 0.6
    streak: float = 7.0  # maximum length of the motion blur, pixels
    streak_fraction: float = 0.15
    coarse: tuple[float, float] = (0.3, 0.9)  # reduced resolution, relative to the view's side
    coarse_fraction: float = 0.3
    block_step: float = 0.12  # maximum rounding step of the block compression, for an image in 0..1
    block_fraction: float = 0.3
    noise: float = 0.06  # maximum sigma of the noise, for an image in 0..1
    noise_fraction: float = 0.7


@dataclass(frozen=True)
class Adapt:
    """Settings of homographic adaptation, which labels images with the points found in many views."""

    views: int = 20  # deformed views per image
    batch: int = 128  # images per batch
    smooth: float = 1.0  # sigma of the blur applied to the mean confidence map, pixels
    radius: int = 4  # radius of the non-maximum suppression, pixels
    threshold: float = 0.015  # minimum mean confidence of a label, after the blur
    border: int = 4  # width of the image border without labels, pixels


@dataclass(frozen=True)
class Training:
    """Schedule, optimizer and losses."""

    batch: int = 64  # images (shapes) or pairs of views (joint) per iteration
    lr: float = 2e-3  # maximum learning rate of AdamW
    warmup: float = 0.05  # fraction of the iterations during which the learning rate increases
    weight_decay: float = 1e-4
    clip_norm: float = 5.0
    shapes_iterations: int = 4_000  # iterations of the first phase: only the detector, only on shapes
    joint_iterations: tuple[int, ...] = (2_000, 4_500)  # iterations after the first and the second adaptation
    joint_lr: tuple[float, ...] = (1e-3, 1e-3)  # maximum learning rates of these phases
    joint_shapes: float = 0.2  # fraction of pairs that show shapes; the points of shapes are exact
    inverted: float = 0.3  # fraction of pairs shown as photographic negatives
    described: int = 96  # positions per pair at which descriptors are compared
    described_points: float = 0.7  # fraction of these positions that are labeled points; others are random
    temperature: float = 0.07  # temperature of the descriptor loss
    apart: float = 10.0  # minimum distance between positions whose descriptors must differ, pixels
    descriptor_weight: float = 0.25  # weight of the descriptor loss relative to the detector loss
    log_every: int = 100  # iterations


@dataclass(frozen=True)
class Settings:
    """All settings of the training."""

    seed: int = 0
    data: Data = field(default_factory=Data)
    # Shapes have no upright direction, so their views may have any rotation. Photographs are upright.
    shape_views: Views = field(default_factory=lambda: Views(rotation=180.0, shift=0.3))
    views: Views = field(default_factory=Views)
    adapt_views: Views = field(
        default_factory=lambda: Views(
            side=256, zoom=(0.6, 1.3), rotation=45.0, stretch=0.3, shear=0.2, perspective=0.3
        )
    )
    light: Light = field(default_factory=Light)
    adapt_light: Light = field(
        default_factory=lambda: Light(
            contrast=(0.6, 1.4),
            brightness=0.1,
            gamma=(0.7, 1.4),
            blur=(0.3, 1.5),
            blur_fraction=0.5,
            streak_fraction=0.0,
            coarse_fraction=0.0,
            block_fraction=0.0,
            noise=0.02,
        )
    )
    adapt: Adapt = field(default_factory=Adapt)
    training: Training = field(default_factory=Training)


FULL = Settings()  # for one H200

# A trial run of a few minutes on two CPU cores. It only shows that the code runs; its weights are useless.
TINY = Settings(
    data=Data(side=128, shapes=64, scenes=12, animals=4, photographs=16, held_out=4),
    shape_views=Views(side=64, rotation=180.0, shift=0.3),
    views=Views(side=64),
    adapt_views=Views(side=128, zoom=(0.6, 1.3)),
    adapt=Adapt(views=3, batch=8),
    training=Training(batch=6, shapes_iterations=60, joint_iterations=(10, 20), described=32, log_every=10),
)
