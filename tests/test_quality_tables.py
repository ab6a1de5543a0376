"""Tests of the results pages: numbers computed by hand, and the committed quality.json."""

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

from selfmark.config import override, preset

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


def _row(name: str, forward: float, seed: int = 0, stage: int = 1, ridge: float = 0.01, **more: Any) -> Any:
    row = {"name": name, "run": f"{name}-s{seed}", "seed": seed, "stage": stage, "ridge": ridge}
    row |= {"forward": forward, "backward": 2 * forward, "mean_shape": 11.4, "minutes": 1.5}
    return row | {"hardware": "an abacus", "points_per_image": 20.0 if stage == 1 else 30} | more


def _example_quality() -> dict[str, Any]:
    clusters = {
        "clusters-30": 6.0,
        "clusters-50": 5.0,
        "short": 4.0,
        "clusters-250": 5.5,
        "clusters-500": 4.5,
    }
    rows = [_row(name, forward) for name, forward in clusters.items()]
    rows += [_row("short", 3.0, stage=2), _row("flip-train", 3.5, stage=2), _row("flip-none", 3.4, stage=2)]
    rows += [_row("yt68-superpoint", error, seed, stage=2) for seed, error in enumerate((2.9, 3.0, 3.2))]
    rows += [_row("yt68-superpoint", 3.3, seed, stage=2, ridge=0.1) for seed in range(3)]
    rows += [_row("birds-side-20", 6.27, stage=2)]
    return {"runs": {}, "rows": rows}


def _line(page: str, start: str) -> list[str]:
    lines = [line for line in page.splitlines() if line.startswith(f"| {start} |")]
    assert len(lines) == 1, start
    return [cell.strip() for cell in lines[0].strip("|").split("|")]


def test_seeds_are_summarized_by_mean_and_sample_deviation(quality_pages: ModuleType) -> None:
    # 2.9, 3.0, 3.2: the mean is 9.1 / 3 = 3.0333, and the sample deviation is the square root of
    # (0.01778 + 0.00111 + 0.02778) / 2, which is 0.1528.
    page = quality_pages.pages(_example_quality())["quality.md"]
    stage2 = [line for line in page.splitlines() if line.startswith("| yt68-superpoint | faces-yt68")][1]
    assert "| 3 | 2 | 3.30 ± 0.00 | 3.03 ± 0.15 | — | 6.07 ± 0.31 | 11.40 |" in stage2


def test_targets_are_compared_with_results(quality_pages: ModuleType) -> None:
    page = quality_pages.pages(_example_quality())["quality.md"]
    assert "| yt68-superpoint | forward, ridge 0.01 | 3 | 3.03 | no |" in page
    assert "| yt68-superpoint | backward, ridge 0.01 | 6.5 | 6.07 | yes |" in page
    # 6.27 / 11.4 = 0.55. The target is an error of at most 0.6 times that of the mean shape.
    assert "| birds-side-20 | forward, ridge 0.01 | 0.6 of the mean shape | 0.55 | yes |" in page
    assert "| yt68-selfmark | forward, ridge 0.01 | 3.3 | — | — |" in page


def test_the_order_of_rows_is_compared_with_the_paper(quality_pages: ModuleType) -> None:
    page = quality_pages.pages(_example_quality())["ablations.md"]
    assert _line(page, "250")[1:4] == ["clusters-250", "5.50", "11.00"]
    assert _line(page, "250")[-2:] == ["8.58", "6.26"]
    # Our ranks are 5 3 1 4 2, those of the paper 5 2 1 3 4. The squared differences 0 1 0 1 4 add up to 6, so
    # the correlation is 1 - 6 x 6 / (5 x 24) = 0.7.
    assert (
        "By forward error of Stage 1, from best to worst: 100, 500, 50, 250, 30; in the paper: 100, 50, 250, "
        "500, 30. The same row is best; Spearman's rank correlation is 0.70." in page
    )


def test_flipping_at_test_time_has_its_own_row(quality_pages: ModuleType) -> None:
    page = quality_pages.pages(_example_quality())["ablations.md"]
    assert [_line(page, label)[3] for label in ("none", "train", "train and test")] == [
        "3.40",
        "3.50",
        "3.00",
    ]
    assert (
        "from best to worst: train and test, none, train; in the paper: train and test, train, none" in page
    )


def test_videos_are_summarized_over_seeds(quality_pages: ModuleType) -> None:
    quality = _example_quality()
    for name, flow, forward in (("flies", 0.2, 6.0), ("flies-temporal", 0.1, 6.1)):
        for seed, offset in enumerate((0.0, 0.03)):
            motion = {"median_from_flow": flow + offset, "jumps": 0.01, "on_animal": 0.5}
            quality["runs"][f"{name}-s{seed}"] = {"by": {}, "motion": motion, "data": "flies-pair-video"}
            quality["rows"] += [_row(name, forward + 10 * offset, seed, stage) for stage in (1, 2)]
    page = quality_pages.pages(quality)["quality.md"]
    # 0.2 and 0.23: mean 0.215, sample deviation 0.03 / root 2.
    assert "\n| flies | 0.215 ± 0.021 | 0.010 ± 0.000 | 0.500 ± 0.000 |\n" in page
    assert "the distance from flow falls from 0.215 to 0.115, more than the spread over seeds (0.021)" in page
    assert "of Stage 2 rises from 6.15 to 6.25, less than the spread over seeds (0.21)" in page
    assert "`mouse-temporal` compared with `mouse`: not run yet." in page


def test_an_order_is_the_same_only_if_every_row_agrees(summaries: ModuleType) -> None:
    theirs = {"a": 1.0, "b": 2.0, "c": 3.0}
    assert summaries.describe_ranking({"a": 7.0, "b": 8.0, "c": 9.0}, theirs, "error").endswith(
        "The same order."
    )
    opposite = summaries.describe_ranking({"a": 9.0, "b": 8.0, "c": 7.0}, theirs, "error")
    assert opposite.endswith("A different row is best; Spearman's rank correlation is -1.00.")
    assert "too few rows" in summaries.describe_ranking({"a": 1.0, "b": None, "x": 2.0}, theirs, "error")


def test_a_repeated_run_replaces_the_published_one(merge: ModuleType) -> None:
    old = {
        "runs": {"short-s0": {"name": "short-s0"}, "yt68-superpoint-s1": {"name": "yt68-superpoint-s1"}},
        "rows": [
            _row("short", 4.0),
            _row("flip-train", 4.0, run="short-s0"),
            _row("yt68-superpoint", 3.0, 1),
        ],
    }
    new = {"run": {"name": "short-s0", "images": 7}, "rows": [_row("short", 3.9)]}
    merged = merge.merge(old, [new])
    # Rows are in declared order: results before ablations. The row flip-train is gone, because it was
    # computed from the old run short-s0.
    assert [(row["name"], row["forward"]) for row in merged["rows"]] == [
        ("yt68-superpoint", 3.0),
        ("short", 3.9),
    ]
    assert merged["runs"]["short-s0"]["images"] == 7


def test_trial_runs_are_not_merged(merge: ModuleType) -> None:
    trial = {"run": {"name": "short-s0"}, "rows": [_row("short", 3.9, smoke=True)]}
    with pytest.raises(SystemExit, match="smoke"):
        merge.merge({"runs": {}, "rows": []}, [trial])


def test_the_committed_pages_match_the_committed_json(quality_pages: ModuleType) -> None:
    for name, page in quality_pages.pages(_published()).items():
        written = (RESULTS / name).read_text(encoding="utf-8")
        assert written == page, "run: python benchmarks/quality/quality_pages.py"


def _published() -> dict[str, Any]:
    published: dict[str, Any] = json.loads((RESULTS / "quality.json").read_text(encoding="utf-8"))
    return published


def test_the_page_of_first_keypoints_matches_its_json(scripts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))  # the script also imports from `training`
    record = json.loads((RESULTS / "keypoints.json").read_text(encoding="utf-8"))
    page = import_module("keypoints").page(record)
    assert (RESULTS / "keypoints.md").read_text(encoding="utf-8") == page


def test_every_experiment_is_published(scripts: None) -> None:
    experiments = import_module("experiments")
    published = _published()
    published_rows = {(row["name"], row["seed"], row["stage"], row["ridge"]) for row in published["rows"]}
    for experiment in experiments.EXPERIMENTS:
        for seed, run in zip(experiment.seeds, experiment.runs(), strict=True):
            assert published["runs"][run]["digest"] == experiment.digest(), f"{run} has other settings"
            for name in (experiment.name, *experiment.variants):
                assert {
                    (name, seed, stage, ridge) for stage in (1, 2) for ridge in experiments.RIDGES
                } <= published_rows


def test_every_row_has_all_fields() -> None:
    required = {"data", "k", "m", "keypoints", "preset", "seed", "stage", "ridge", "forward", "backward"}
    required |= {"mean_shape", "minutes", "hardware", "commit"}
    rows = _published()["rows"]
    assert rows
    for row in rows:
        assert required <= set(row)
        assert 0 < row["forward"] < row["mean_shape"], "worse than guessing"


def test_every_row_of_the_pages_can_be_recomputed(scripts: None, tmp_path: Path) -> None:
    run = import_module("run")
    names = {row["name"] for row in _published()["rows"]}
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
        words = shlex.split(commands.discover_command(experiment))
        options = discover.make_context("discover", words[2:]).params
        settings = parse_settings(options["overrides"]) | {"K": options["landmarks"]}
        parsed = override(preset(options["preset"]), settings)
        expected = override(preset(experiment.preset), experiment.settings)
        assert replace(parsed, evaluation=expected.evaluation) == expected, experiment.name
        assert options["seed"] == experiment.seeds[0]


def test_headline_numbers_match_the_published_rows(summaries: ModuleType) -> None:
    quality = _published()
    page = (ROOT / "docs" / "expect.md").read_text(encoding="utf-8")
    rows = {
        "| faces-yt68, 68 points, K=30, 3 seeds | fast, SuperPoint |": "yt68-superpoint",
        "| faces-yt68, 68 points, K=30, 3 seeds | fast, our own |": "yt68-selfmark",
        "| faces-mtfl-aflw, 5 points, K=10, 10,000 images |": "aflw-selfmark",
        "| flies-pair-video, 24 points, K=10, 3 seeds |": "flies",
        "| mouse-openfield, 4 points, K=10 |": "mouse",
        "| birds-cub, 159 species, 15 points, K=30 |": "birds-side-30",
    }
    for start, name in rows.items():
        (line,) = [line for line in page.splitlines() if line.startswith(start)]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        values = [
            summaries.collect_values(quality, name, field) for field in ("forward", "backward", "mean_shape")
        ]
        assert cells[-3:] == [
            summaries.format_mean(values[0]),
            summaries.format_mean(values[1]),
            summaries.format_mean(values[2][:1]),
        ]
    aflw_error = summaries.format_mean(
        summaries.collect_values(quality, "aflw-selfmark", "forward", ridge=0.001)
    )
    assert (
        f"error is {aflw_error} with the ridge that the authors' program has for five points on CelebA"
        in page
    )


def test_readme_numbers_match_the_published_rows(summaries: ModuleType) -> None:
    quality = _published()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = {
        "| 3,095 faces | 30 |": "yt68-selfmark",
        "| 10,000 faces, also from the side | 10 |": "aflw-selfmark",
        "| 880 video frames of two flies | 10 |": "flies",
        "| 1,956 video frames of a mouse | 10 |": "mouse",
        "| 4,765 birds of 159 species | 30 |": "birds-side-30",
    }
    for start, name in rows.items():
        (line,) = [line for line in readme.splitlines() if line.startswith(start)]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        values = [summaries.collect_values(quality, name, field) for field in ("forward", "mean_shape")]
        assert cells[-2:] == [summaries.format_mean(values[0]), summaries.format_mean(values[1][:1])]
    (demo,) = json.loads((RESULTS / "demo.json").read_text(encoding="utf-8"))["rows"]
    time = f"{demo['minutes']:.0f} minutes, 2 CPU cores"
    assert f"| {demo['k']} | {time} | {demo['forward']} | {demo['mean_shape']} |" in readme
