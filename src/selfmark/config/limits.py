"""What numbers settings may be: those that cannot work are refused before anything is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from selfmark.errors import InputError

if TYPE_CHECKING:
    from selfmark.config.schema import Config

_MOST_CLUSTERS = 1_000_000
# No number of the method means anything below 0, but for these: a crop may be tighter than its box, and a
# threshold below all scores takes every point.
_ANY_SIGN = ("images.margin", "keypoints.threshold", "heatmaps.threshold")
_LEAST = {  # of those that must be more than 0
    "keypoints.image_size": 8,
    "keypoints.max_points": 2,
    "heatmaps.max_points": 1,
    "correspondence.restarts": 1,
    "correspondence.sample": 1,
    "auto_k.splits": 2,
    "auto_k.blocks": 2,
    "rounds.count": 1,
    "stage2.iterations": 1,
    "stage2.batch": 1,
    "temporal.max_frame_gap": 1,
    "temporal.neighbors": 1,
    "temporal.window": 3,
    "runtime.batch": 1,
    "runtime.predict_batch": 1,
    "runtime.checkpoint_every": 1,
    "runtime.log_every": 1,
    "guards.num_samples": 1,
    "evaluation.deformations": 1,
}
_SHARES = (
    "keypoints.random_fraction",
    "keypoints.outlier_fraction",
    "rounds.same_image_fraction",
    "stage2.cutout_fraction",
    "temporal.fraction",
    "augment.negative_fraction",
    "augment.color_fraction",
    "runtime.device_fraction",
)


def check_limits(config: Config) -> None:
    """Refuse settings that cannot work."""
    require(config.K >= 0, f"K must be at least 1, or 0 for a number chosen from the images, not {config.K}")
    require(config.M <= _MOST_CLUSTERS, f"M must be at most {_MOST_CLUSTERS}, not {config.M}")
    require(config.M >= config.K, f"M must be at least K ({config.K}), not {config.M}")
    for name, number in _numbers(config):
        if name in _SHARES:
            require(0 <= number <= 1, f"{name} must lie between 0 and 1, not {number:g}")
        elif name not in _ANY_SIGN:
            least = _LEAST.get(name, 0)
            require(number >= least, f"{name} must be at least {least}, not {number:g}")
    require(
        config.flip.train or not config.flip.test,
        "flip.test needs flip.train, which finds the mirror partners; set both to false",
    )
    require(
        len(config.auto_k.candidates) > 0 and min(config.auto_k.candidates) >= 2,
        "auto_k.candidates must be numbers of at least 2",
    )
    require(
        config.auto_k.max_images >= config.images.minimum, "auto_k.max_images must be at least images.minimum"
    )
    require(
        config.warmup.bootstrap == "detector-descriptors" or config.warmup.iterations >= 1,
        "warmup.iterations must be at least 1 unless warmup.bootstrap is detector-descriptors",
    )


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise InputError(f"config: {sentence}")


def _numbers(section: Any, within: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a section and of those in it, by dotted name; of lists each."""
    for field in dataclasses.fields(section):
        name, value = f"{within}{field.name}", getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            yield from _numbers(value, f"{name}.")
        else:
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, int | float) and not isinstance(number, bool):
                    yield name, number
