"""docs/results/ablations.md: the paper's ablations on faces-yt68, each beside the paper's own figures."""

from __future__ import annotations

from again import how_to_make
from figures import NONE, RIDGE, Quality, Values, agreement, column, mean, shown, spread, table, values
from rows import ABLATIONS, BASE, CLUSTERS, DETECTORS, REAL_SHARES, SHORT, by_name

import paper


def ablations_page(quality: Quality) -> str:
    """docs/results/ablations.md."""
    parts = (_clusters, _negatives, _detectors, _precision, _stages, _flipping, _real_points)
    return "\n\n".join([_introduction(quality), *(part(quality) for part in parts)]) + "\n"


def _introduction(quality: Quality) -> str:
    schedule = (
        f"{SHORT['warmup.iterations']} iterations of warm-up, {SHORT['rounds.count']} rounds of "
        f"{SHORT['rounds.iterations']}, {SHORT['stage2.iterations']} of Stage 2"
    )
    minutes = [minute for one in ABLATIONS for minute in values(quality, one.name, "minutes")]
    length = f", {min(minutes):.1f} to {max(minutes):.1f} minutes a run" if minutes else ""
    first, second = _seeds(quality, "forward", 1), _seeds(quality, "forward", 2)
    noise = (
        f"For scale: over the seeds of the whole preset the forward error of Stage 1 spreads by {first:.2f}, "
        f"that of Stage 2 by {second:.2f}; differences of that size mean nothing."
        if first is not None and second is not None
        else "How much seeds differ has not been measured yet."
    )
    return (
        "# Ablations\n\n"
        "<!-- made by benchmarks/quality/quality_pages.py from quality.json: edit there -->\n\n"
        "The paper's ablations on faces-yt68 (3,095 training images, 759 test images of other persons, 68 "
        f"points). All rows share one short schedule, the preset `fast` with {schedule}{length} on the "
        "machine named in quality.json, and one seed, 0. Unless a table says otherwise: SuperPoint, K = 30, "
        f"M = 100. Errors are percentages of the root of the box's area, ridge {RIDGE:g}, regressors fitted "
        "on all training images. Lower is better.\n\n"
        f"The paper's figures are of its own data sets, so only their order can be compared. {noise}\n\n"
        f"{how_to_make('ROW is what the second column of each table says')}"
    )


def _first(quality: Quality, field: str) -> tuple[str, float | None]:
    """An error of Stage 1 in words, and how much seeds differ in it."""
    return f"{field} error of Stage 1", _seeds(quality, field, 1)


def _seeds(quality: Quality, field: str, stage: int) -> float | None:
    """How much an error differs from seed to seed, with the whole preset."""
    return spread(values(quality, "yt68-superpoint", field, stage))


def _errors(quality: Quality, name: str) -> list[str]:
    """Forward and backward of Stage 1, then of Stage 2."""
    return [
        shown(values(quality, name, field, stage)) for stage in (1, 2) for field in ("forward", "backward")
    ]


_ERRORS = ["stage 1 forward", "stage 1 backward", "stage 2 forward", "stage 2 backward"]


def _clusters(quality: Quality) -> str:
    names = {str(M): BASE if M == 100 else f"clusters-{M}" for M in CLUSTERS}
    rows = [
        [label, name, *_errors(quality, name), *(f"{error:.2f}" for error in paper.CLUSTERS[int(label)])]
        for label, name in names.items()
    ]
    forward, backward = ({str(M): pair[i] for M, pair in paper.CLUSTERS.items()} for i in (0, 1))
    return "\n\n".join(
        [
            "## Number of clusters M",
            table(["M", "row", *_ERRORS, "paper, LS3D, stage 1 forward", "paper backward"], rows),
            agreement(column(quality, names), forward, *_first(quality, "forward")),
            agreement(column(quality, names, "backward"), backward, *_first(quality, "backward")),
        ]
    )


def _negatives(quality: Quality) -> str:
    names = {
        "different clusters, clustering": "different-clusters-clustering",
        "same image, equivariance": "same-image-equivariance",
        "different clusters, equivariance": "different-clusters-equivariance",
        "same image, clustering": BASE,
    }
    theirs = {", ".join(key): error for key, error in paper.NEGATIVES.items()}
    rows = [[label, name, *_errors(quality, name), f"{theirs[label]:.2f}"] for label, name in names.items()]
    return "\n\n".join(
        [
            "## Negatives and correspondence",
            "Negatives are keypoints of other clusters in the other image, or other places of the same "
            "image; positives come from clusters (two images), or only from deformations of one image "
            "(equivariance).",
            table(["negatives, correspondence", "row", *_ERRORS, "paper, LS3D, stage 1 forward"], rows),
            agreement(column(quality, names), theirs, *_first(quality, "forward")),
        ]
    )


def _by_detector() -> dict[str, str]:
    """The row of each detector."""
    return {name: BASE if name == "superpoint" else f"keypoints-{name}" for name in DETECTORS}


def _detectors(quality: Quality) -> str:
    names = _by_detector()
    theirs = {name: pair[0] for name, pair in paper.DETECTORS.items()}
    rows = []
    for label, name in names.items():
        pair = paper.DETECTORS.get(label)
        printed = (f"{error:.2f}" for error in pair) if pair else (NONE, NONE)
        rows.append([label, name, *_errors(quality, name), *printed])
    return "\n\n".join(
        [
            "## First keypoints",
            table(["detector", "row", *_ERRORS, "paper, CelebA, stage 1 forward", "paper backward"], rows),
            agreement(column(quality, names), theirs, *_first(quality, "forward")),
            agreement(
                column(quality, names, "backward"),
                {name: pair[1] for name, pair in paper.DETECTORS.items()},
                *_first(quality, "backward"),
            ),
        ]
    )


def _precision(quality: Quality) -> str:
    names = _by_detector()
    runs = {label: quality["runs"].get(by_name(name).runs()[0]) for label, name in names.items()}
    found: Values = {
        label: None if run is None else run["first_keypoints_precision"][f"{label}, outliers removed"]
        for label, run in runs.items()
    }
    rows = [
        [
            label,
            names[label],
            NONE if share is None else f"{share:.1f}",
            f"{paper.PRECISION[label]:.1f}" if label in paper.PRECISION else NONE,
        ]
        for label, share in found.items()
    ]
    missed = {label: None if share is None else 100 - share for label, share in found.items()}
    return "\n\n".join(
        [
            "## Precision of first keypoints",
            "The share of first keypoints within a tenth of the inter-ocular distance of one of the 68 "
            "points, in the training images, after outliers among them were removed. "
            "[First keypoints](keypoints.md) has it before, and other measures.",
            table(["detector", "row", "precision %", "paper, CelebA"], rows),
            agreement(
                missed, {name: 100 - share for name, share in paper.PRECISION.items()}, "points that miss"
            ),
        ]
    )


def _stages(quality: Quality) -> str:
    runs = {"short schedule": BASE, "whole preset `fast`": "yt68-superpoint"}
    rows = [
        [label, name, *(shown(values(quality, name, field, stage)) for field, stage in _STAGES)]
        for label, name in runs.items()
    ]
    rows += [
        [f"paper, {data}", "", f"{points:.1f}", "30", f"{one:.1f}", f"{two:.1f}"]
        for data, (points, one, two) in paper.STAGES.items()
    ]
    first, second = (mean(values(quality, BASE, "forward", stage)) for stage in (1, 2))
    return "\n\n".join(
        [
            "## Stage 1 and Stage 2",
            table(
                ["", "row", "points, stage 1", "points, stage 2", "stage 1 forward", "stage 2 forward"], rows
            ),
            _better(first, second, "Stage 2", "Stage 1", "as in all three data sets of the paper"),
        ]
    )


_STAGES = (("points_per_image", 1), ("points_per_image", 2), ("forward", 1), ("forward", 2))


def _flipping(quality: Quality) -> str:
    names = {"none": "flip-none", "train": "flip-train", "train and test": BASE}
    rows = [
        [
            label,
            name,
            *(shown(values(quality, name, "forward", stage)) for stage in (1, 2)),
            *(f"{error:.2f}" for error in paper.FLIPPING[label]),
        ]
        for label, name in names.items()
    ]
    ours = column(quality, names, stage=2)
    plain, flipped = (mean(values(quality, name, "forward", 1)) for name in ("flip-none", BASE))
    return "\n\n".join(
        [
            "## Flipping",
            "`train` is the model of `train and test` applied without averaging over the mirror image.",
            table(["flipping", "row", "stage 1", "stage 2", "paper, LS3D, stage 1", "paper, stage 2"], rows),
            agreement(
                ours,
                {name: pair[1] for name, pair in paper.FLIPPING.items()},
                "forward error of Stage 2",
                _seeds(quality, "forward", 2),
            ),
            _better(
                plain, flipped, "Stage 1 with flipping in training", "Stage 1 without", "as in the paper"
            ),
            "With the whole preset the order is another ([Made on a GPU](../reproduce.md#made-on-a-gpu)).",
        ]
    )


def _better(before: float | None, after: float | None, new: str, old: str, as_where: str) -> str:
    """A sentence on whether an error fell."""
    if before is None or after is None:
        return f"{new} and {old} have not both been run yet."
    change = 100 * (after / before - 1)
    if after < before:
        return f"{new} has a forward error {-change:.0f} % lower than {old}, {as_where}."
    return f"{new} has a forward error {change:.0f} % higher than {old}; in the paper it is lower."


def _real_points(quality: Quality) -> str:
    names = {str(share): f"real-{share}" for share in REAL_SHARES}
    rows = [[f"{label} %", name, *_errors(quality, name)] for label, name in names.items()]
    guessing = mean(values(quality, "real-20", "mean_shape"))
    return "\n\n".join(
        [
            "## Share of real points among the first keypoints",
            "As in the paper's synthetic initialization every image starts from 15 points, annotated ones "
            "(eyes, eyebrows, nose, mouth, chin; moved by up to 3 px of 256) or random ones in this share; "
            "K = 15. Phi is as sure of a point as it was often there, so the least confidence is 0.02 "
            "here instead of 0.15, at which the mixed rows find nothing.",
            table(["real points", "row", *_ERRORS], rows),
            _noise(column(quality, names), column(quality, names, stage=2), guessing),
        ]
    )


def _noise(stage1: Values, stage2: Values, guessing: float | None) -> str:
    """The paper's two statements, checked: 20 % still work, and above 40 % there is little to gain."""
    least, some, most = (stage1[share] for share in ("20", "40", "100"))
    if least is None or some is None or most is None or stage2["20"] is None or guessing is None:
        return "The paper gives curves without figures; not all shares have been run yet."
    gain, loss = 100 * (1 - most / some), 100 * (least / some - 1)
    slight = "agrees" if gain < loss else "does not agree"
    return (
        "The paper's figure has curves only; its text says two things. That 20 % real points still do "
        f"reasonably well: here they lead to {stage2['20']:.2f} after Stage 2, where guessing the mean shape "
        f"gives {guessing:.2f}. That more than 40 % reduce the error only slightly: here going from 40 % to "
        f"100 % lowers the forward error of Stage 1 by {gain:.0f} %, going from 40 % to 20 % raises it by "
        f"{loss:.0f} %, which {slight} with it."
    )
