"""Test plans of experiments: the training runs and measurements that they need, and those that they share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from selfmark.config.schedule import schedule_settings
from selfmark.errors import InputError
from selfmark.paper.reproduction import cost, experiment
from selfmark.paper.reproduction.cost import DatasetNames, estimate_minutes, estimate_training_seconds
from selfmark.paper.reproduction.experiment_plan import (
    ExperimentPlan,
    check_rows_differ,
    list_required_datasets,
    make_plan,
)


def plan(*names: str, preset: str = "paper", **changes: Any) -> ExperimentPlan:
    """Plan the experiments with these names, with changed settings.

    In a keyword of `changes`, two underscores stand for the dot in the name of a setting.
    """
    settings = {name.replace("__", "."): value for name, value in changes.items()}
    return make_plan([experiment.load_experiment(name) for name in names], DatasetNames(), preset, settings)


def test_experiments_share_common_training_runs() -> None:
    """All five experiments share the run on LS3D with K = 30. Fewer experiments share the other runs."""
    names = ("clusters", "negatives", "stages", "generalization", "flipping")
    separate = {name: set(plan(name).trainings) for name in names}
    together = plan(*names)
    assert set(together.trainings) == set.union(*separate.values())
    shared = set.intersection(*separate.values())
    assert [together.trainings[key].data for key in shared] == ["ls3d"]
    assert {name: len(keys) for name, keys in separate.items()} == {
        "clusters": 5,
        "negatives": 4,
        "stages": 3,
        "generalization": 2,
        "flipping": 4,
    }


def test_flipping_at_test_time_needs_no_new_training() -> None:
    planned = plan("flipping")
    rows = ("LS3D, in training", "LS3D, in training and at test time")
    keys = [planned.cells["flipping", row, "Stage 2"].measurement for row in rows]
    flipped_in_training, flipped_in_both = (planned.measurements[key or ""] for key in keys)
    assert flipped_in_training.key != flipped_in_both.key
    assert flipped_in_training.training.key == flipped_in_both.training.key
    assert flipped_in_training.evaluation == {"flip": "never"}


def test_stage_2_is_trained_only_if_a_cell_needs_it() -> None:
    assert {training.stages for training in plan("clusters").trainings.values()} == {1}
    assert {training.stages for training in plan("stages").trainings.values()} == {2}
    trainings = plan("clusters", "stages").trainings.values()
    assert sorted((training.data, training.stages) for training in trainings if training.config.M == 100) == [
        ("aflw", 2),
        ("celeba", 2),
        ("ls3d", 2),
    ]


def test_precision_of_first_keypoints_needs_no_training() -> None:
    planned = plan("precision")
    assert not planned.trainings
    assert [job.training for job in planned.jobs()] == [None] * 4


def test_digests_have_not_changed_since_selfmark_0_1() -> None:
    """Output folders of selfmark 0.1 are still used, although settings have been renamed and added.

    Folders of the preset `paper` are not used, because its settings have changed.
    """
    cats = plan("cats", preset="fast")
    assert [training.folder for training in cats.trainings.values()] == ["cats-K20-b309fadbf1ed"]
    assert list(cats.measurements) == ["2e7ec24f125c"]
    changes = {"seed": 3, "optimizer__lr": 0.01, "evaluation__num_samples": 7}
    changed = plan("cats", preset="fast", **changes)
    assert [training.folder for training in changed.trainings.values()] == ["cats-K20-9c6174215c35"]
    assert list(changed.measurements) == ["d55e2e4ad0da"]
    assert list(plan("noise", preset="fast").trainings) == [
        "725db77592d1",
        "512f54307efc",
        "9453b067f062",
        "21f657590b3e",
        "308eb5883567",
        "ec46bcfe91f7",
    ]
    assert list(plan("precision", preset="fast").measurements) == [
        "5192a10d3a9d",
        "0fe8bb8ef847",
        "2e596b08f26b",
        "3881b94ccd10",
    ]


def test_the_key_of_a_training_run_depends_on_its_settings() -> None:
    usual_keys = set(plan("cats").trainings)
    assert set(plan("cats").trainings) == usual_keys
    assert set(plan("cats", preset="fast").trainings) != usual_keys
    assert set(plan("cats", seed="1").trainings) != usual_keys
    assert set(plan("cats", optimizer__lr="0.001").trainings) != usual_keys
    evaluated = plan("cats", evaluation__ridge="0.1")
    assert set(evaluated.trainings) == usual_keys
    assert set(evaluated.measurements) != set(plan("cats").measurements)


class DatasetsWithRidge(DatasetNames):
    """Data sets that each have their own ridge (penalty of the regression), as in the authors' program."""

    def settings(self, name: str) -> dict[str, Any]:
        return {"evaluation.ridge": {"celeba": 0.001, "ls3d": 0.1}[name]}


@pytest.mark.parametrize("requested", [None, 0.5])
def test_the_test_data_set_determines_the_ridge(requested: float | None) -> None:
    changes = {} if requested is None else {"evaluation.ridge": requested}
    planned = make_plan([experiment.load_experiment("generalization")], DatasetsWithRidge(), "fast", changes)
    ridges = {
        (measurement.training.data, measurement.data): measurement.evaluation["ridge"]
        for measurement in planned.measurements.values()
    }
    expected = {"celeba": 0.001, "ls3d": 0.1}
    if requested is not None:
        expected = dict.fromkeys(expected, requested)
    assert ridges == {(trained, tested): expected[tested] for trained in expected for tested in expected}
    usual_plan = make_plan([experiment.load_experiment("generalization")], DatasetNames(), "fast", {})
    assert set(planned.trainings) == set(usual_plan.trainings)


def test_user_settings_override_those_of_the_table() -> None:
    (training,) = plan("cats", K="7").trainings.values()
    assert (training.config.K, training.config.M) == (7, 100)


def test_a_small_preset_gets_at_least_as_many_clusters_as_landmarks() -> None:
    (training,) = plan("pennaction", preset="tiny").trainings.values()
    assert (training.config.K, training.config.M) == (30, 30)


def test_cells_of_different_yaw_buckets_share_a_measurement() -> None:
    planned = plan("generalization")
    buckets = {
        planned.cells["generalization", "CelebA", f"LS3D {name}"].measurement
        for name in ("0-30", "30-60", "60-90", "total")
    }
    (key,) = buckets
    assert planned.measurements[key or ""].by == ("yaw_bucket",)


def test_every_noise_level_has_its_own_training_run() -> None:
    planned = plan("noise")
    fractions = [training.config.keypoints.random_fraction for training in planned.trainings.values()]
    assert sorted(fractions) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    for training in planned.trainings.values():
        assert training.start is not None
        assert len(training.start.points) == 15
        assert (training.config.K, training.config.rounds.keep_weights, training.stages) == (15, True, 1)


def test_table_cells_whose_data_set_is_missing_have_no_measurement() -> None:
    table = experiment.load_experiment("mafl-aflw")
    assert list_required_datasets([table]) == [("celeba", 5), ("aflw", 5)]
    planned = make_plan([table], DatasetNames(), "paper", {}, frozenset({("aflw", 5)}))
    assert {training.data for training in planned.trainings.values()} == {"celeba"}
    assert planned.cells["mafl-aflw", "Ours (K=10)", "AFLW"].measurement is None


def test_an_unknown_setting_raises() -> None:
    with pytest.raises(InputError, match="unknown setting 'lr'"):
        plan("cats", lr="1")


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("initialization", "keypoints.detector"),
        ("initialization", "keypoints"),
        ("keypoint-examples", "keypoints.detector"),
        ("clusters", "M"),
        ("birds", "K"),
        ("flipping", "flip.test"),
        ("flipping", "evaluation.flip"),
    ],
)
def test_settings_that_a_table_compares_cannot_be_changed(table: str, name: str) -> None:
    """Otherwise all rows would have the same numbers."""
    with pytest.raises(InputError, match=f"the rows or columns of '{table}' differ in {name}"):
        check_rows_differ(
            [experiment.load_experiment("cats"), experiment.load_experiment(table)], {name: "selfmark"}
        )
    check_rows_differ([experiment.load_experiment("cats")], {name: "selfmark"})


def test_cost_grows_linearly_with_iterations() -> None:
    """More iterations of Stage 2 add exactly the time of these iterations."""
    (usual_training,) = plan("cats").trainings.values()
    (longer_training,) = plan("cats", stage2__iterations="400000").trainings.values()
    # A step takes 9.72 ms on 32 images and 31.11 ms on 128. A step of Stage 2 has 16 images.
    ms_per_image = (31.11 - 9.72) / (128 - 32)
    seconds_per_step = (9.72 - (32 - 16) * ms_per_image) / 1000
    assert estimate_training_seconds(longer_training) - estimate_training_seconds(
        usual_training
    ) == pytest.approx(200_000 * seconds_per_step)
    assert estimate_minutes(plan("cats", preset="fast")) < estimate_minutes(plan("cats")) / 10


def test_rates_match_the_speed_benchmark() -> None:
    results = Path(__file__).parents[3] / "docs" / "results" / "speed.json"
    measured = {row["name"]: row["value"] for row in json.loads(results.read_text())["rows"]}
    assert pytest.approx(measured["stage1_16_pairs_step"]) == 1000 * cost.STAGE1_16_PAIRS_STEP
    assert pytest.approx(measured["stage1_64_pairs_step"]) == 1000 * cost.STAGE1_64_PAIRS_STEP
    assert measured["extract"] == cost.EXTRACT
    assert measured["predict_gpu"] == cost.PREDICT_GPU
    assert measured["cold_first_step_s"] == cost.COLD_FIRST_STEP_S
    assert measured["recovery_200k_s"] == cost.RECOVERY_200K


def test_the_estimate_for_the_fast_preset_is_close_to_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both stages on 3,095 images took 128 s from a cold start (docs/results/speed.json)."""
    (training,) = plan("cats", preset="fast", K="30").trainings.values()
    monkeypatch.setitem(cost.IMAGES, "cats", (3_095, 3_095, 759))
    assert estimate_training_seconds(training) == pytest.approx(128, rel=0.25)


def test_the_estimate_counts_the_iterations_that_the_run_will_make() -> None:
    """In the preset `fast`, larger data sets get more iterations, unless the user sets their number."""
    (growing,) = plan("cats", preset="fast").trainings.values()
    (fixed,) = plan("cats", preset="fast", schedule__growth="0").trainings.values()
    factor = (cost.IMAGES["cats"][0] / 3_000) ** 0.2
    config = fixed.config
    stage1 = config.warmup.iterations + config.rounds.count * config.rounds.iterations
    seconds = stage1 * cost.estimate_step_seconds(2 * config.runtime.batch, config)
    seconds += config.stage2.iterations * cost.estimate_step_seconds(config.stage2.batch, config)
    added = estimate_training_seconds(growing) - estimate_training_seconds(fixed)
    assert added == pytest.approx((factor - 1) * seconds, rel=0.01)
    given = {name.replace(".", "__"): str(value) for name, value in schedule_settings(config).items()}
    (kept,) = plan("cats", preset="fast", **given).trainings.values()
    assert estimate_training_seconds(kept) == pytest.approx(estimate_training_seconds(fixed))
