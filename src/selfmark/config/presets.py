"""The presets `paper`, `fast` and `tiny`, and how to choose between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from selfmark.config.feature_settings import Features, Student
from selfmark.config.method_settings import AutoLinkSettings, EquivarianceSettings, Jakab2018Settings, Methods
from selfmark.config.schedule_settings import Schedule
from selfmark.config.schema import (
    Augment,
    Config,
    Correspondence,
    FirstKeypoints,
    Heatmaps,
    Images,
    Loss,
    Network,
    Optimizer,
    Rounds,
    Runtime,
    Stage2,
    Warmup,
)
from selfmark.errors import InputError, suggest
from selfmark.wording import choose_form, describe_count

DEFAULT_FEATURES = "efficientnet-lite0"
_FEATURE_IMAGE_SIZE = 256  # pixels; smaller images have too few cells

PRESETS: dict[str, Config] = {
    # The defaults of `Config` are the values that the paper's text gives. The values below are those of the
    # authors' program, because the text leaves them open. docs/fidelity.md compares all settings.
    "paper": Config(
        images=Images(aspect="stretched"),
        keypoints=FirstKeypoints(max_points=1_000),
        heatmaps=Heatmaps(nms_radius=3, max_points=256),
        loss=Loss(descriptors="raw", detector_weight=0.2),
        correspondence=Correspondence(extra_points="removed"),
        stage2=Stage2(head="descriptor", outside="absent", cutout_color="black", refine="cell"),
        augment=Augment(noise_fraction=0.5, blur_sigma=(0.01, 0.5), saturation=(0.5, 1.5)),
    ),
    "fast": Config(
        preset="fast",
        keypoints=FirstKeypoints(detector="selfmark"),
        heatmaps=Heatmaps(refine="parabola"),
        loss=Loss(average="apart", negative_weight=10.0),
        correspondence=Correspondence(restarts=4),
        optimizer=Optimizer(clip_norm=1.0),
        schedule=Schedule(growth=0.2),
        warmup=Warmup(iterations=1_500),
        rounds=Rounds(count=4, iterations=1_200, lr_drops=(0.81,)),
        stage2=Stage2(iterations=1_800, batch=32, lr_drops=(0.75,), sigma=2.0, refine="centroid"),
        runtime=Runtime(checkpoint_every=500),
        methods=Methods(iterations=4_000),
    ),
    "tiny": Config(
        preset="tiny",
        K=10,
        M=30,
        images=Images(size=128),
        keypoints=FirstKeypoints(detector="selfmark", image_size=128, nms_radius=4, outlier_sample=20_000),
        features=Features(
            max_images=1_000, sample=40_000, restarts=1, keypoint_nms_radius=2, keypoint_landmarks=False
        ),
        student=Student(iterations=300, batch=16, encoder_lr=0.0, width=128, depth=2),
        network=Network(channels=64, descriptor=64, norm_groups=8),
        heatmaps=Heatmaps(sigma=1.0, threshold=0.1, refine="parabola"),
        loss=Loss(average="apart", negative_weight=10.0, negative_distance=4.0),
        correspondence=Correspondence(restarts=4, iterations=50),
        optimizer=Optimizer(lr=5e-4, clip_norm=1.0),
        warmup=Warmup(iterations=500),
        rounds=Rounds(count=4, iterations=150, lr_drops=(0.85,)),
        stage2=Stage2(iterations=350, lr_drops=(0.75,), backbone_lr=0.5, sigma=1.5, refine="centroid"),
        runtime=Runtime(batch=8, checkpoint_every=100, log_every=10),
        methods=Methods(iterations=1_000, batch=16),
        autolink=AutoLinkSettings(size=64, perceptual_size=128),
        # With Adam, maps change by about the learning rate times the width of the network, so a narrow
        # network can have a higher learning rate.
        equivariance=EquivarianceSettings(lr=1e-3),
        jakab2018=Jakab2018Settings(lr=2e-3),
    ),
}


def preset(name: str) -> Config:
    """Return the settings of the preset `paper`, `fast` or `tiny`."""
    if name not in PRESETS:
        suggestion = suggest(name, PRESETS)
        raise InputError(
            f"unknown preset '{name}'"
            + (f".{suggestion}" if suggestion else f"; choose one of {', '.join(PRESETS)}")
        )
    return PRESETS[name]


def resolve_preset(
    preset_name: str, cuda: bool, images: int, K: int | Literal["auto"] | None, features: str | None = None
) -> tuple[Config, str]:
    """Choose the settings for a machine and a number of images.

    Args:
        preset_name: name of a preset, or `auto` for one that finishes within minutes on this machine.
        cuda: whether the run uses a CUDA device.
        images: number of images.
        K: number of landmarks; "auto" lets the run choose it, None uses the preset's number.
        features: name of pretrained features, or "none"; None uses `DEFAULT_FEATURES` for the preset `auto`,
            and no features for other presets.

    Returns:
        The settings, and a phrase that explains the choice of the preset.
    """
    if preset_name == "auto":
        features = features or DEFAULT_FEATURES
        config = preset("fast" if cuda else "tiny")
        reason = (
            "a CUDA device is used, and this preset takes minutes on it"
            if cuda
            else "no CUDA device is used, and this preset takes minutes on a few CPU cores"
        )
    else:
        config, reason = preset(preset_name), "as requested"
    if features is not None and features != "none":
        config = with_features(config, features)
        reason += f"; with {features} features"
    if isinstance(K, int):
        config = with_landmarks(config, K)
    # An image has about K keypoints, and a cluster needs about ten keypoints. If there are only a few images,
    # the number of clusters is therefore limited.
    max_clusters = max(config.K, images * config.K // 10)
    if preset_name == "auto" and max_clusters < config.M:
        config = replace(config, M=max_clusters)
        reason += f"; using {max_clusters} clusters because {describe_count(images, 'image')} "
        reason += f"{choose_form(images, 'has', 'have')} few keypoints"
    return (replace(config, K=0) if K == "auto" else config), reason


def with_features(config: Config, name: str) -> Config:
    """Return the same settings with pretrained features and images that are large enough for them.

    Args:
        config: settings without features.
        name: name of the features.
    """
    images = replace(config.images, size=max(config.images.size, _FEATURE_IMAGE_SIZE))
    return replace(config, features=replace(config.features, name=name), images=images)


def with_landmarks(config: Config, K: int) -> Config:
    """Return the same settings with K landmarks and at least K clusters."""
    return replace(config, K=K, M=max(config.M, K))
