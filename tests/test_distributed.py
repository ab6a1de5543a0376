"""Test runs that several processes share, on the CPU, as if torchrun had started them.

Psi is the network that locates landmarks.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from selfmark.config import override
from selfmark.detector import Detector
from selfmark.discovery import discover
from selfmark.errors import InputError
from selfmark.evaluation import familiarity
from selfmark.evaluation.label_free import run_label_free_checks
from selfmark.evaluation.stage1_landmarks import load_stage1_finder
from selfmark.feature_discovery import feature_labels, feature_pipeline
from selfmark.images.feed import PixelFeed
from selfmark.images.store import load_store
from selfmark.keypoints import first_keypoints, outliers
from selfmark.methods import training
from selfmark.methods.method_registry import build_method
from selfmark.model.feature_network import FeaturePsi
from selfmark.model.turned_network import TurnedPsi
from selfmark.points import Keypoints
from selfmark.run.folder import Run
from selfmark.run.processes import ProcessGroup
from tests.conftest import QUICK, QUICK_FEATURES
from tests.processes import run_command_in_processes, run_in_processes, run_patched_command_in_processes

# Both two and three processes divide these batches evenly. There is no noise, because each process would draw
# its own noise.
SHARED = QUICK | {
    "runtime.batch": 6,
    "stage2.batch": 6,
    "runtime.log_every": 1,
    "runtime.predict_batch": 5,  # The 24 images are processed in five passes.
    "augment.noise": 0.0,
    "optimizer.lr": 1e-4,
}


def _build_environment() -> dict[str, str]:
    root = Path(__file__).parent.parent
    return os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}


def _build_torchrun_command(photos: Path, output: Path, *options: str) -> list[str]:
    """Return the torchrun command of a discovery in two processes."""
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        port = free_socket.getsockname()[1]
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    words += ["--master-port", str(port), "-m", "selfmark"]
    return [*words, *_build_arguments(photos, output, SHARED), *options]


def _build_arguments(photos: Path, output: Path, values: dict[str, Any]) -> list[str]:
    """Return the arguments of a discovery with the settings `values`."""
    settings = [f"--set={name}={json.dumps(value)}" for name, value in values.items()]
    return ["discover", str(photos), "-o", str(output), "--preset", "tiny", "--device", "cpu", *settings]


def _discover(
    photos: Path, output: Path, processes: int, *options: str, values: dict[str, Any] = SHARED
) -> Run:
    """Run a discovery in processes that start faster than those of torchrun."""
    words = [*_build_arguments(photos, output, values), *options]
    results = run_command_in_processes(processes, *words)
    assert [result and result[0] for result in results] == [0] * processes, results
    return Run.open(output)


@pytest.fixture(scope="module")
def runs(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Run]:
    """Return runs of the same discovery with one, two and three processes."""
    folder = tmp_path_factory.mktemp("distributed")
    return {processes: _discover(photos, folder / str(processes), processes) for processes in (1, 2, 3)}


def _read_losses(run: Run) -> dict[str, Any]:
    """Map each stage to the total losses in the log of a run."""
    curves: dict[str, list[float]] = {}
    for event in run.events():
        if event["event"] == "train":
            curves.setdefault(event["stage"], []).append(event["loss"]["total"])
    return {stage: np.array(values) for stage, values in curves.items()}


@pytest.mark.parametrize("processes", [2, 3])
def test_losses_are_close_to_those_of_one_process(runs: dict[int, Run], processes: int) -> None:
    single, several = _read_losses(runs[1]), _read_losses(runs[processes])
    assert single.keys() == several.keys() == {"warm-up", "round", "stage 2"}
    for stage in single:
        assert len(single[stage]) == len(several[stage])
    # Several processes share the pairs of the batch, and their mean loss equals the loss of one process. The
    # tolerance allows for numerical differences, which grow from step to step.
    np.testing.assert_allclose(several["warm-up"], single["warm-up"], rtol=0.1)
    np.testing.assert_allclose(several["warm-up"].mean(), single["warm-up"].mean(), rtol=0.05)


@pytest.mark.parametrize("processes", [2, 3])
def test_first_keypoints_equal_those_of_one_process(runs: dict[int, Run], processes: int) -> None:
    single, several = (load_file(runs[size].path / "points" / "first.safetensors") for size in (1, processes))
    assert single.keys() == several.keys()
    for name, value in single.items():
        assert torch.equal(several[name], value), name


@pytest.mark.parametrize("processes", [2, 3])
def test_rounds_find_points_in_the_same_images_as_one_process(runs: dict[int, Run], processes: int) -> None:
    for name in ("round-01", "round-02", "landmarks"):
        single = load_file(runs[1].path / "points" / f"{name}.safetensors")
        several = load_file(runs[processes].path / "points" / f"{name}.safetensors")
        assert sorted(set(several["image_index"].tolist())) == sorted(set(single["image_index"].tolist()))
        assert (several["image_index"].diff() >= 0).all()
        assert several["label"].max() < runs[1].config.M


@pytest.mark.parametrize("processes", [2, 3])
def test_only_one_process_writes(runs: dict[int, Run], processes: int) -> None:
    events = [event["event"] for event in runs[processes].events()]
    assert events.count("start") == events.count("plan") == events.count("done") == 1
    iterations = [event["iteration"] for event in runs[processes].events() if event["event"] == "train"]
    assert len(iterations) == len([event for event in runs[1].events() if event["event"] == "train"])
    assert (runs[processes].path / "report" / "index.html").exists()


def test_one_process_chooses_the_number_of_landmarks_for_all(photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    options = ["-k", "auto", "--verify", "--set=K=0", "--set=auto_k.candidates=[3, 4, 6]"]
    run = _discover(photos, output, 2, *options, "--set=auto_k.splits=2", "--set=rounds.count=1")
    (event,) = [event for event in run.events() if event["event"] == "landmark_count"]
    assert event["images"] == 21, "the 24 images without the 3 images that are held out"
    assert event["K"] == run.config.K
    verification = run.read_verification()
    assert verification is not None
    assert len(verification["backward_shares"]) == event["K"]
    tensors = load_file(output / "points" / "landmarks.safetensors")
    assert tensors["centroids"].shape[0] == event["K"]
    assert tensors["label"].max() < event["K"]


def test_a_run_can_be_resumed_after_a_process_was_killed(photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    longer = "--set=rounds.iterations=40"
    job = subprocess.Popen(
        _build_torchrun_command(photos, output, longer),
        env=_build_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not (output / "points" / "round-01.safetensors").exists():
            assert time.monotonic() < deadline
            assert job.poll() is None, job.communicate()[0][-3000:]
            time.sleep(0.1)
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        output_text, _ = job.communicate(timeout=120)
    finally:
        job.kill()
    assert job.returncode != 0
    assert "another process of this job has ended" in output_text or "Signal 9" in output_text
    assert (output / "checkpoints" / "stage1.safetensors").exists()
    discover(output=output, resume=True, device="cpu")
    assert "resumed" in [event["event"] for event in Run.open(output).events()]
    assert (output / "model" / "model.json").exists()


@pytest.mark.parametrize("receiver", ["torchrun", pytest.param("one process", marks=pytest.mark.slow)])
def test_a_signal_saves_the_state_of_all_processes(receiver: str, photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    job = subprocess.Popen(
        _build_torchrun_command(
            photos, output, "--set=warmup.iterations=4000", "--set=runtime.checkpoint_every=10000"
        ),
        env=_build_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log = output / "log.jsonl"
    try:
        deadline = time.monotonic() + 120
        while not (log.exists() and '"train"' in log.read_text()):
            assert time.monotonic() < deadline
            assert job.poll() is None, job.communicate()[0][-3000:]
            time.sleep(0.1)
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        os.kill(job.pid if receiver == "torchrun" else int(children[-1]), signal.SIGTERM)
        output_text, _ = job.communicate(timeout=120)
    finally:
        job.kill()
    assert job.returncode != 0
    events = Run.open(output).events()
    assert events[-1]["event"] == "checkpoint", output_text[-3000:]
    assert 0 < events[-1]["iteration"] < 4000
    assert f"selfmark discover -o {output} --resume" in output_text.replace("\n", "")
    (output / "checkpoints" / "stage1.safetensors").stat()
    assert not list(output.rglob("*.part*"))


@pytest.fixture(scope="module")
def feature_runs(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Run]:
    """Return runs of the same discovery with features, with one and two processes."""
    folder = tmp_path_factory.mktemp("features")
    # Each process draws its own sample of the cells. The sample is large enough to contain all of them.
    values = QUICK_FEATURES | {
        "features.sample": 10_000,
        "features.max_unexplained_start": 1e9,
        "runtime.predict_batch": 5,
    }
    return {
        processes: _discover(photos, folder / str(processes), processes, values=values)
        for processes in (1, 2)
    }


def test_two_processes_with_features_find_the_same_first_landmarks_as_one(
    feature_runs: dict[int, Run],
) -> None:
    single_tensors, both_tensors = (
        load_file(run.path / "points" / "zero-shot.safetensors") for run in feature_runs.values()
    )
    assert single_tensors.keys() == both_tensors.keys()
    for name, value in single_tensors.items():
        np.testing.assert_allclose(both_tensors[name], value, atol=1e-3, err_msg=name)


def test_processes_train_on_features_together(feature_runs: dict[int, Run]) -> None:
    single, both = feature_runs.values()
    assert both.config == single.config
    kinds = [event["event"] for event in both.events()]
    for name in ("start", "orientation", "foreground", "done"):
        assert kinds.count(name) == 1, name
    previews = [event["step"] for event in both.events() if event["event"] == "preview"]
    assert previews[0] == "zero-shot"
    assert len(set(previews)) == len(previews), "only one process writes a preview"
    for round_number, count in ((1, 12), (2, 4)):  # The first round finds three candidates per landmark.
        landmarks = load_file(both.path / "points" / f"student-{round_number}.safetensors")["xy"]
        assert landmarks.shape == (24, count, 2)
    assert (both.path / "report" / "index.html").exists()


def _compute_results(group: ProcessGroup, folder: Path) -> dict[str, Any]:
    """Compute results of a finished run; the processes of the group share the work."""
    opened = Run.open(folder)
    # Both 7 and 8 images take two passes. The checks of appearance are slow and need eight images.
    num_samples = 8 if opened.config.uses_features else 7
    config = override(opened.config, {"evaluation.num_samples": num_samples})
    run, detector = Run(folder, config, None, group), Detector.load(folder)
    store = load_store(run.refs(), config.images, float("inf"), None)
    finder = load_stage1_finder(opened, "cpu")
    checks = run_label_free_checks(detector, finder, store.refs, config, store, group=group)
    results: dict[str, Any] = {"checks": checks}
    if config.uses_features:
        feed = PixelFeed(store.pixels, torch.device("cpu"))
        assert isinstance(detector.psi, TurnedPsi)
        assert isinstance(detector.psi.psi, FeaturePsi)
        results |= feature_pipeline._find_landmarks(run, detector.psi.psi, feed)
        results["descriptions"] = familiarity.compute_mean_features(detector.psi.encoder, store.pixels, group)
    return results


@pytest.mark.parametrize("has_features", [False, True])
def test_checks_and_landmarks_equal_those_of_one_process(
    has_features: bool, request: pytest.FixtureRequest
) -> None:
    finished: dict[int, Run] = request.getfixturevalue("feature_runs" if has_features else "runs")
    (single,) = run_in_processes(1, _compute_results, finished[1].path)
    assert single["checks"]["images"] == (8 if has_features else 7)
    assert (None in single["checks"]["appearance_error"]) != has_features
    for shared in run_in_processes(2, _compute_results, finished[1].path):
        assert shared.keys() == single.keys()
        for name, value in single.items():
            assert shared[name] == value if name == "checks" else torch.equal(shared[name], value), name


def _locate_with_another_method(group: ProcessGroup, folder: Path) -> dict[str, Any]:
    """Locate the landmarks of an untrained network of a method with one stage."""
    opened = Run.open(folder)
    run = Run(folder, override(opened.config, {"method": "zhang2018"}), None, group)
    store = load_store(run.refs(), run.config.images, float("inf"), None)
    torch.manual_seed(0)
    psi = build_method(run.config).psi
    labeled, partners = training._locate_landmarks(run, psi, PixelFeed(store.pixels, torch.device("cpu")))
    assert labeled.centroids is not None
    return {"xy": labeled.points.xy, "centroids": labeled.centroids, "mirror": torch.tensor(partners.mirror)}


def test_methods_of_one_stage_locate_the_same_landmarks_in_two_processes_as_in_one(
    runs: dict[int, Run],
) -> None:
    (single,) = run_in_processes(1, _locate_with_another_method, runs[1].path)
    assert single["xy"].shape == (24 * runs[1].config.K, 2)
    for shared in run_in_processes(2, _locate_with_another_method, runs[1].path):
        for name, value in single.items():
            assert torch.equal(shared[name], value), name


def _score_outliers(group: ProcessGroup, points: Keypoints) -> torch.Tensor:
    outliers._MAX_SIMILARITIES = 20 * 10  # Ten points are compared at a time.
    assert points.descriptor is not None
    generator = torch.Generator().manual_seed(0)
    return outliers.compute_outlier_scores(points.descriptor, 4, 20, generator, group)


def test_outlier_scores_equal_those_of_one_process() -> None:
    generator = torch.Generator().manual_seed(1)
    descriptor = torch.randn(55, 16, generator=generator)
    points = Keypoints(torch.zeros(55, 2), torch.arange(55), torch.ones(55), descriptor)
    (single,) = run_in_processes(1, _score_outliers, points)
    assert all(torch.equal(shared, single) for shared in run_in_processes(3, _score_outliers, points))


def _raise_on_rank_1(error: BaseException) -> None:
    if os.environ["RANK"] == "1":
        raise error


def _break_first_keypoints() -> None:
    """Let the detection of first keypoints fail in the process with rank 1."""
    create = first_keypoints.create_detector

    def create_or_fail(*arguments: Any) -> Any:
        _raise_on_rank_1(InputError("the weights of the detector are missing"))
        return create(*arguments)

    first_keypoints.create_detector = create_or_fail


def _break_features() -> None:
    """Let the computation of features fail in the process with rank 1."""
    describe = feature_labels.describe_cells

    def describe_or_fail(*arguments: Any, **options: Any) -> Any:
        _raise_on_rank_1(InputError("the features cannot be computed"))
        return describe(*arguments, **options)

    feature_labels.describe_cells = describe_or_fail


def _interrupt_first_keypoints() -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    first_keypoints.create_detector = interrupt


def _exhaust_memory_in_checks() -> None:
    """Let the detector run out of memory in the process with rank 1."""
    locate = Detector.locate

    def locate_or_fail(detector: Detector, pixels: torch.Tensor) -> Any:
        _raise_on_rank_1(torch.OutOfMemoryError())
        return locate(detector, pixels)

    Detector.locate = locate_or_fail  # type: ignore[method-assign]


def _read_messages(results: list[Any]) -> list[str]:
    return [line for _, output in results for line in output.splitlines() if line.startswith("selfmark:")]


@pytest.mark.parametrize(
    ("break_step", "values", "message"),
    [
        (_break_first_keypoints, SHARED, "the weights of the detector are missing"),
        (_break_features, QUICK_FEATURES, "the features cannot be computed"),
    ],
    ids=["keypoints", "features"],
)
def test_an_error_in_one_process_ends_both_with_one_message(
    break_step: Callable[[], None], values: dict[str, Any], message: str, photos: Path, tmp_path: Path
) -> None:
    words = _build_arguments(photos, tmp_path / "run", values)
    results = run_patched_command_in_processes(2, break_step, *words)
    assert [code for code, _ in results] == [2, 2], results
    assert _read_messages(results) == [f"selfmark: {message}"]
    stored = {path.stem for path in (tmp_path / "run" / "points").iterdir()}
    assert stored.isdisjoint({"first", "zero-shot"})


def test_an_interrupt_of_shared_work_ends_all_processes(photos: Path, tmp_path: Path) -> None:
    words = _build_arguments(photos, tmp_path / "run", SHARED)
    results = run_patched_command_in_processes(2, _interrupt_first_keypoints, *words)
    assert [code for code, _ in results] == [130, 130], results
    assert all("--resume" in output for _, output in results)


def test_too_little_memory_in_one_process_ends_both_with_advice(runs: dict[int, Run], tmp_path: Path) -> None:
    copy = shutil.copytree(runs[2].path, tmp_path / "run")
    words = ["discover", "-o", copy, "--resume", "--device", "cpu"]
    results = run_patched_command_in_processes(2, _exhaust_memory_in_checks, *words)
    assert [code for code, _ in results] == [2, 1], results
    (message,) = _read_messages(results)
    assert "too little memory for runtime.predict_batch=5" in message
    assert "runtime.predict_batch=2" in results[1][1].replace("\n", "")


def test_processes_skip_the_same_iterations_of_stage_2(photos: Path, tmp_path: Path) -> None:
    values = SHARED | {
        "stage2.iterations": 12,
        "schedule.stop_when_still": True,
        "schedule.still_movement": 100,
        "schedule.measure_every": 0.1,
    }
    run = _discover(photos, tmp_path / "run", 2, values=values)
    # The landmarks are measured after 1, 2 and 3 iterations, so movements are known after 2 and 3. The final
    # part begins after 9 iterations, where the learning rate drops.
    measured = [event for event in run.events() if event["event"] == "movement"]
    assert [(event["iteration"], event["skipped"]) for event in measured] == [(2, 0), (3, 6)]
    trained = [e["iteration"] for e in run.events() if e["event"] == "train" and e["stage"] == "stage 2"]
    assert trained == [1, 2, 3, 10, 11, 12]
    assert (run.path / "report" / "index.html").exists()


def test_bad_input_ends_all_processes_with_one_message(tmp_path: Path) -> None:
    result = subprocess.run(
        _build_torchrun_command(tmp_path / "nowhere", tmp_path / "run"),
        env=_build_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    messages = [line for line in result.stderr.splitlines() if line.startswith("selfmark:")]
    assert len(messages) == 1
    assert "nowhere" in messages[0]
    assert not (tmp_path / "run").exists()
