"""The runs behind docs/results/quality.json, as data: which settings on which data set, with which seeds.

Everything is stated as a preset and what differs from it. `run.py` makes the runs, `merge.py` gathers their
figures, `quality_pages.py` lays them out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from selfmark.config import override, preset, to_dict

Settings = Mapping[str, Any]

DETECTORS = ("selfmark", "superpoint", "r2d2", "alike-t", "alike-n", "sift", "orb")
CLUSTERS = (30, 50, 100, 250, 500)
REAL_SHARES = (100, 60, 40, 20)  # percent of first keypoints that are annotated points, the rest random
RIDGES = (0.1, 0.01, 0.001)

# The one schedule of all ablations, about a third of the preset `fast`. As there, the learning rate drops
# with the last round: (700 + 2 x 500) / (700 + 3 x 500).
SHORT: Settings = {
    "warmup.iterations": 700,
    "rounds.count": 3,
    "rounds.iterations": 500,
    "rounds.lr_drops": [0.7727],
    "stage2.iterations": 700,
}
# Half as much again for the rounds of the preset `fast`, and twice as much for Stage 2.
LONGER: Settings = {"rounds.iterations": 1_800, "rounds.lr_drops": [0.7931], "stage2.iterations": 3_600}
# Every row is fitted on all training images, so draws of fewer are not needed.
EVALUATION: Settings = {
    "evaluation.ridges": list(RIDGES),
    "evaluation.fit_images": [],
    "evaluation.draws": 1,
}


@dataclass(frozen=True)
class Declared:
    """One discovery and what is measured of it.

    name:     of the run and of its rows
    data:     one of `sets.SETS`
    settings: what differs from the preset, by dotted name
    seeds:    one run each
    variants: by row name, settings of the evaluation under which the same model is measured once more
    points:   "annotated": the first keypoints are annotated points (a synthetic initialization)
    seconds:  how long one run takes on an H200, roughly, evaluation included
    """

    name: str
    data: str
    settings: Settings
    preset: str = "fast"
    seeds: tuple[int, ...] = (0,)
    variants: Mapping[str, Settings] = field(default_factory=dict)
    points: str = ""
    seconds: int = 60

    def digest(self) -> str:
        """Changes with every setting that a run is made with, those of the preset among them.

        Only what differs from the paper's settings counts: a setting that is added later, and at first leaves
        everything as it was, makes no run out of date.
        """
        config = _flat(to_dict(override(preset(self.preset), self.settings)))
        plain = _flat(to_dict(preset("paper")))
        changed = {
            name: value
            for name, value in config.items()
            if value != plain[name] and name.split(".")[0] not in ("evaluation", "runtime", "preset")
        }
        return hashlib.sha256(json.dumps([changed, self.points], sort_keys=True).encode()).hexdigest()[:12]

    def runs(self) -> list[str]:
        """The name of each run: that of the row and the seed."""
        return [run_name(self.name, seed) for seed in self.seeds]


def _flat(settings: Settings, within: str = "") -> dict[str, Any]:
    """Settings of all sections by dotted name.

    >>> _flat({"K": 3, "flip": {"train": True}})
    {'K': 3, 'flip.train': True}
    """
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{within}{name}.") if isinstance(value, dict) else {within + name: value}
    return flat


def run_name(name: str, seed: int) -> str:
    """What a run's files are called.

    >>> run_name("yt68-superpoint", 2)
    'yt68-superpoint-s2'
    """
    return f"{name}-s{seed}"


# --- results ---------------------------------------------------------------------------------------------


def _faces(detector: str) -> Declared:
    settings = {"K": 30, "M": 100, "keypoints.detector": detector}
    return Declared(f"yt68-{detector}", "faces-yt68", settings, seeds=(0, 1, 2), seconds=150)


def _aflw(name: str, schedule: Settings) -> Declared:
    settings = {"K": 10, "M": 100, "keypoints.detector": "selfmark", **schedule}
    return Declared(name, "faces-mtfl-aflw", settings, seconds=210)


def _birds(K: int) -> Declared:
    settings = {"K": K, "M": 100, "keypoints.detector": "selfmark"}
    return Declared(f"birds-{K}", "birds-cub", settings, seconds=160)


# Birds face left or right, and 159 species share shapes but no colors. A landmark is its own mirror partner,
# or heads that face left and heads that face right become two landmarks; and descriptors must not follow the
# plumage, neither its colors nor what is light and what dark.
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


def _birds_from_the_side(name: str, settings: Settings) -> Declared:
    # A longer warm-up and fewer rounds: descriptors must hold across species before they are clustered.
    schedule = {
        "warmup.iterations": 4_000,
        "rounds.count": 2,
        "rounds.iterations": 1_200,
        "rounds.lr_drops": [0.8125],
        "stage2.iterations": 2_400,
    }
    return Declared(name, "birds-cub", {**FROM_THE_SIDE, **schedule, **settings}, seconds=170)


def _birds_without_gpu(name: str, settings: dict[str, Any]) -> Declared:
    """What two CPU cores make of the birds."""
    shared = {"K": 20, "M": 30, "keypoints.detector": "selfmark"}
    return Declared(name, "birds-cub", shared | settings, preset="tiny", seconds=1_800)


# Animals seen from above turn all the way round, so descriptors must not care about direction.
FILM: Settings = {
    "K": 10,
    "M": 50,
    "keypoints.detector": "selfmark",
    "rounds.count": 3,
    "augment.rotation": 180.0,
}


def _film(data: str, temporal: bool) -> Declared:
    # Few frames of one animal: a schedule between that of the ablations and the whole preset.
    schedule = {
        "warmup.iterations": 800,
        "rounds.iterations": 700,
        "rounds.lr_drops": [0.7586],
        "stage2.iterations": 900,
    }
    short = data.split("-")[0]
    return Declared(
        f"{short}-temporal" if temporal else short,
        data,
        {**FILM, **schedule, "temporal.enabled": temporal},
        seeds=(0, 1, 2) if short == "flies" else (0,),
        seconds=90,
    )


def _flies_without_gpu(name: str, settings: Settings) -> Declared:
    """What a CPU makes of the flies; `far`: pairs of frames up to 30 apart instead of 5."""
    schedule = {
        "warmup.iterations": 300,
        "rounds.iterations": 250,
        "rounds.lr_drops": [0.76],
        "stage2.iterations": 300,
    }
    film = {**FILM, **schedule, **settings}
    return Declared(name, "flies-pair-video", film, preset="tiny", seeds=(0, 1), seconds=900)


RESULTS = (
    *(_faces(detector) for detector in ("superpoint", "selfmark")),
    _aflw("aflw-selfmark", {}),
    _aflw("aflw-longer", LONGER),
    _birds(30),
    *(_birds_from_the_side(f"birds-side-{K}", {"K": K}) for K in (20, 30)),
    _birds_from_the_side("birds-side-no-negatives", {"K": 20, "augment.negative_fraction": 0.0}),
    _birds_without_gpu("birds-tiny", {}),
    _birds_without_gpu("birds-side-tiny", {**FROM_THE_SIDE, "warmup.iterations": 1_000, "rounds.count": 2}),
    *(
        _film(data, temporal)
        for data in ("flies-pair-video", "mouse-openfield")
        for temporal in (False, True)
    ),
    _flies_without_gpu("flies-tiny", {}),
    _flies_without_gpu("flies-tiny-temporal", {"temporal.enabled": True}),
    _flies_without_gpu("flies-tiny-far", {"temporal.enabled": True, "temporal.max_frame_gap": 30}),
)


# --- ablations -------------------------------------------------------------------------------------------

BASE = "short"  # the row every ablation table shares: SuperPoint, K=30, M=100, all parts of the method


def _ablation(name: str, settings: Settings, **more: Any) -> Declared:
    base = {"K": 30, "M": 100, "keypoints.detector": "superpoint", **SHORT, "evaluation.num_samples": 64}
    return Declared(name, "faces-yt68", {**base, **settings}, **more)


ABLATIONS = (
    _ablation(BASE, {}, variants={"flip-train": {"flip": "never"}}),
    *(_ablation(f"clusters-{M}", {"M": M}) for M in CLUSTERS if M != 100),
    _ablation("different-clusters-clustering", {"loss.negatives": "different-cluster"}),
    _ablation("same-image-equivariance", {"correspondence.mode": "equivariance"}),
    _ablation(
        "different-clusters-equivariance",
        {"loss.negatives": "different-cluster", "correspondence.mode": "equivariance"},
    ),
    *(
        _ablation(f"keypoints-{name}", {"keypoints.detector": name})
        for name in DETECTORS
        if name != "superpoint"
    ),
    _ablation("flip-none", {"flip.train": False, "flip.test": False}),
    *(
        _ablation(
            f"real-{share}",
            {
                "K": 15,
                "keypoints.detector": "file",
                "keypoints.random_fraction": round(1 - share / 100, 2),
                # Phi is as sure of a point as it was often there: at 0.15 the mixed rows find none.
                "heatmaps.threshold": 0.02,
            },
            points="annotated",
        )
        for share in REAL_SHARES
    ),
)

DECLARED = (*RESULTS, *ABLATIONS)


def by_name(name: str) -> Declared:
    """The declaration of a row or of one of its runs."""
    for declared in DECLARED:
        if name == declared.name or name in declared.runs():
            return declared
    raise ValueError(
        f"there is no declared run '{name}'; there are {', '.join(one.name for one in DECLARED)}"
    )
