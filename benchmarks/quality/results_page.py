"""docs/results/quality.md: the results on every data set, beside what was to be reached."""

from __future__ import annotations

from dataclasses import dataclass

from again import command, how_to_make
from figures import NONE, Quality, change, mean, shown, table, values
from rows import RESULTS, RIDGES, Declared, by_name


@dataclass(frozen=True)
class Target:
    """What a figure of Stage 2 was to reach; `share`: of the mean shape's error instead of a percentage."""

    row: str
    field: str
    ridge: float
    most: float
    share: bool = False


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
    *(Target(f"birds-{name}", "forward", 0.01, 0.6, share=True) for name in ("30", "side-20", "side-30")),
)


def results_page(quality: Quality) -> str:
    """docs/results/quality.md."""
    parts = [_introduction(quality), _errors(quality), _targets(quality)]
    parts += [_by_field(quality, "yaw_bucket", "By yaw", "faces-yt68, degrees as estimated by the data set.")]
    parts += [
        _by_field(quality, "pose", "By pose", "faces-mtfl-aflw: 1 left profile, 3 frontal, 5 right profile.")
    ]
    parts += [_film(quality), _notes(quality), _commands()]
    return "\n\n".join(part for part in parts if part) + "\n"


def _introduction(quality: Quality) -> str:
    machines = sorted({row["hardware"] for row in quality["rows"]})
    return (
        "# Results\n\n"
        "<!-- made by benchmarks/quality/quality_pages.py from quality.json: edit there -->\n\n"
        f"Each row is `selfmark discover` and `selfmark evaluate` by `benchmarks/quality/run.py` on "
        f"{' and '.join(machines) or 'no machine yet'}. Errors are percentages, of the root of the box's "
        "area unless said otherwise, with regressors fitted on all training images; `ridge` is the factor on "
        "the largest entry of X'X. The paper names none; the authors' program has 0.001 for forward errors "
        "on CelebA, 0.1 for those on LS3D and for backward errors. Several seeds are given "
        "as mean ± sample standard deviation, one seed as it is. The mean shape is what "
        "guessing gives: the mean annotated points for every image (forward), the mean landmarks for every "
        "image (backward). A backward error must be read beside the latter, for landmarks that hardly move "
        "are easy to predict. Minutes are those of `discover`; the last column says how many runs shared the "
        "machine, seed by seed.\n\n"
        f"{how_to_make('ROW is what the first column says')}"
    )


def _errors(quality: Quality) -> str:
    header = ["row", "data", "K", "M", "seeds", "stage", *(f"forward, ridge {ridge:g}" for ridge in RIDGES)]
    header += [
        "backward, ridge 0.01",
        "mean shape forward",
        "mean shape backward",
        "points per image",
        "on",
        "minutes",
        "at once",
    ]
    rows = [_row(quality, declared, stage) for declared in RESULTS for stage in (1, 2)]
    return "## Errors\n\n" + table(header, rows)


def _row(quality: Quality, declared: Declared, stage: int) -> list[str]:
    name, settings = declared.name, declared.settings
    done = len(values(quality, name, "seed", stage))
    return [
        name,
        declared.data,
        str(settings["K"]),
        str(settings["M"]),
        str(done) if done else NONE,
        str(stage),
        *(shown(values(quality, name, "forward", stage, ridge)) for ridge in RIDGES),
        shown(values(quality, name, "backward", stage)),
        shown(values(quality, name, "mean_shape", stage)[:1]),
        shown(values(quality, name, "mean_shape_backward", stage)),
        shown(values(quality, name, "points_per_image", stage), 1),
        ", ".join(sorted({row["hardware"] for row in quality["rows"] if row["name"] == name})) or NONE,
        shown(values(quality, name, "minutes", stage), 1),
        ", ".join(_at_once(quality, declared)) or NONE,
    ]


def _at_once(quality: Quality, declared: Declared) -> list[str]:
    """How many runs shared the machine, for every seed; once where it is the same for all."""
    runs = [quality["runs"][name] for name in declared.runs() if name in quality["runs"]]
    shared = [str(run["processes"]) for run in runs if "processes" in run]
    return shared[:1] if len(set(shared)) == 1 else shared


def _targets(quality: Quality) -> str:
    rows = []
    for target in TARGETS:
        found = mean(values(quality, target.row, target.field, ridge=target.ridge))
        shape = mean(values(quality, target.row, "mean_shape", ridge=target.ridge))
        if found is not None and target.share:
            found = found / shape if shape else None
        unit = " of the mean shape" if target.share else " min" if target.field == "minutes" else ""
        what = f"{target.field}, ridge {target.ridge:g}" if target.field != "minutes" else "minutes"
        reached = NONE if found is None else "yes" if found <= target.most else "no"
        rows.append(
            [target.row, what, f"{target.most:g}{unit}", NONE if found is None else f"{found:.2f}", reached]
        )
    return "## What was to be reached\n\n" + table(
        ["row", "figure of stage 2", "at most", "found", "reached"], rows
    )


def _by_field(quality: Quality, field: str, title: str, words: str) -> str:
    """Errors of each group, means over the seeds of a row."""
    parts: dict[str, list[dict[str, dict[str, float]]]] = {}
    for declared in RESULTS:
        runs = [quality["runs"][name] for name in declared.runs() if name in quality["runs"]]
        groups = [run["by"][field] for run in runs if field in run["by"]]
        if groups:
            parts[declared.name] = groups
    if not parts:
        return ""
    names = list(next(iter(parts.values()))[0])
    images = next(iter(parts.values()))[0]
    rows = [
        [row, way, *(shown([group[name][way] for group in groups if name in group]) for name in names)]
        for row, groups in parts.items()
        for way in ("forward", "backward")
    ]
    header = ["row", "error", *(f"{name} ({images[name]['images']:.0f} images)" for name in names)]
    return f"## {title}\n\n{words} Stage 2, ridge 0.01.\n\n" + table(header, rows)


# --- films -----------------------------------------------------------------------------------------------

_MOTION = {
    "median_from_flow": "from where flow leads, median, % of side",
    "jumps": "jumps (> 5 % of side), share",
    "on_animal": "on the animal, share",
}


# A row without temporal pairs, and one with them that shares all else.
_FILMS = (
    ("flies", "flies-temporal"),
    ("mouse", "mouse-temporal"),
    ("flies-tiny", "flies-tiny-temporal"),
    ("flies-tiny", "flies-tiny-far"),
)


def _film(quality: Quality) -> str:
    names = dict.fromkeys(name for pair in _FILMS for name in pair)
    rows = [[name, *(shown(_motion(quality, name, key), 3) for key in _MOTION)] for name in names]
    sentences = [
        f"`{temporal}` beside `{plain}`: {_changes(quality, plain, temporal) or 'not run yet'}."
        for plain, temporal in _FILMS
    ]
    return "\n\n".join(
        [
            "## Films, with and without temporal pairs",
            "On consecutive frames that were not trained on: how far a landmark is from where optical flow "
            "carries the spot under it, as a share of the network image's side; how often that is a jump; "
            "and how many landmarks lie on the animal (by brightness). `flies-tiny-far` pairs frames up to "
            "30 apart, the others with temporal pairs up to 5.",
            table(["row", *_MOTION.values()], rows),
            *sentences,
        ]
    )


def _motion(quality: Quality, name: str, key: str) -> list[float]:
    """A figure of the film for every seed of a row."""
    runs = by_name(name).runs()
    return [quality["runs"][run]["motion"][key] for run in runs if run in quality["runs"]]


def _changes(quality: Quality, plain: str, temporal: str) -> str:
    """What temporal pairs change, beside what another seed changes; empty before both rows are there."""
    flow = [_motion(quality, name, "median_from_flow") for name in (plain, temporal)]
    errors = {
        f"the {field} error of Stage {stage}": [
            values(quality, name, field, stage) for name in (plain, temporal)
        ]
        for field, stage in (("forward", 1), ("forward", 2), ("backward", 2))
    }
    if not all(numbers for pair in (flow, *errors.values()) for numbers in pair):
        return ""
    changes = [f"the distance from flow {change(*flow, digits=3)}"]
    return "; ".join(changes + [f"{what} {change(*pair)}" for what, pair in errors.items()])


def _notes(quality: Quality) -> str:
    notes = {run["data"]: run["note"] for run in quality["runs"].values() if run.get("note")}
    return "## Notes\n\n" + "\n".join(f"- {data}: {note}." for data, note in notes.items()) if notes else ""


def _commands() -> str:
    """What each row asks `selfmark discover` for."""
    lines = [f"| `{one.name}` | `{command(one)}` |" for one in RESULTS]
    return (
        "## Commands\n\n"
        "What `run.py` asks for, as a command: of the first seed, `--seed 1` and so on for the others. It is "
        "followed by `selfmark evaluate` with `--labels` and `--train-labels`, `--set fit_images=[]`, `--set "
        "draws=1`. Boxes around flies and mice are in COCO files that `sets.py` writes beside the data.\n\n"
        "| row | command |\n| --- | --- |\n" + "\n".join(lines)
    )
