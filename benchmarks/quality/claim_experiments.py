"""Declare the experiments behind docs/results/claims.json, which test claims of the paper.

They use several data sets and three seeds. The network is that of the preset `tiny`, trained for four times
as many iterations. It is so small that a run takes only minutes on a GPU. Errors are measured on validation
images.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

from experiments import CLUSTERS, DETECTORS, REAL_POINTS, Experiment, Settings

SEEDS = (0, 1, 2)
SCHEDULE: Settings = {"warmup.iterations": 2_000, "rounds.iterations": 600, "stage2.iterations": 1_400}
# Settings of all experiments. The image size and the radius of the first keypoints are those of the preset
# `fast`.
SHARED: Settings = {
    "K": 30,
    "M": 100,
    "keypoints.detector": "superpoint",
    "keypoints.image_size": 256,
    "keypoints.nms_radius": 8,
    **SCHEDULE,
    "evaluation.num_samples": 6,
}
# Prefix of the row names and settings of each data set. Flies are seen from above and face any direction.
DATA: Mapping[str, tuple[str, Settings]] = {
    "faces-yt68": ("yt68", {}),
    "faces-mtfl-aflw": ("aflw", {}),
    "birds-cub": ("cub", {}),
    "flies-dpk": ("dpk", {"K": 16, "M": 50, "augment.rotation": 180.0}),
}
FACES = "faces-yt68"
# Values of the preset `paper` for settings that `tiny` changes. Each group is tested alone. The row paper-all
# tests all groups together.
PAPER_SETTINGS: Mapping[str, Settings] = {
    "loss": {
        "loss.descriptors": "raw",
        "loss.average": "together",
        "loss.negative_weight": 1.0,
        "loss.detector_weight": 0.2,
    },
    "clipping": {"optimizer.clip_norm": 0.0},
    "keypoints": {
        "heatmaps.sigma": 0.75,
        "heatmaps.threshold": 0.15,
        "heatmaps.nms_radius": 3,
        "heatmaps.max_points": 256,
        "correspondence.extra_points": "removed",
    },
    "targets": {"stage2.sigma": 0.75, "stage2.refine": "cell"},
    "rates": {"stage2.lr_drops": [0.25, 0.35], "stage2.backbone_lr": 0.1},
    "views": {"stage2.head": "descriptor", "stage2.outside": "absent", "stage2.cutout_color": "black"},
    "colors": {
        "augment.noise_fraction": 0.5,
        "augment.blur_sigma": [0.01, 0.5],
        "augment.saturation": [0.5, 1.5],
    },
}


def build_row_name(data: str, name: str) -> str:
    """Return the name of a row.

    >>> build_row_name("birds-cub", "base")
    'cub-base'
    """
    return f"{DATA[data][0]}-{name}"


def _declare(data: str, name: str, settings: Settings, **more: Any) -> Experiment:
    shared_settings = {**SHARED, **DATA[data][1]}
    return Experiment(
        build_row_name(data, name),
        data,
        {**shared_settings, **settings},
        preset="tiny",
        seeds=SEEDS,
        part="validation",
        **more,
    )


def _declare_all(data: str) -> list[Experiment]:
    """Declare the experiments made on every data set: flipping, negatives and correspondence.

    The experiments on the number of clusters are made on every data set except the flies.
    """
    equivariance = {"correspondence.mode": "equivariance"}
    different = {"loss.negatives": "different-cluster"}
    clusters = [] if data == "flies-dpk" else [M for M in CLUSTERS if SHARED["M"] != M]
    return [
        _declare(data, "base", {}),
        _declare(data, "flip-none", {"flip.train": False, "flip.test": False}),
        _declare(data, "flip-itself", {}, unpaired_treatment="itself"),
        _declare(data, "different-clustering", different),
        _declare(data, "same-equivariance", equivariance),
        _declare(data, "different-equivariance", {**different, **equivariance}),
        *(_declare(data, f"clusters-{M}", {"M": M}) for M in clusters),
    ]


CLAIM_EXPERIMENTS = (
    *(experiment for data in DATA for experiment in _declare_all(data)),
    _declare(FACES, "stage2-longer", {"stage2.iterations": 2 * SCHEDULE["stage2.iterations"]}),
    *(_declare(FACES, f"paper-{name}", settings) for name, settings in PAPER_SETTINGS.items()),
    _declare(FACES, "paper-all", dict(ChainMap(*map(dict, PAPER_SETTINGS.values())))),
    _declare(
        FACES, "paper-loss-equivariance", {**PAPER_SETTINGS["loss"], "correspondence.mode": "equivariance"}
    ),
    *(
        _declare(FACES, f"keypoints-{name}", {"keypoints.detector": name})
        for name in DETECTORS
        if name != SHARED["keypoints.detector"]
    ),
    *(_declare(FACES, name, settings, points="annotated") for name, settings in REAL_POINTS.items()),
)
