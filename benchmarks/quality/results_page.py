"""Build docs/results/quality.md: the results on every data set, compared with the targets."""

from __future__ import annotations

from dataclasses import dataclass

from commands import build_discover_command, describe_reproduction
from experiments import RESULTS, RIDGES, Experiment, find_experiment
from quality_data import DATASETS
from summaries import NONE, Quality, collect_values, compute_mean, describe_change, format_mean, format_table


@dataclass(frozen=True)
class Target:
    """Upper limit for one number of Stage 2.

    Attributes:
        row: Name of the row.
        field: Field of the row: "forward", "backward" or "minutes".
        ridge: Ridge of the regressor.
        maximum: The limit, in percent or minutes; if `is_relative`, as a fraction of the mean shape's error.
        is_relative: Whether the number is divided by the error of the mean shape.
    """

    row: str
    field: str
    ridge: float
    maximum: float
    is_relative: bool = False


TARGETS = (
    Target("yt68-superpoint", "forward", 0.01, 3.0),
    Target("yt68-superpoint", "forward", 0.1, 3.2),
    Target("yt68-superpoint", "backward", 0.01, 6.5),
    Target("yt68-superpoint", "minutes", 0.01, 10.0),
    Target("yt68-selfmark", "forward", 0.01, 3.3),
    *(
        Target(f"aflw-{name}", "forward", ridge, 7.0)
        for name in ("selfmark", "longer")
        for ridge in (0.01, 0.001)
    ),
    *(
        Target(f"birds-{name}", "forward", 0.01, 0.6, is_relative=True)
        for name in ("30", "side-20", "side-30")
    ),
)


def build_results_page(quality: Quality) -> str:
    """Return docs/results/quality.md."""
    sections = [
        _build_introduction_section(quality),
        _build_conditions_section(),
        _build_errors_section(quality),
        _build_targets_section(quality),
        _build_breakdown_section(
            quality, "yaw_bucket", "By yaw", "faces-yt68, degrees as estimated by the data set."
        ),
        _build_breakdown_section(
            quality, "pose", "By pose", "faces-mtfl-aflw: 1 left profile, 3 frontal, 5 right profile."
        ),
        _build_videos_section(quality),
        _build_notes_section(quality),
        _build_commands_section(),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _build_introduction_section(quality: Quality) -> str:
    machines = sorted({row["hardware"] for row in quality["rows"]})
    return (
        "# Results\n\n"
        "<!-- made by benchmarks/quality/quality_pages.py from quality.json; do not edit -->\n\n"
        "This page has the errors of runs without [features](../features.md). `benchmarks/quality/run.py` "
        "computes each row with `selfmark discover` and `selfmark evaluate`. Hardware: "
        f"{'; '.join(machines) or 'no machine yet'}.\n\n"
        "- Errors are percentages of a length that depends on the data set ([Conditions](#conditions)). "
        "Regressors are fitted on all labeled training images, without random draws. The headline numbers of "
        "this project use ridge 0.01.\n"
        "- `ridge` is relative to the largest entry of X'X. The paper does not give it; the authors' "
        "program uses 0.001 for forward errors on CelebA, and 0.1 for forward errors on LS3D and for all "
        "backward errors.\n"
        "- Several seeds are given as mean ± sample standard deviation.\n"
        "- The mean shape columns give the error of *guessing*: predicting the mean annotated points "
        "(forward) or the mean landmarks (backward) for every image. Compare a backward error with that of "
        "guessing, because landmarks that hardly move are easy to predict."
        f"{_describe_missing_guesses(quality)}\n"
        "- Minutes are the time of `discover`. The last column says how many runs shared the machine, for "
        "each seed.\n\n"
        f"{describe_reproduction('ROW is the name in the first column')}"
    )


def _describe_missing_guesses(quality: Quality) -> str:
    """Describe which numbers are missing in quality.json because old runs did not record them."""
    stage1 = [row for row in quality["rows"] if row["stage"] == 1]
    sentences = []
    if not any("mean_shape_backward" in row for row in stage1):
        sentences.append(
            "For Stage 1, the backward error of guessing was not recorded (a dash). In Stage 1, landmarks "
            "that were not found are filled in, which makes them easy to predict. The backward error of the "
            "found landmarks alone was not recorded either."
        )
    if not any(run.get("inter_ocular") for run in quality["runs"].values()):
        sentences.append("Inter-ocular errors of faces-yt68 were not recorded.")
    return "".join(f" {sentence}" for sentence in sentences)


def _build_conditions_section() -> str:
    """Build the section on crops, normalizers, labels and the choice of settings of each row."""
    rows_by_condition: dict[tuple[str, str], list[str]] = {}
    for experiment in RESULTS:
        rows_by_condition.setdefault((experiment.data, experiment.tuned_on_test), []).append(experiment.name)
    lines = ["| rows | crops | errors are percentages of | labels | settings chosen on test images? |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for (data, choice), names in rows_by_condition.items():
        dataset = DATASETS[data]
        cells = [", ".join(f"`{name}`" for name in names), dataset.crops, dataset.unit, dataset.label_source]
        lines.append("| " + " | ".join([*cells, choice]) + " |")
    return (
        "## Conditions\n\n"
        "Labels are used to fit regressors and to measure errors. Discovery uses them only where this "
        "table says that images are cropped by labels. In such crops, objects have about the same place "
        "and size, which makes both discovery and guessing easier. No images were set aside for choosing "
        "settings.\n\n" + "\n".join(lines)
    )


def _build_errors_section(quality: Quality) -> str:
    header = ["row", "data", "K", "M", "seeds", "stage", *(f"forward, ridge {ridge:g}" for ridge in RIDGES)]
    header += [
        "backward, ridge 0.01",
        "mean shape forward",
        "mean shape backward",
        "points per image",
        "hardware",
        "minutes",
        "concurrent runs",
    ]
    rows = [_format_row(quality, experiment, stage) for experiment in RESULTS for stage in (1, 2)]
    return "## Errors\n\n" + format_table(header, rows)


def _format_row(quality: Quality, experiment: Experiment, stage: int) -> list[str]:
    name, settings = experiment.name, experiment.settings
    num_seeds = len(collect_values(quality, name, "seed", stage))
    return [
        name,
        experiment.data,
        str(settings["K"]),
        str(settings["M"]),
        str(num_seeds) if num_seeds else NONE,
        str(stage),
        *(format_mean(collect_values(quality, name, "forward", stage, ridge)) for ridge in RIDGES),
        format_mean(collect_values(quality, name, "backward", stage)),
        format_mean(collect_values(quality, name, "mean_shape", stage)[:1]),
        format_mean(collect_values(quality, name, "mean_shape_backward", stage)),
        format_mean(collect_values(quality, name, "points_per_image", stage), 1),
        ", ".join(sorted({row["hardware"] for row in quality["rows"] if row["name"] == name})) or NONE,
        format_mean(collect_values(quality, name, "minutes", stage), 1),
        ", ".join(_list_concurrent_runs(quality, experiment)) or NONE,
    ]


def _list_concurrent_runs(quality: Quality, experiment: Experiment) -> list[str]:
    """Return how many runs shared the machine for each seed, or one number if it is the same for all."""
    runs = [quality["runs"][name] for name in experiment.list_run_names() if name in quality["runs"]]
    process_counts = [str(run["processes"]) for run in runs if "processes" in run]
    return process_counts[:1] if len(set(process_counts)) == 1 else process_counts


def _build_targets_section(quality: Quality) -> str:
    rows = []
    for target in TARGETS:
        value = compute_mean(collect_values(quality, target.row, target.field, ridge=target.ridge))
        mean_shape = compute_mean(collect_values(quality, target.row, "mean_shape", ridge=target.ridge))
        if value is not None and target.is_relative:
            value = value / mean_shape if mean_shape else None
        if target.field == "minutes":
            label, unit = "minutes", " min"
        else:
            label = f"{target.field}, ridge {target.ridge:g}"
            unit = " of the mean shape" if target.is_relative else ""
        is_reached = "yes" if value is not None and value <= target.maximum else "no"
        rows.append(
            [
                target.row,
                label,
                f"{target.maximum:g}{unit}",
                NONE if value is None else f"{value:.2f}",
                _format_guess(quality, target),
                NONE if value is None else is_reached,
            ]
        )
    header = ["row", "result of Stage 2", "target", "measured", "guessing", "reached"]
    return "## Targets\n\nMeasured on test images.\n\n" + format_table(header, rows)


def _format_guess(quality: Quality, target: Target) -> str:
    """Format the error of the mean shape, forward or backward like the target."""
    if target.is_relative:
        return "1"
    fields = {"forward": "mean_shape", "backward": "mean_shape_backward"}
    if target.field not in fields:
        return NONE
    guess = compute_mean(collect_values(quality, target.row, fields[target.field], ridge=target.ridge))
    return NONE if guess is None else f"{guess:.2f}"


def _build_breakdown_section(quality: Quality, field: str, title: str, description: str) -> str:
    """Build a section with the errors of groups of images, averaged over the seeds of a row.

    Args:
        quality: Content of quality.json.
        field: Annotation field that divides the images into groups.
        title: Title of the section.
        description: First sentence of the section.
    """
    groups_by_row: dict[str, list[dict[str, dict[str, float]]]] = {}  # one dictionary per seed
    for experiment in RESULTS:
        runs = [quality["runs"][name] for name in experiment.list_run_names() if name in quality["runs"]]
        groups = [run["by"][field] for run in runs if field in run["by"]]
        if groups:
            groups_by_row[experiment.name] = groups
    if not groups_by_row:
        return ""
    first = next(iter(groups_by_row.values()))[0]
    rows = [
        [
            row,
            direction.replace("guessing_", "guessing, "),
            *(format_mean([group[name][direction] for group in groups if name in group]) for name in first),
        ]
        for row, groups in groups_by_row.items()
        for direction in ("forward", "guessing_forward", "backward", "guessing_backward")
        if all(direction in group for table in groups for group in table.values())
    ]
    header = ["row", "error", *(f"{name} ({group['images']:.0f} images)" for name, group in first.items())]
    has_guesses = any(row[1].startswith("guessing") for row in rows)
    missing_note = "" if has_guesses else " The errors of guessing were not recorded for these groups."
    return f"## {title}\n\n{description} Stage 2, ridge 0.01.{missing_note}\n\n" + format_table(header, rows)


# --- videos ----------------------------------------------------------------------------------------------

_MOTION = {
    "median_from_flow": "median distance from optical flow, % of side",
    "jumps": "fraction of jumps (> 5 % of side)",
    "on_animal": "fraction on the animal",
}


# Each entry names a row without temporal pairs, and a row that differs from this one only by temporal pairs.
_VIDEOS = (
    ("flies", "flies-temporal"),
    ("mouse", "mouse-temporal"),
    ("flies-tiny", "flies-tiny-temporal"),
    ("flies-tiny", "flies-tiny-far"),
)


def _build_videos_section(quality: Quality) -> str:
    names = dict.fromkeys(name for pair in _VIDEOS for name in pair)
    rows = [
        [name, *(format_mean(_collect_motion(quality, name, key), 3) for key in _MOTION)] for name in names
    ]
    changes = {pair: _describe_changes(quality, *pair) or "not run yet" for pair in _VIDEOS}
    sentences = [
        f"`{temporal}` compared with `{plain}`: {change}." for (plain, temporal), change in changes.items()
    ]
    return "\n\n".join(
        [
            "## Videos with and without temporal pairs",
            "These numbers are for consecutive frames that were not used in training. Optical flow predicts "
            "where the image content under a landmark moves. The table shows how far the landmark in the "
            "next frame is from that position, in percent of the side of the network's input; how often it "
            "jumps; and how many landmarks lie on the animal, judged by brightness. `flies-tiny-far` pairs "
            "frames up to 30 frames apart, the other rows with temporal pairs up to 5.",
            format_table(["row", *_MOTION.values()], rows),
            *sentences,
        ]
    )


def _collect_motion(quality: Quality, name: str, key: str) -> list[float]:
    """Return one number of the motion measurement for every seed of a row that has been run."""
    runs = find_experiment(name).list_run_names()
    return [quality["runs"][run]["motion"][key] for run in runs if run in quality["runs"]]


def _describe_changes(quality: Quality, plain: str, temporal: str) -> str:
    """Describe the effect of temporal pairs; empty unless both rows have been run."""
    flow = [_collect_motion(quality, name, "median_from_flow") for name in (plain, temporal)]
    errors = {
        f"the {field} error of Stage {stage}": [
            collect_values(quality, name, field, stage) for name in (plain, temporal)
        ]
        for field, stage in (("forward", 1), ("forward", 2), ("backward", 2))
    }
    if not all(numbers for pair in (flow, *errors.values()) for numbers in pair):
        return ""
    changes = [f"the distance from flow {describe_change(*flow, digits=3)}"]
    changes += [f"{label} {describe_change(*pair)}" for label, pair in errors.items()]
    guesses = [
        compute_mean(collect_values(quality, name, "mean_shape_backward")) for name in (plain, temporal)
    ]
    if None not in guesses:
        changes[-1] += f" (guessing: {guesses[0]:.2f} and {guesses[1]:.2f})"
    return "; ".join(changes)


def _build_notes_section(quality: Quality) -> str:
    notes = {run["data"]: DATASETS[run["data"]].note for run in quality["runs"].values() if run.get("note")}
    return "## Notes\n\n" + "\n".join(f"- {data}: {note}." for data, note in notes.items()) if notes else ""


def _build_commands_section() -> str:
    """Build the section with the `selfmark discover` command of each row."""
    lines = [f"| `{experiment.name}` | `{build_discover_command(experiment)}` |" for experiment in RESULTS]
    return (
        "## Commands\n\n"
        "These commands are equivalent to `run.py` for the first seed; use `--seed 1` and so on for the "
        "others. `run.py` then runs `selfmark evaluate` with `--labels` and `--train-labels`, `--set "
        "fit_images=[]` and `--set draws=1`. The boxes around flies and mice are in COCO files that "
        "`quality_data.py` writes next to the data.\n\n"
        "| row | command |\n| --- | --- |\n" + "\n".join(lines)
    )
