"""Test the results pages: compare them with numbers computed by hand and with the committed quality.json."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from selfmark.config import override, preset
from selfmark.run_plan import RunInputs, RunOptions, resolve_config

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def scripts() -> Iterator[None]:
    folder = str(ROOT / "benchmarks" / "quality")
    sys.path.insert(0, folder)
    yield
    sys.path.remove(folder)


@pytest.fixture(scope="module")
def summaries(scripts: None) -> ModuleType:
    return import_module("summaries")


@pytest.fixture(scope="module")
def quality_pages(scripts: None) -> ModuleType:
    return import_module("quality_pages")


@pytest.fixture(scope="module")
def merge(scripts: None) -> ModuleType:
    return import_module("merge")


def _make_row(
    name: str, forward: float, seed: int = 0, stage: int = 1, ridge: float = 0.01, **more: Any
) -> Any:
    """Return a row of quality.json with these values, and made-up values in the other fields."""
    row = {"name": name, "run": f"{name}-s{seed}", "seed": seed, "stage": stage, "ridge": ridge}
    row |= {"forward": forward, "backward": 2 * forward, "mean_shape": 11.4, "minutes": 1.5}
    return row | {"hardware": "an abacus", "points_per_image": 20.0 if stage == 1 else 30} | more


def _make_example_quality() -> dict[str, Any]:
    clusters = {
        "clusters-30": 6.0,
        "clusters-50": 5.0,
        "short": 4.0,
        "clusters-250": 5.5,
        "clusters-500": 4.5,
    }
    rows = [_make_row(name, forward) for name, forward in clusters.items()]
    rows += [
        _make_row("short", 3.0, stage=2),
        _make_row("flip-train", 3.5, stage=2),
        _make_row("flip-none", 3.4, stage=2),
    ]
    rows += [_make_row("yt68-superpoint", error, seed, stage=2) for seed, error in enumerate((2.9, 3.0, 3.2))]
    rows += [_make_row("yt68-superpoint", 3.3, seed, stage=2, ridge=0.1) for seed in range(3)]
    rows += [_make_row("birds-side-20", 6.27, stage=2)]
    return {"runs": {}, "rows": rows}


def _find_row(page: str, label: str) -> list[str]:
    """Return the cells of the only table row whose first cell is `label`."""
    lines = [line for line in page.splitlines() if line.startswith(f"| {label} |")]
    assert len(lines) == 1, label
    return [cell.strip() for cell in lines[0].strip("|").split("|")]


def test_seeds_are_summarized_by_mean_and_sample_deviation(quality_pages: ModuleType) -> None:
    # 2.9, 3.0, 3.2: the mean is 9.1 / 3 = 3.0333, and the sample deviation is the square root of
    # (0.01778 + 0.00111 + 0.02778) / 2, which is 0.1528.
    page = quality_pages.build_pages(_make_example_quality())["quality.md"]
    stage2 = [line for line in page.splitlines() if line.startswith("| yt68-superpoint | faces-yt68")][1]
    assert "| 3 | 2 | 3.30 ± 0.00 | 3.03 ± 0.15 | — | 6.07 ± 0.31 | 11.40 |" in stage2


def test_targets_are_compared_with_results(quality_pages: ModuleType) -> None:
    page = quality_pages.build_pages(_make_example_quality())["quality.md"]
    assert "| yt68-superpoint | forward, ridge 0.01 | 3 | 3.03 | 11.40 | no |" in page
    assert "| yt68-superpoint | backward, ridge 0.01 | 6.5 | 6.07 | — | yes |" in page
    # 6.27 / 11.4 = 0.55. The target is an error of at most 0.6 times that of the mean shape.
    assert "| birds-side-20 | forward, ridge 0.01 | 0.6 of the mean shape | 0.55 | 1 | yes |" in page
    assert "| yt68-selfmark | forward, ridge 0.01 | 3.3 | — | — | — |" in page


def test_the_conditions_of_every_row_are_stated(scripts: None, quality_pages: ModuleType) -> None:
    page = quality_pages.build_pages(_make_example_quality())["quality.md"]
    section = page.partition("## Conditions\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    for experiment in import_module("experiments").RESULTS:
        (line,) = [line for line in lines if f"`{experiment.name}`" in line.split("|")[1]]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 5
        assert all(cells), experiment.name
        # Errors are usually divided by the length that the data set names. A row with another length says so.
        normalizer = import_module("quality_data").DATASETS[experiment.data].normalizer
        assert ("not the box that the data set names" in cells[2]) == bool(normalizer)


def test_guessing_errors_stand_beside_backward_errors_or_are_noted_as_missing(
    quality_pages: ModuleType,
) -> None:
    quality = _make_example_quality()
    page = quality_pages.build_pages(quality)["quality.md"]
    for missing in (
        "the backward error of guessing was not recorded",
        "Inter-ocular errors of faces-yt68 were not",
    ):
        assert missing in page.split("## ")[0]
    quality["rows"] = [row | {"mean_shape_backward": 12.5} for row in quality["rows"]]
    group = {"images": 5, "forward": 1.0, "backward": 2.0, "guessing_forward": 9.0, "guessing_backward": 8.0}
    quality["runs"]["yt68-superpoint-s0"] = {
        "by": {"yaw_bucket": {"0-30": group}},
        "data": "faces-yt68",
        "inter_ocular": {"eye_centers": {"forward": 4.0}},
    }
    pages = quality_pages.build_pages(quality)
    assert "not recorded" not in pages["quality.md"]
    group_without_guessing = {name: value for name, value in group.items() if "guessing" not in name}
    quality["runs"]["yt68-superpoint-s0"]["by"]["yaw_bucket"]["0-30"] = group_without_guessing
    assert "guessing were not recorded for these groups" in quality_pages.build_pages(quality)["quality.md"]
    assert "| yt68-superpoint | backward, ridge 0.01 | 6.5 | 6.07 | 12.50 | yes |" in pages["quality.md"]
    assert "\n| yt68-superpoint | guessing, backward | 8.00 |\n" in pages["quality.md"]
    assert _find_row(pages["ablations.md"], "250")[1:7] == ["clusters-250", "5.50", "11.00", "—", "—", "—"]
    assert _find_row(pages["ablations.md"], "100")[4:7] == ["3.00", "6.00", "12.50"]


def test_both_contradictory_numbers_of_the_paper_are_shown(quality_pages: ModuleType) -> None:
    page = quality_pages.build_pages(_make_example_quality())["ablations.md"]
    for title in ("First keypoints", "Stage 1 and Stage 2"):
        section = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
        assert "3.25" in section
        assert "3.32" in section


def test_the_order_of_rows_is_compared_with_the_paper(quality_pages: ModuleType) -> None:
    page = quality_pages.build_pages(_make_example_quality())["ablations.md"]
    assert _find_row(page, "250")[1:4] == ["clusters-250", "5.50", "11.00"]
    assert _find_row(page, "250")[-2:] == ["8.58", "6.26"]
    # Our ranks are 5 3 1 4 2, and the ranks in the paper are 5 2 1 3 4. The squared differences 0 1 0 1 4 add
    # up to 6, so the correlation is 1 - 6 x 6 / (5 x 24) = 0.7.
    assert (
        "By forward error of Stage 1, from best to worst: 100, 500, 50, 250, 30; in the paper: 100, 50, 250, "
        "500, 30. The same row is best; Spearman's rank correlation is 0.70." in page
    )


def test_flipping_at_test_time_has_its_own_row(quality_pages: ModuleType) -> None:
    page = quality_pages.build_pages(_make_example_quality())["ablations.md"]
    assert [_find_row(page, label)[3] for label in ("none", "train", "train and test")] == [
        "3.40",
        "3.50",
        "3.00",
    ]
    assert (
        "from best to worst: train and test, none, train; in the paper: train and test, train, none" in page
    )


def test_videos_are_summarized_over_seeds(quality_pages: ModuleType) -> None:
    quality = _make_example_quality()
    for name, flow, forward in (("flies", 0.2, 6.0), ("flies-temporal", 0.1, 6.1)):
        for seed, offset in enumerate((0.0, 0.03)):
            motion = {"median_from_flow": flow + offset, "jumps": 0.01, "on_animal": 0.5}
            quality["runs"][f"{name}-s{seed}"] = {"by": {}, "motion": motion, "data": "flies-pair-video"}
            quality["rows"] += [_make_row(name, forward + 10 * offset, seed, stage) for stage in (1, 2)]
    page = quality_pages.build_pages(quality)["quality.md"]
    # The mean of 0.2 and 0.23 is 0.215, and their sample deviation is 0.03 divided by the square root of 2.
    assert "\n| flies | 0.215 ± 0.021 | 0.010 ± 0.000 | 0.500 ± 0.000 |\n" in page
    assert "the distance from flow falls from 0.215 to 0.115, more than the spread over seeds (0.021)" in page
    assert "of Stage 2 rises from 6.15 to 6.25, less than the spread over seeds (0.21)" in page
    assert "`mouse-temporal` compared with `mouse`: not run yet." in page


def test_an_order_is_the_same_only_if_every_row_agrees(summaries: ModuleType) -> None:
    paper = {"a": 1.0, "b": 2.0, "c": 3.0}
    assert summaries.describe_ranking({"a": 7.0, "b": 8.0, "c": 9.0}, paper, "error").endswith(
        "The same order."
    )
    opposite = summaries.describe_ranking({"a": 9.0, "b": 8.0, "c": 7.0}, paper, "error")
    assert opposite.endswith("A different row is best; Spearman's rank correlation is -1.00.")
    assert "too few rows" in summaries.describe_ranking({"a": 1.0, "b": None, "x": 2.0}, paper, "error")


def test_a_repeated_run_replaces_the_published_one(merge: ModuleType) -> None:
    published = {
        "runs": {"short-s0": {"name": "short-s0"}, "yt68-superpoint-s1": {"name": "yt68-superpoint-s1"}},
        "rows": [
            _make_row("short", 4.0),
            _make_row("flip-train", 4.0, run="short-s0"),
            _make_row("yt68-superpoint", 3.0, 1),
        ],
    }
    repeated = {"run": {"name": "short-s0", "images": 7}, "rows": [_make_row("short", 3.9)]}
    merged = merge.merge(published, [repeated])
    # Rows have the order of the list of experiments: results before ablations. The row flip-train is gone,
    # because it was computed from the old run short-s0.
    assert [(row["name"], row["forward"]) for row in merged["rows"]] == [
        ("yt68-superpoint", 3.0),
        ("short", 3.9),
    ]
    assert merged["runs"]["short-s0"]["images"] == 7


def test_trial_runs_are_not_merged(merge: ModuleType) -> None:
    trial = {"run": {"name": "short-s0"}, "rows": [_make_row("short", 3.9, smoke=True)]}
    with pytest.raises(SystemExit, match="smoke"):
        merge.merge({"runs": {}, "rows": []}, [trial])


def test_the_committed_pages_match_the_committed_json(quality_pages: ModuleType) -> None:
    for name, page in quality_pages.build_pages(_read_published()).items():
        written = (RESULTS / name).read_text(encoding="utf-8")
        assert written == page, "run: python benchmarks/quality/quality_pages.py"


def _read_published() -> dict[str, Any]:
    published: dict[str, Any] = json.loads((RESULTS / "quality.json").read_text(encoding="utf-8"))
    return published


def test_the_page_of_first_keypoints_matches_its_json(scripts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))  # The script also imports from `training`.
    record = json.loads((RESULTS / "keypoints.json").read_text(encoding="utf-8"))
    page = import_module("keypoints").build_page(record)
    assert (RESULTS / "keypoints.md").read_text(encoding="utf-8") == page


def test_every_experiment_is_published(scripts: None) -> None:
    experiments = import_module("experiments")
    published = _read_published()
    published_rows = {(row["name"], row["seed"], row["stage"], row["ridge"]) for row in published["rows"]}
    for experiment in experiments.EXPERIMENTS:
        for seed, run in zip(experiment.seeds, experiment.list_run_names(), strict=True):
            assert published["runs"][run]["digest"] == experiment.compute_digest(), (
                f"{run} has other settings"
            )
            for name in (experiment.name, *experiment.variants):
                assert {
                    (name, seed, stage, ridge) for stage in (1, 2) for ridge in experiments.RIDGES
                } <= published_rows


def test_every_row_has_all_fields() -> None:
    required = {"data", "k", "m", "keypoints", "preset", "seed", "stage", "ridge", "forward", "backward"}
    required |= {"mean_shape", "minutes", "hardware", "commit"}
    rows = _read_published()["rows"]
    assert rows
    for row in rows:
        assert required <= set(row)
        assert 0 < row["forward"] < row["mean_shape"], "a published row is worse than guessing"


def test_every_row_of_the_pages_can_be_recomputed(scripts: None, tmp_path: Path) -> None:
    run = import_module("run")
    names = {row["name"] for row in _read_published()["rows"]}
    assert "flip-train" in names
    for name in names:
        assert run.find_missing(run.select_runs([name]), tmp_path, again=True), name
        assert not run.find_missing(run.select_runs([name]), tmp_path, again=False), (
            "published runs are not repeated"
        )
    for page in ("quality.md", "ablations.md"):
        assert "run.py --data-folder DATA --weights-folder WEIGHTS --out made --again --only ROW" in (
            RESULTS / page
        ).read_text(encoding="utf-8")


def test_commands_on_the_page_have_the_settings_of_the_experiments(scripts: None) -> None:
    experiments, commands = import_module("experiments"), import_module("commands")
    from typer.main import get_command

    from selfmark.cli.entry import app
    from selfmark.cli.options import parse_settings

    discover = get_command(app).commands["discover"]  # type: ignore[attr-defined]
    for experiment in experiments.RESULTS:
        words = shlex.split(commands.build_discover_command(experiment))
        options = discover.make_context("discover", words[2:]).params
        settings = parse_settings(options["overrides"]) | {"K": options["landmarks"]}
        parsed = override(preset(options["preset"]), settings)
        expected = override(preset(experiment.preset), experiment.settings)
        assert replace(parsed, evaluation=expected.evaluation) == expected, experiment.name
        assert options["seed"] == experiment.seeds[0]


def test_iterations_of_experiments_do_not_depend_on_the_number_of_images(scripts: None) -> None:
    """Runs must have the iterations that their digest describes, whatever the size of the data set."""
    experiments = (
        *import_module("experiments").EXPERIMENTS,
        *import_module("claim_experiments").CLAIM_EXPERIMENTS,
    )
    for experiment in experiments:
        options = RunOptions(preset=experiment.preset, settings=dict(experiment.settings))
        config, _ = resolve_config(RunInputs([]), options, 10_000, torch.device("cpu"))
        assert config == override(preset(experiment.preset), experiment.settings), experiment.name


def test_backward_errors_stand_beside_their_guesses(summaries: ModuleType) -> None:
    quality = _read_published()
    fields = ("forward", "mean_shape", "backward", "mean_shape_backward")
    rows = {
        "expect.md": {
            "| faces-yt68, 68 points, K=30, 3 seeds | fast, SuperPoint |": "yt68-superpoint",
            "| faces-yt68, 68 points, K=30, 3 seeds | fast, our own |": "yt68-selfmark",
            "| faces-mtfl-aflw, 5 points, K=10, 10,000 images |": "aflw-selfmark",
            "| flies-pair-video, 24 points, K=10, 3 seeds |": "flies",
            "| mouse-openfield, 4 points, K=10 |": "mouse",
            "| birds-cub, 159 species, 15 points, K=30 |": "birds-side-30",
        },
        "keypoints.md": {"| our own | ": "yt68-selfmark", "| SuperPoint | ": "yt68-superpoint"},
    }
    for name, names in rows.items():
        page = _read_page(f"docs/{name}")
        for start, row in names.items():
            values = [summaries.collect_values(quality, row, field) for field in fields]
            values[1] = values[1][:1]  # The error of the mean shape is the same for all seeds.
            assert _find_cells(page, start)[-4:] == [summaries.format_mean(numbers) for numbers in values]
    page = _read_page("docs/expect.md")
    aflw_error = summaries.format_mean(
        summaries.collect_values(quality, "aflw-selfmark", "forward", ridge=0.001)
    )
    assert f"error is {aflw_error} with the ridge that the authors' program has for five points" in page
    (demo,) = _read_demo_rows()
    assert f"has a backward error of {demo['backward']} (guessing {demo['mean_shape_backward']})" in page


def test_errors_with_temporal_pairs_match_the_published_rows(summaries: ModuleType) -> None:
    quality, page = _read_published(), _read_page("docs/video.md")
    rows = {
        "| forward error, Stage 1, % |": ("forward", 1),
        "| forward error, Stage 2, % |": ("forward", 2),
        "| backward error, Stage 2, % |": ("backward", 2),
        "| backward error of guessing, Stage 2, % |": ("mean_shape_backward", 2),
    }
    for start, (field, stage) in rows.items():
        for cell, name in zip(_find_cells(page, start)[1:], ("flies", "mouse", "flies-tiny"), strict=True):
            before, after = (
                summaries.compute_mean(summaries.collect_values(quality, row, field, stage))
                for row in (name, f"{name}-temporal")
            )
            assert cell.partition(",")[0] == f"{before:.2f} to {after:.2f}"
    for cell, name in zip(
        _find_cells(page, "| forward error of guessing, % |")[1:],
        ("flies", "mouse", "flies-tiny"),
        strict=True,
    ):
        for row in (name, f"{name}-temporal"):
            assert cell == f"{summaries.collect_values(quality, row, 'mean_shape')[0]:.2f} for both"


def test_errors_of_int8_match_the_published_rows() -> None:
    speed = json.loads((RESULTS / "predict_cpu.json").read_text(encoding="utf-8"))
    values = {row["name"]: row["value"] for row in speed["rows"]}
    page = _read_page("docs/prediction.md")
    faces = _read_default_rows("faces-yt68", "2 cores", 10)[0]
    guesses = {"toy": _read_demo_rows()[0]["mean_shape"], "tiny": faces["guessing_forward"]}
    for start, name in {"| the demo's toy animal, without": "toy", "| faces-yt68, `tiny`": "tiny"}.items():
        errors = [values[f"predict_cpu_{name}_{kind}_forward"] for kind in ("float32", "int8")]
        assert _find_cells(page, start)[1:4] == [f"{value:.2f}" for value in (*errors, guesses[name])]


# Rows of the tables in README.md and docs/expect.md. Each entry has the row's beginning, the data set and K.
README_ROWS = [
    ("| 3,095 faces <sup>1</sup> | 30 |", "faces-yt68", 30),
    ("| 10,000 faces, also from the side <sup>2</sup> | 10 |", "faces-mtfl-aflw", 10),
    ("| 4,765 birds of 159 species <sup>3</sup> | 30 |", "birds-cub", 30),
    ("| 880 video frames of two flies <sup>4</sup> | 10 |", "flies-pair-video", 10),
    ("| 1,956 video frames of a mouse <sup>5</sup> | 10 |", "mouse-openfield", 10),
    ("| 60 flies from above <sup>6</sup> | 16 |", "flies-dpk", 16),
]
EXPECT_ROWS = [
    ("| 3,095 faces, 30 | H200, ", "faces-yt68", 30),
    ("| 10,000 faces, also from the side, 10 | H200, ", "faces-mtfl-aflw", 10),
    ("| 4,765 birds of 159 species from all sides, 30 | H200, ", "birds-cub", 30),
    ("| 880 video frames of two flies from above, 10 | H200, ", "flies-pair-video", 10),
    ("| 1,956 video frames of a mouse from above, 10 | H200, ", "mouse-openfield", 10),
    ("| 60 flies from above, 16 | H200, ", "flies-dpk", 16),
    ("| 3,095 faces, 10 | 2 CPU cores, ", "faces-yt68", 10),
    ("| 4,765 birds of 159 species from all sides, 30 | 2 CPU cores, ", "birds-cub", 30),
    ("| 60 flies from above, 16 | 2 CPU cores, ", "flies-dpk", 16),
]
CPU_RUNS = [("birds-cub", 30), ("faces-yt68", 10), ("flies-dpk", 16)]
# Mapping from the first word of a run's note in quality.json to how docs/expect.md says that the machine was
# shared.
SHARED = {"five": "five runs at a time", "two": "two runs at a time", "other": "with other programs"}


def test_readme_shows_the_results_of_the_default_command(summaries: ModuleType) -> None:
    readme = _read_page("README.md")
    for number, (start, data, k) in enumerate(README_ROWS, 1):
        assert f"\n| <sup>{number}</sup> " in readme, "every row has a note"
        rows = _read_default_rows(data, "NVIDIA H200", k)
        assert len(rows) == 3, "the text says three seeds"
        minutes, shared = _summarize_minutes(rows)
        assert _find_cells(readme, start)[2:] == [
            minutes + (", GPU shared" if shared else ""),
            summaries.format_mean([row["forward"] for row in rows]),
            f"{rows[0]['guessing_forward']:.2f}",
        ]
    cpu = [_read_default_rows(data, "2 cores", k) for data, k in CPU_RUNS]
    birds, faces, flies = (
        (_summarize_minutes(rows)[0], summaries.format_mean([row["forward"] for row in rows])) for rows in cpu
    )
    (demo,) = _read_demo_rows()
    text = " ".join(readme.split())
    assert (
        f"a run took {birds[0]} minutes on the birds (error {birds[1]} %) and {faces[0]} minutes on the "
        f"3,095 faces with 10 landmarks ({faces[1]} %). On the 60 flies, a run took {flies[0]} minutes "
        f"({flies[1]} %), while other programs also used the processor. The demo's 750 generated animals "
        f"take {demo['minutes']:.0f} minutes ({demo['forward']} %, guessing {demo['mean_shape']} %)." in text
    )
    names = ("yt68-selfmark", "aflw-selfmark", "birds-side-30", "flies", "mouse")
    errors = [
        summaries.format_mean(summaries.collect_values(_read_published(), name, "forward")) for name in names
    ]
    listed = f"{', '.join(errors[:-1])} and {errors[-1]} %"
    assert f"had errors of {listed} on the data of the first five rows" in text


def test_expected_errors_match_the_default_command(summaries: ModuleType) -> None:
    page = _read_page("docs/expect.md")
    for start, data, k in EXPECT_ROWS:
        rows = _read_default_rows(data, "NVIDIA H200" if "H200" in start else "2 cores", k)
        errors, guessing = [row["forward"] for row in rows], rows[0]["guessing_forward"]
        minutes, shared = _summarize_minutes(rows)
        cells = _find_cells(page, start)
        assert cells[1].partition(", ")[2] == minutes + (f" ({SHARED[shared]})" if shared else "")
        ratio = f"{summaries.compute_mean(errors) / guessing:.2f}"
        assert cells[2:] == [summaries.format_mean(errors), f"{guessing:.2f}", ratio]
    (demo,) = _read_demo_rows()
    start = f"| 750 generated animals of `selfmark demo`, {demo['k']} | 2 CPU cores, {demo['minutes']:.1f} "
    ratio = f"{demo['forward'] / demo['mean_shape']:.2f}"
    assert _find_cells(page, start)[2:] == [f"{demo['forward']:.2f}", f"{demo['mean_shape']:.2f}", ratio]


def test_expected_errors_without_features_match_the_published_rows(summaries: ModuleType) -> None:
    quality, page = _read_published(), _read_page("docs/expect.md")
    names = ("yt68-selfmark", "aflw-selfmark", "flies", "mouse", "birds-30", "birds-side-30")
    for name in names:
        (line,) = [line for line in page.splitlines() if f"| `{name}`, " in line]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        values = {
            field: summaries.compute_mean(summaries.collect_values(quality, name, field))
            for field in ("minutes", "forward", "mean_shape")
        }
        assert cells[2].split()[0] == f"{values['minutes']:.0f}"
        assert cells[3].split()[0] == f"{values['forward']:.1f}"
        assert cells[4] == f"{values['mean_shape']:.1f}"


def _read_page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _find_cells(page: str, start: str) -> list[str]:
    """Return the cells of the only line that begins with `start`."""
    (line,) = [line for line in page.splitlines() if line.startswith(start)]
    return [cell.strip() for cell in line.strip("|").split("|")]


def _read_demo_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / "demo.json").read_text(encoding="utf-8"))["rows"]
    return rows


def _read_default_rows(data: str, device: str, k: int) -> list[dict[str, Any]]:
    """Return the published runs of the default command, one for each seed."""
    key = (data, k, "efficientnet-lite0", "test")
    rows = [
        row
        for row in _read_published()["default_command"]["rows"]
        if (row["data"], row["k"], row["features"], row["part"]) == key and row["device"].startswith(device)
    ]
    assert [row["seed"] for row in rows] == list(range(len(rows)))
    return rows


def _summarize_minutes(rows: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the minutes of a run on a machine that it did not share, and "".

    If all runs shared their machine, return the mean minutes and the first word of the note about sharing.
    """
    minutes_alone = [row["minutes"] for row in rows if "note" not in row]
    if minutes_alone:
        return f"{minutes_alone[0]:.1f}", ""
    mean = sum(row["minutes"] for row in rows) / len(rows)
    return f"{mean:.1f}", rows[0]["note"].split()[0]
