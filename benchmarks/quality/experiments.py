"""Declare the experiments behind docs/results/quality.json: settings, data set and seeds of each run.

Each experiment is a preset plus the settings that differ from it. `run.py` executes the runs, `merge.py`
collects their numbers, and `quality_pages.py` formats them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from selfmark.config import Config, override, preset, to_dict, used_settings

Settings = Mapping[str, Any]

DETECTORS = ("selfmark", "superpoint", "r2d2", "alike-t", "alike-n", "sift", "orb")
CLUSTERS = (30, 50, 100, 250, 500)
# Percentages of annotated points among the keypoints that training starts from; the others are random.
REAL_PERCENT = (100, 60, 40, 20)
REAL_POINTS: Mapping[str, Settings] = {
    f"real-{percent}": {
        "K": 15,
        "keypoints.detector": "file",
        "keypoints.random_fraction": round(1 - percent / 100, 2),
        # Confidence reflects how often a point occurs in the data. At the default of 0.15, rows with random
        # points detect nothing.
        "heatmaps.threshold": 0.02,
    }
    for percent in REAL_PERCENT
}
RIDGES = (0.1, 0.01, 0.001)

# In the recorded runs of the preset `fast`, the iterations do not depend on the number of images.
FIXED_SCHEDULE: Settings = {"schedule.growth": 0}

# The schedule of all ablations, about a third of the preset `fast`. As in `fast`, the learning rate drops at
# the start of the last round, after the fraction (700 + 2 x 500) / (700 + 3 x 500) of the iterations.
SHORT: Settings = {
    "warmup.iterations": 700,
    "rounds.count": 3,
    "rounds.iterations": 500,
    "rounds.lr_drops": [0.7727],
    "stage2.iterations": 700,
    **FIXED_SCHEDULE,
}
# 1.5 times the iterations of each round and twice those of Stage 2 in the preset `fast`.
LONGER: Settings = {"rounds.iterations": 1_800, "rounds.lr_drops": [0.7931], "stage2.iterations": 3_600}
# Regressors are fitted on all training images, so random draws of fewer images are not needed.
EVALUATION: Settings = {
    "evaluation.ridges": list(RIDGES),
    "evaluation.fit_images": [],
    "evaluation.draws": 1,
}


@dataclass(frozen=True)
class Experiment:
    """A discovery with one or more seeds, and its evaluation.

    Attributes:
        name: Name of the experiment, and of its rows in the results. The name of a run consists of this name
            and the seed, see `build_run_name`.
        data: Key of `quality_data.DATASETS`.
        settings: Mapping from dotted names to values, for settings that differ from the preset.
        preset: Name of the preset.
        seeds: One run is made per seed.
        variants: Mapping from row names to evaluation settings under which the same model is evaluated again.
        points: "annotated" if the first keypoints are annotated points (a synthetic initialization), or "".
        part: Images that errors are measured on: "test", or "validation" for a fifth of the training images.
        unpaired_treatment: How landmarks without a mirror partner are treated, see
            `override_unpaired_treatment`.
        seconds: Approximate duration of one run, including evaluation: on a CPU if the row is meant for one,
            otherwise on an H200.
        tuned_on_test: Whether settings were chosen on the test images, as a phrase for the results page.
    """

    name: str
    data: str
    settings: Settings
    preset: str = "fast"
    seeds: tuple[int, ...] = (0,)
    variants: Mapping[str, Settings] = field(default_factory=dict)
    points: str = ""
    part: str = "test"
    unpaired_treatment: str = "masked"
    seconds: int = 60
    tuned_on_test: str = ""

    def compute_digest(self) -> str:
        """Return a digest of the settings that models depend on, including those of the preset.

        The digest depends neither on the seed nor on the settings of `evaluation` and `runtime`. Of the other
        settings, it contains only those that differ from the defaults. Old runs therefore stay valid if a
        later version adds a setting whose default changes nothing.
        """
        config = _flatten(used_settings(override(preset(self.preset), self.settings)))
        reference = _flatten(to_dict(Config()))
        changed_settings = {
            name: value
            for name, value in config.items()
            if value != reference[name] and name.split(".")[0] not in ("evaluation", "runtime", "preset")
        }
        content = [changed_settings, self.points]
        if (self.part, self.unpaired_treatment) != ("test", "masked"):
            content += [self.part, self.unpaired_treatment]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def list_run_names(self) -> list[str]:
        """Return the name of each run: the name of the row and the seed."""
        return [build_run_name(self.name, seed) for seed in self.seeds]


def _flatten(settings: Settings, prefix: str = "") -> dict[str, Any]:
    """Return the settings of nested sections as one mapping from dotted names to values.

    >>> _flatten({"K": 3, "flip": {"train": True}})
    {'K': 3, 'flip.train': True}
    """
    flattened: dict[str, Any] = {}
    for name, value in settings.items():
        flattened |= (
            _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
        )
    return flattened


def build_run_name(name: str, seed: int) -> str:
    """Return the file name of a run, without extension.

    >>> build_run_name("yt68-superpoint", 2)
    'yt68-superpoint-s2'
    """
    return f"{name}-s{seed}"


# --- results ---------------------------------------------------------------------------------------------


# Phrases for `tuned_on_test`. No validation images were set aside for any of these rows.
UNTUNED = "no: the settings of the preset, with K and M given beforehand"
NO_RECORD = "not on record"
DECLARED_FIRST = f"{NO_RECORD}; the settings were declared before the first published result"


def _declare_faces(detector: str) -> Experiment:
    settings = {"K": 30, "M": 100, "keypoints.detector": detector, **FIXED_SCHEDULE}
    choice = (
        "in part: earlier versions of the preset `fast` were measured on these test images "
        "([faces_yt68.json](faces_yt68.json)) before it got its present settings"
    )
    return Experiment(
        f"yt68-{detector}", "faces-yt68", settings, seeds=(0, 1, 2), seconds=150, tuned_on_test=choice
    )


def _declare_aflw(name: str, schedule: Settings) -> Experiment:
    settings = {"K": 10, "M": 100, "keypoints.detector": "selfmark", **FIXED_SCHEDULE, **schedule}
    longer = (
        "yes: the schedule was lengthened after `aflw-selfmark` had missed its target on these test images"
    )
    choice = longer if schedule else UNTUNED
    return Experiment(name, "faces-mtfl-aflw", settings, seconds=210, tuned_on_test=choice)


def _declare_birds(K: int) -> Experiment:
    settings = {"K": K, "M": 100, "keypoints.detector": "selfmark", **FIXED_SCHEDULE}
    return Experiment(f"birds-{K}", "birds-cub", settings, seconds=160, tuned_on_test=UNTUNED)


# Birds face left or right, and 159 species share shapes but not colors. Each landmark is its own mirror
# partner, because otherwise heads that face left and heads that face right become two landmarks. Descriptors
# must not depend on the plumage, neither on its colors nor on which parts are light or dark.
FROM_THE_SIDE: Settings = {
    "M": 30,
    "keypoints.detector": "selfmark",
    "flip.partner": "itself",
    "augment.negative_fraction": 0.5,
    "augment.color_fraction": 0.8,
    "augment.hue": 180.0,
    "augment.saturation": [0.0, 1.5],
    "augment.contrast": [0.5, 1.5],
    "augment.brightness": [0.6, 1.4],
}


BIRDS_CHOICE = (
    "yes: the rows without the settings for side views had missed the target on these test images; the "
    "settings for side views were then changed until the target was reached"
)


def _declare_birds_from_the_side(name: str, settings: Settings) -> Experiment:
    # The warm-up is longer, because descriptors must work across species before they are clustered.
    schedule = {
        "warmup.iterations": 4_000,
        "rounds.count": 2,
        "rounds.iterations": 1_200,
        "rounds.lr_drops": [0.8125],
        "stage2.iterations": 2_400,
        **FIXED_SCHEDULE,
    }
    return Experiment(
        name,
        "birds-cub",
        {**FROM_THE_SIDE, **schedule, **settings},
        seconds=170,
        tuned_on_test=BIRDS_CHOICE,
    )


def _declare_birds_without_gpu(name: str, settings: dict[str, Any]) -> Experiment:
    """Declare a run on birds that two CPU cores finish in half an hour."""
    shared_settings = {"K": 20, "M": 30, "keypoints.detector": "selfmark"}
    choice = BIRDS_CHOICE if settings else UNTUNED
    return Experiment(
        name, "birds-cub", shared_settings | settings, preset="tiny", seconds=1_800, tuned_on_test=choice
    )


# Animals seen from above can face any direction, so descriptors must be invariant to rotation.
VIDEO: Settings = {
    "K": 10,
    "M": 50,
    "keypoints.detector": "selfmark",
    "rounds.count": 3,
    "augment.rotation": 180.0,
}


def _declare_video(data: str, temporal: bool) -> Experiment:
    # For about a thousand frames, a schedule between that of the ablations and the full preset is enough.
    schedule = {
        "warmup.iterations": 800,
        "rounds.iterations": 700,
        "rounds.lr_drops": [0.7586],
        "stage2.iterations": 900,
        **FIXED_SCHEDULE,
    }
    short = data.split("-")[0]
    return Experiment(
        f"{short}-temporal" if temporal else short,
        data,
        {**VIDEO, **schedule, "temporal.enabled": temporal},
        seeds=(0, 1, 2) if short == "flies" else (0,),
        seconds=90,
        tuned_on_test=DECLARED_FIRST,
    )


def _declare_flies_without_gpu(name: str, settings: Settings) -> Experiment:
    """Declare a run on flies for a CPU. The row `flies-tiny-far` pairs frames up to 30 apart instead of 5."""
    schedule = {
        "warmup.iterations": 300,
        "rounds.iterations": 250,
        "rounds.lr_drops": [0.76],
        "stage2.iterations": 300,
    }
    changes = {**VIDEO, **schedule, **settings}
    return Experiment(
        name,
        "flies-pair-video",
        changes,
        preset="tiny",
        seeds=(0, 1),
        seconds=900,
        tuned_on_test=NO_RECORD,
    )


RESULTS = (
    *(_declare_faces(detector) for detector in ("superpoint", "selfmark")),
    _declare_aflw("aflw-selfmark", {}),
    _declare_aflw("aflw-longer", LONGER),
    _declare_birds(30),
    *(_declare_birds_from_the_side(f"birds-side-{K}", {"K": K}) for K in (20, 30)),
    _declare_birds_from_the_side("birds-side-no-negatives", {"K": 20, "augment.negative_fraction": 0.0}),
    _declare_birds_without_gpu("birds-tiny", {}),
    _declare_birds_without_gpu(
        "birds-side-tiny", {**FROM_THE_SIDE, "warmup.iterations": 1_000, "rounds.count": 2}
    ),
    *(
        _declare_video(data, temporal)
        for data in ("flies-pair-video", "mouse-openfield")
        for temporal in (False, True)
    ),
    _declare_flies_without_gpu("flies-tiny", {}),
    _declare_flies_without_gpu("flies-tiny-temporal", {"temporal.enabled": True}),
    _declare_flies_without_gpu("flies-tiny-far", {"temporal.enabled": True, "temporal.max_frame_gap": 30}),
)


# --- ablations -------------------------------------------------------------------------------------------

BASE = "short"  # row shared by all ablation tables: SuperPoint, K=30, M=100, all parts of the method


def _declare_ablation(name: str, settings: Settings, **more: Any) -> Experiment:
    base = {"K": 30, "M": 100, "keypoints.detector": "superpoint", **SHORT, "evaluation.num_samples": 64}
    return Experiment(name, "faces-yt68", {**base, **settings}, **more)


ABLATIONS = (
    _declare_ablation(BASE, {}, variants={"flip-train": {"flip": "never"}}),
    *(_declare_ablation(f"clusters-{M}", {"M": M}) for M in CLUSTERS if M != 100),
    _declare_ablation("different-clusters-clustering", {"loss.negatives": "different-cluster"}),
    _declare_ablation("same-image-equivariance", {"correspondence.mode": "equivariance"}),
    _declare_ablation(
        "different-clusters-equivariance",
        {"loss.negatives": "different-cluster", "correspondence.mode": "equivariance"},
    ),
    *(
        _declare_ablation(f"keypoints-{name}", {"keypoints.detector": name})
        for name in DETECTORS
        if name != "superpoint"
    ),
    _declare_ablation("flip-none", {"flip.train": False, "flip.test": False}),
    *(_declare_ablation(name, settings, points="annotated") for name, settings in REAL_POINTS.items()),
)

EXPERIMENTS = (*RESULTS, *ABLATIONS)


def find_experiment(name: str) -> Experiment:
    """Return the experiment with the name of a row or of one of its runs."""
    for experiment in EXPERIMENTS:
        if name == experiment.name or name in experiment.list_run_names():
            return experiment
    known = ", ".join(experiment.name for experiment in EXPERIMENTS)
    raise ValueError(f"unknown experiment '{name}'; choose one of {known}")
