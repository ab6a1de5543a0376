"""Build docs/results/claims.md: each claim of the paper, on several data sets with three seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from claim_experiments import CLAIM_EXPERIMENTS, DATA, FACES, PAPER_SETTINGS, SCHEDULE, SEEDS, build_row_name
from claim_records import Record, get_stage2_value
from claims import (
    CLAIMS,
    CLUSTER_ROWS,
    DETECTOR_ROWS,
    FLIPPING_ROWS,
    NEGATIVE_ROWS,
    READING,
    REAL_POINT_ROWS,
    WITHOUT_FLIES,
    collect_row_errors,
    compare_rows,
    judge,
    measure_claim,
)
from summaries import NONE, format_mean, format_table

import paper

_TITLES = {
    "faces-yt68": "faces",
    "faces-mtfl-aflw": "AFLW",
    "birds-cub": "birds",
    "flies-dpk": "flies",
}


def build_claims_page(records: Sequence[Record]) -> str:
    """Return docs/results/claims.md."""
    builders = [
        _build_clusters_section,
        _build_negatives_section,
        _build_detectors_section,
        _build_stages_section,
        _build_flipping_section,
        _build_real_points_section,
        _build_readings_section,
    ]
    if any(record["row"].startswith(build_row_name(FACES, "paper-")) for record in records):
        builders.append(_build_paper_settings_section)
    return (
        "\n\n".join(
            [
                _build_introduction_section(records),
                _build_verdicts_section(records),
                *(build(records) for build in builders),
            ]
        )
        + "\n"
    )


def _build_introduction_section(records: Sequence[Record]) -> str:
    total = sum(len(experiment.seeds) for experiment in CLAIM_EXPERIMENTS)
    num_missing = total - len(records)
    left = (
        f" {num_missing} of {total} runs have not been made yet; their cells show {NONE}."
        if num_missing
        else ""
    )
    sizes = ", ".join(
        f"{_TITLES[data]} ({data}) {record['train_images']:,} and {record['validation_images']:,}"
        for data, record in {record["data"]: record for record in records}.items()
    )
    return (
        "# Claims of the paper\n\n"
        "<!-- made by benchmarks/quality/quality_pages.py from claims.json; do not edit -->\n\n"
        "This page tests what the paper claims in its ablations, on several kinds of images and with three "
        "seeds each. All runs use the small network of the preset `tiny` (images of 128 px, 64 channels, no "
        f"features) with a longer schedule: {SCHEDULE['warmup.iterations']:,} iterations of warm-up, four "
        f"rounds of {SCHEDULE['rounds.iterations']:,}, and {SCHEDULE['stage2.iterations']:,} of Stage 2. "
        "They start from SuperPoint, with K = 30 and M = 100 (flies: K = 16, M = 50, rotations by up to 180 "
        "degrees). [Ablations](ablations.md) has the same tables with the larger network of `fast`, on faces "
        "and with one seed.\n\n"
        "Errors are forward errors with ridge 0.01, in percent of the square root of the area of the box "
        "around the object (faces, birds, flies) or of the distance between the eyes (AFLW). They are "
        "measured on validation images, a fixed fifth of the training images; test images were not read. "
        f"Numbers of training and validation images: {sizes}. Cells with several seeds are mean ± sample "
        f"standard deviation.{left}\n\n"
        "To recompute a row, pass its name (such as `cub-same-equivariance`, see `claim_experiments.py`) "
        "with the data sets in `DATA` and the weights of the detectors in `WEIGHTS`:\n\n"
        "```\nPYTHONPATH=src python benchmarks/quality/run.py --data-folder DATA --weights-folder WEIGHTS "
        "--out made --again --only ROW && \\\nPYTHONPATH=src python benchmarks/quality/merge.py made && "
        "PYTHONPATH=src python benchmarks/quality/quality_pages.py\n```"
    )


def _build_verdicts_section(records: Sequence[Record]) -> str:
    rows = []
    for claim in CLAIMS:
        for data in claim.datasets:
            gains = [measure_claim(records, claim, data, stage) for stage in (1, 2)]
            cells = [NONE if gain is None else f"{gain[0]:+.2f} ± {gain[1]:.2f}" for gain in gains]
            verdicts = [NONE if gain is None else judge(*gain) for gain in gains]
            first, second = verdicts
            verdict = first if first == second else f"Stage 1: {first}; Stage 2: {second}"
            rows.append([claim.text, _TITLES[data], *cells, verdict])
    header = ["claim", "data", "Stage 1, gain", "Stage 2, gain", "here"]
    lines = format_table(header, rows).splitlines()
    lines[1] = "| --- | --- | ---: | ---: | --- |"
    return "\n\n".join(
        [
            "## Verdicts",
            "The gain is the forward error of the row that the paper finds worse, minus that of the row that "
            "it finds better, with a 95 % confidence interval. A positive gain agrees with the paper. The "
            "interval comes from a two-way analysis of variance over the rows and seeds of each ablation. If "
            "it contains zero, three seeds show no measurable effect.",
            "\n".join(lines),
            _count_verdicts(records),
        ]
    )


def _count_verdicts(records: Sequence[Record]) -> str:
    """Count the verdicts on Stage 2."""
    verdicts = [
        judge(*gain)
        for claim in CLAIMS
        for data in claim.datasets
        if (gain := measure_claim(records, claim, data, 2)) is not None
    ]
    counts = {verdict: verdicts.count(verdict) for verdict in ("as in the paper", "no measurable effect")}
    counts["the opposite"] = verdicts.count("the opposite")
    words = ", ".join(f"{verdict} {count}" for verdict, count in counts.items())
    return f"Of the {len(verdicts)} comparisons after Stage 2: {words}."


def _format_error_table(
    records: Sequence[Record],
    first: str,
    rows: Mapping[str, str],
    datasets: Sequence[str],
    published: tuple[str, Mapping[str, float]] | None = None,
) -> str:
    """Return a table of forward errors of both stages, one column for each data set and stage."""
    header = [first, *(f"{_TITLES[data]}, Stage {stage}" for data in datasets for stage in (1, 2))]
    lines = [
        [
            label,
            *(
                format_mean(collect_row_errors(records, build_row_name(data, name), stage))
                for data in datasets
                for stage in (1, 2)
            ),
        ]
        for label, name in rows.items()
    ]
    if published is not None:
        title, numbers = published
        header.append(title)
        for line in lines:
            line.append(f"{numbers[line[0]]:.2f}" if line[0] in numbers else NONE)
    return format_table(header, lines)


def _build_clusters_section(records: Sequence[Record]) -> str:
    theirs = {str(M): pair[0] for M, pair in paper.CLUSTERS.items()}
    return "\n\n".join(
        [
            "## Number of clusters M",
            _format_error_table(records, "M", CLUSTER_ROWS, WITHOUT_FLIES, ("paper, LS3D, Stage 1", theirs)),
        ]
    )


def _build_negatives_section(records: Sequence[Record]) -> str:
    theirs = {" + ".join(key): error for key, error in paper.NEGATIVES.items()}
    return "\n\n".join(
        [
            "## Negatives and correspondence",
            "Positive pairs come from clusters (two images) or only from deformations of one image "
            "(equivariance). Negatives are keypoints of other clusters in the other image, or other "
            "positions in the same image.",
            _format_error_table(
                records, "negatives + positives", NEGATIVE_ROWS, tuple(DATA), ("paper, LS3D, Stage 1", theirs)
            ),
        ]
    )


def _build_detectors_section(records: Sequence[Record]) -> str:
    theirs = {name: pair[0] for name, pair in paper.DETECTORS.items()}
    return "\n\n".join(
        [
            "## First keypoints",
            "The paper contradicts itself here: its 3.25 with SuperPoint is 3.32 in its table on flipping.",
            _format_error_table(
                records, "detector", DETECTOR_ROWS, (FACES,), ("paper, CelebA, Stage 1", theirs)
            ),
        ]
    )


def _build_stages_section(records: Sequence[Record]) -> str:
    lines = []
    for data, title in _TITLES.items():
        rows = [record for record in records if record["row"] == build_row_name(data, "base")]
        points = [record["stage1"]["points_per_image"] for record in rows]
        guess = f"{rows[0]['stage1']['guessing_forward']:.2f}" if rows else NONE
        errors = [
            format_mean(collect_row_errors(records, build_row_name(data, "base"), stage)) for stage in (1, 2)
        ]
        lines.append([title, format_mean(points, 1), *errors, guess])
    longer = format_mean(collect_row_errors(records, build_row_name(FACES, "stage2-longer"), 2))
    return "\n\n".join(
        [
            "## Stage 1 and Stage 2",
            format_table(["data", "landmarks found, Stage 1", "Stage 1", "Stage 2", "guessing"], lines),
            f"With twice as many iterations of Stage 2, faces have {longer}: longer training does not help.",
        ]
    )


def _build_flipping_section(records: Sequence[Record]) -> str:
    lines = []
    for label, name in (*FLIPPING_ROWS.items(), ("train", "base")):
        reading = "not mirrored" if label == "train" else READING
        cells = [
            format_mean(collect_row_errors(records, build_row_name(data, name), stage, reading))
            for data in DATA
            for stage in (1, 2)
        ]
        theirs = [f"{error:.2f}" for error in paper.FLIPPING.get(label, ())] or [NONE, NONE]
        lines.append([label, *cells, *theirs])
    order = ("none", "train", "train and test", "the same, own partners")
    lines.sort(key=lambda line: order.index(line[0]))
    header = [f"{_TITLES[data]}, Stage {stage}" for data in DATA for stage in (1, 2)]
    unpaired = ", ".join(
        f"{_TITLES[data]} {' '.join(str(record['unpaired']) for record in rows)}"
        for data in DATA
        if (rows := [record for record in records if record["row"] == build_row_name(data, "base")])
    )
    return "\n\n".join(
        [
            "## Flipping",
            "*Train and test* leaves landmarks without a mirror partner out of mirrored images. *Own "
            "partners* treats them as their own partners instead, as selfmark 0.1 did. *Train* is the "
            "network of *train and test*, read without the mirror image. Landmarks without a partner, by "
            f"seed: {unpaired}.",
            format_table(["flipping", *header, "paper, LS3D, Stage 1", "paper, Stage 2"], lines),
        ]
    )


def _build_real_points_section(records: Sequence[Record]) -> str:
    return "\n\n".join(
        [
            "## Fraction of real points among the first keypoints",
            "As in the paper's synthetic initialization, every image starts from 15 points, and K = 15. Real "
            "points are annotated points, moved by up to 3 px in an image of 256 px; the others are random. "
            "The paper shows curves without numbers. Its text says that 20 % real points still work, and "
            "that more than 40 % reduce the error only slightly.",
            _format_error_table(records, "real points", REAL_POINT_ROWS, (FACES,)),
        ]
    )


def _build_paper_settings_section(records: Sequence[Record]) -> str:
    names = ("base", *(f"paper-{group}" for group in (*PAPER_SETTINGS, "all", "loss-equivariance")))
    errors = {
        name: collect_row_errors(records, build_row_name(FACES, name), 2, _find_own_reading(name))
        for name in names
    }
    complete = {name: values for name, values in errors.items() if len(values) == len(SEEDS)}
    # Rows that share one spread over seeds. The seeds of paper-all differ much more.
    similar = [name for name in complete if name != "paper-all"]
    rows = []
    for name in names[1:]:
        cells = [NONE, NONE]
        if {"base", name} <= set(complete):
            pooled_names = similar if name in similar else ["base", name]
            pooled_errors = np.array([complete[row] for row in pooled_names])
            change, half_width = compare_rows(
                pooled_errors, pooled_names.index("base"), pooled_names.index(name)
            )
            cells = [format_mean(complete[name]), f"{change:+.2f} ± {half_width:.2f}"]
        settings = PAPER_SETTINGS.get(name.removeprefix("paper-"), {})
        text = ", ".join(f"`{key}={_format_value(value)}`" for key, value in settings.items())
        rows.append([name.removeprefix("paper-"), text or _COMBINATIONS[name], *cells])
    lines = format_table(["group", "settings", "Stage 2", "change"], rows).splitlines()
    lines[1] = "| --- | --- | ---: | ---: |"
    return "\n\n".join(
        [
            "## Settings of the preset `paper`",
            "The preset `tiny` differs from `paper` in these settings. `fast` differs in all of them except "
            "`heatmaps.sigma`, `heatmaps.threshold` and `stage2.backbone_lr`. Each row changes one group of "
            "them to the values of `paper`, on faces. The change is relative to the error with none of "
            f"them ({format_mean(errors['base'])}), with a 95 % confidence interval; positive means worse. "
            "The interval uses one spread over seeds for all rows, except for `all`, whose seeds differ much "
            "more.",
            "\n".join(lines),
        ]
    )


_COMBINATIONS = {
    "paper-all": "all of the above",
    "paper-loss-equivariance": "`loss` above, with positive pairs from deformations only",
}


def _find_own_reading(name: str) -> str:
    """Return how the network of a row reads heatmaps: as `tiny` does, unless the row changes it."""
    return "cell" if name in ("paper-targets", "paper-all") else READING


def _format_value(value: object) -> str:
    return str(value).replace(" ", "")


def _build_readings_section(records: Sequence[Record]) -> str:
    lines = []
    for data, title in _TITLES.items():
        for name in ("base", "flip-none"):
            rows = [record for record in records if record["row"] == build_row_name(data, name)]
            for reading in ("cell", "quarter", "parabola", "centroid"):
                values = {
                    figure: [get_stage2_value(record, figure, reading) for record in rows]
                    for figure in ("forward", "backward", "guessing_backward", "hits", "spread")
                }
                ratio = [
                    error / guess
                    for error, guess in zip(values["backward"], values["guessing_backward"], strict=True)
                ]
                flipped = "yes" if name == "base" else "no"
                lines.append(
                    [
                        title,
                        flipped,
                        reading,
                        format_mean(values["forward"]),
                        format_mean(values["backward"]),
                        format_mean(values["guessing_backward"]),
                        format_mean(ratio),
                        format_mean(values["hits"], 1),
                        format_mean(values["spread"]),
                    ]
                )
    header = ["data", "flipping", "reading", "forward", "backward", "guessing", "backward / guessing"]
    return "\n\n".join(
        [
            "## Reading a heatmap",
            "The heatmaps of the same networks of Stage 2 are read in four ways: the highest *cell*, a "
            "*quarter* of a cell toward its higher neighbor, the peak of a *parabola*, or the *centroid*. "
            "*Hits* are annotated points within 6 px (in an image of 128 px) of the raw landmark that is "
            "matched to them, in percent. *Spread* is how far landmarks move from image to image, divided "
            "by how far the annotated points move.",
            format_table([*header, "hits", "spread"], lines),
            _describe_readings(records),
        ]
    )


def _describe_readings(records: Sequence[Record]) -> str:
    """Count in how many runs of each data set the centroid is better than the parabola."""
    sentences = []
    for data, title in _TITLES.items():
        rows = [record for record in records if record["data"] == data]
        if not rows:
            continue
        lower_error = sum(
            get_stage2_value(row, "forward", "centroid") < get_stage2_value(row, "forward", "parabola")
            for row in rows
        )
        more_hits = sum(
            get_stage2_value(row, "hits", "centroid") > get_stage2_value(row, "hits", "parabola")
            for row in rows
        )
        sentences.append(
            f"{title}: lower forward error in {lower_error} of {len(rows)} runs, more hits in {more_hits}"
        )
    return f"The centroid compared with the parabola, over all runs of this page: {'; '.join(sentences)}."
