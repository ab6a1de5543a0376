"""Describe a comparison: the images, the labels, the methods, and the training time of each method."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from selfmark.config import Method
from selfmark.errors import InputError, suggest
from selfmark.run.devices import select_device

DEFAULT_METHODS: tuple[Method, ...] = get_args(Method)
RowName = Method | Literal["untrained"]
"""Name of a row of a comparison: a method, or "untrained" for a network with random weights."""
DEFAULT_BUDGETS = {"cpu": 30.0, "cuda": 240.0}  # training time of each method, in seconds
# Settings of the row "untrained": one iteration with learning rate 0 keeps the initial weights. The guards,
# which would reject an untrained detector, are switched off.
UNTRAINED_SETTINGS: dict[str, Any] = {
    "methods.iterations": 1,
    "equivariance.lr": 0.0,
    "guards.min_point_spread": 0.0,
    "guards.min_score": 0.0,
}
_MAX_BUDGET = 1000 * 3600.0  # seconds
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}  # in seconds

# Settings on a CPU with the preset `auto`. They are those of the demo, so that a comparison of all methods
# takes only minutes.
_CPU_SETTINGS: dict[str, Any] = {"features.max_images": 300, "evaluation.num_samples": 80}
_CPU_FEATURE_SIZE = 192  # pixels; side of the images for methods that use features


@dataclass(frozen=True)
class Comparison:
    """Inputs and settings of a comparison.

    Attributes:
        images: Images to train on, as for `discover`.
        labels: Label file with which errors are measured.
        landmarks: Number of landmarks K of every method.
        budget: Training time of every method, in seconds.
        methods: Names of the methods.
        label_images: Images of the labels; empty if they are among `images`.
        train_labels: Labels on which regressors are fitted; None to fit on a random half of `labels`.
        normalizer: Length that errors are divided by; empty for the default of the labels.
        preset: Preset that decides the size of the network.
        seed: Seed of all methods.
        settings: Mapping from dotted names to values of settings, for all methods.
    """

    images: tuple[str, ...]
    labels: Path
    landmarks: int
    budget: float
    methods: tuple[Method, ...] = DEFAULT_METHODS
    label_images: tuple[str, ...] = ()
    train_labels: Path | None = None
    normalizer: str = ""
    preset: str = "auto"
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def evaluated_images(self) -> list[str]:
        """Return the images that the labels belong to."""
        return list(self.label_images or self.images)


@dataclass(frozen=True)
class MethodJob:
    """Work for one row of a comparison, on one device.

    Attributes:
        comparison: The comparison.
        name: Name of the row.
        folder: Folder of the row's run and result.
        device: Device to compute on.
    """

    comparison: Comparison
    name: RowName
    folder: Path
    device: str

    @property
    def method(self) -> Method:
        """Return the method of the run."""
        return "equivariance" if self.name == "untrained" else self.name

    @property
    def settings(self) -> dict[str, Any]:
        """Return a mapping from dotted names to values of the run's settings, without numbers of iterations.

        The user's settings replace the reduced settings for a CPU.
        """
        comparison, reduced = self.comparison, {}
        if comparison.preset == "auto" and select_device(self.device).type == "cpu":
            reduced = dict(_CPU_SETTINGS)
            if self.uses_features:
                reduced["images.size"] = _CPU_FEATURE_SIZE
        return {**reduced, **comparison.settings, "seed": comparison.seed}

    @property
    def run_folder(self) -> Path:
        """Return the run folder of the method."""
        return self.folder / "run"

    @property
    def schedule_file(self) -> Path:
        """Return the file with the numbers of iterations; it exists once the method has started."""
        return self.folder / "schedule.json"

    @property
    def result_file(self) -> Path:
        """Return the file with the row of the method; it exists once the method is done."""
        return self.folder / "result.json"

    @property
    def uses_features(self) -> bool:
        """Return True for selfmark's own methods, which use pretrained features."""
        return self.method in ("self-training", "zero-shot")


def parse_methods(text: str) -> tuple[Method, ...]:
    """Parse a list of methods such as "self-training,autolink"; an empty text means all methods.

    >>> parse_methods("zero-shot, autolink")
    ('zero-shot', 'autolink')

    Raises:
        InputError: if a method is unknown or listed twice, or if the text is not empty but names no method.
    """
    known: dict[str, Method] = {name: name for name in get_args(Method)}
    names = [name.strip() for name in text.split(",") if name.strip()]
    if text and not names:
        raise InputError(f"'{text}' names no method; choose from {', '.join(known)}")
    for name in names:
        if name not in known:
            hint = suggest(name, known) or f" Choose from {', '.join(known)}."
            raise InputError(f"unknown method '{name}'.{hint}")
        if names.count(name) > 1:
            raise InputError(f"the method '{name}' is listed twice")
    return tuple(known[name] for name in names) or DEFAULT_METHODS


def parse_budget(text: str, device_type: str) -> float:
    """Parse a budget into seconds; "auto" means 30 seconds per method on a CPU and 4 minutes on a GPU.

    >>> parse_budget("auto", "cpu"), parse_budget("2min", "cuda")
    (30.0, 120.0)
    """
    if text == "auto":
        return DEFAULT_BUDGETS["cuda" if device_type == "cuda" else "cpu"]
    return parse_duration(text)


def parse_duration(text: str) -> float:
    """Parse a duration such as "90s", "4min" or "1h" into seconds.

    >>> parse_duration("4min"), parse_duration("1.5 h")
    (240.0, 5400.0)

    Raises:
        InputError: if the text is not a positive duration of at most 1,000 hours.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)", text.strip())
    seconds = 0.0 if match is None else float(match[1]) * _UNITS[match[2]]
    if match is None or not 0 < seconds <= _MAX_BUDGET:
        raise InputError(f"a budget is auto or a duration such as 90s, 4min or 1h, not '{text[:40]}'")
    return seconds


def order_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order rows by forward error; methods that failed come last."""
    return sorted(rows, key=lambda row: (row["failure"] != "", row["forward"] or 0.0, row["method"]))
