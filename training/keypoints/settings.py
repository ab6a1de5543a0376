"""Every number of the training, once."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Data:
    side: int = 256  # of all images that are drawn or cut, pixels
    most_points: int = 192  # of one image; a fuller one loses the rest
    shapes: int = 10_000  # images of single shapes whose points are known
    scenes: int = 5_000  # images of many overlapping shapes
    animals: int = 1_000  # images of the demo's toy animal
    photographs: int = 4_000  # crops of photographs
    held_out: int = 48  # pairs of views on which every phase is scored
    photograph_side: tuple[int, int] = (96, 420)  # of a crop before it is resized, pixels


@dataclass(frozen=True)
class Views:
    """How an image is deformed into what the network sees."""

    side: int = 192  # of a view, pixels
    zoom: tuple[float, float] = (0.55, 1.35)  # image pixels per view pixel
    stretch: float = 0.25  # largest difference of the axes' zoom, as a share
    rotation: float = 30.0  # degrees, both ways
    shear: float = 0.2  # both ways
    perspective: float = 0.25  # most that one edge is nearer than the opposite one, as a share
    shift: float = 0.1  # of the view's center from the image's, as a share of the image's side
    roam: float = 0.2  # the same, for all views of one image alike


@dataclass(frozen=True)
class Light:
    """How a view's pixels are changed; shares are those of the views changed."""

    contrast: tuple[float, float] = (0.4, 1.3)  # factor on what differs from the mean
    brightness: float = 0.15  # added, both ways
    gamma: tuple[float, float] = (0.6, 1.7)
    field: float = 0.25  # strongest smooth change of the lighting across the view
    field_share: float = 0.5
    blur: tuple[float, float] = (0.3, 3.0)  # sigma, pixels
    blur_share: float = 0.6
    streak: float = 7.0  # longest motion blur, pixels
    streak_share: float = 0.15
    coarse: tuple[float, float] = (0.3, 0.9)  # resolution lost, as a share of the side
    coarse_share: float = 0.3
    block_step: float = 0.12  # coarsest step of block compression, of a 0..1 image
    block_share: float = 0.3
    noise: float = 0.06  # largest sigma, of a 0..1 image
    noise_share: float = 0.7


@dataclass(frozen=True)
class Adapt:
    """Homographic adaptation: points that a detector finds again and again become labels."""

    views: int = 20  # deformations of each image
    batch: int = 128  # images at a time
    smooth: float = 1.0  # sigma of the blur of the mean map, pixels
    radius: int = 4  # of the non-maximum suppression, pixels
    threshold: float = 0.015  # least mean confidence of a label, after the blur
    border: int = 4  # pixels at the image's edge without labels


@dataclass(frozen=True)
class Training:
    batch: int = 64  # images (shapes) or pairs of views (joint) per iteration
    lr: float = 2e-3  # AdamW, at its highest
    warm: float = 0.05  # share of the iterations in which the rate rises
    weight_decay: float = 1e-4
    clip_norm: float = 5.0
    shapes_iterations: int = 4_000  # detector alone, shapes alone
    joint_iterations: tuple[int, ...] = (2_000, 4_500)  # after the first adaptation, after the second
    joint_lr: tuple[float, ...] = (1e-3, 1e-3)
    joint_shapes: float = 0.2  # share of shapes, whose points are exact, among the pairs
    inverted: float = 0.3  # share of pairs shown as their negative
    described: int = 96  # places per pair at which descriptors are compared
    described_points: float = 0.7  # share of labeled points among them, where there are enough
    temperature: float = 0.07  # of the descriptor loss
    apart: float = 10.0  # pixels; nearer places are neither alike nor different
    descriptor_weight: float = 0.25  # beside the detector loss
    log_every: int = 100  # iterations


@dataclass(frozen=True)
class Settings:
    seed: int = 0
    data: Data = field(default_factory=Data)
    # Shapes come alone, so turning them fully is free; objects in photographs stand upright.
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
            blur_share=0.5,
            streak_share=0.0,
            coarse_share=0.0,
            block_share=0.0,
            noise=0.02,
        )
    )
    adapt: Adapt = field(default_factory=Adapt)
    training: Training = field(default_factory=Training)


FULL = Settings()  # for one H200

# Two CPU cores, a few minutes: shows that everything runs, not what it can do.
TINY = Settings(
    data=Data(side=128, shapes=64, scenes=12, animals=4, photographs=16, held_out=4),
    shape_views=Views(side=64, rotation=180.0, shift=0.3),
    views=Views(side=64),
    adapt_views=Views(side=128, zoom=(0.6, 1.3)),
    adapt=Adapt(views=3, batch=8),
    training=Training(batch=6, shapes_iterations=60, joint_iterations=(10, 20), described=32, log_every=10),
)
