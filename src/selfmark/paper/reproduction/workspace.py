"""Run every training and measurement once, and store the results in the output folder.

OUTPUT/trainings/DATA-K30-KEY  run folders (here with K = 30); interrupted runs are resumed
OUTPUT/measurements/KEY        pictures, and metrics.json, which is written last
OUTPUT/failed/KEY.json         why a training or measurement failed; it is not repeated while this file exists
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from selfmark.config import override
from selfmark.discovery import discover, train_stage1
from selfmark.errors import DamagedFile, DiskError, InputError, NotEnoughData, TrainingError, UnsafeFile
from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions, evaluate_run
from selfmark.paper.reproduction import contact_sheets, descriptor_maps, stage1_measurements
from selfmark.paper.reproduction.dataset_cache import DatasetCache
from selfmark.paper.reproduction.experiment_plan import ExperimentJob, Measurement, Training
from selfmark.paper.reproduction.measurement_task import MeasurementTask
from selfmark.paper.reproduction.table_metrics import MeasurementKind, Results
from selfmark.run.devices import select_device
from selfmark.run.files import read_json, write_json
from selfmark.run.folder import Listener, Run
from selfmark.run.guarded_files import make_folder, make_folders
from selfmark.run.locks import FolderLocked

OpenListener = Callable[[], AbstractContextManager[Listener | None]]


@dataclass(frozen=True)
class Workspace:
    """What all jobs share: data sets, output folder and device.

    Attributes:
        datasets: Data sets.
        output: Output folder.
        device: Name of the device.
        open_listener: Opens a listener for the events of one training run.
    """

    datasets: DatasetCache
    output: Path
    device: str
    open_listener: OpenListener = nullcontext

    def run_folder(self, training: Training) -> Path:
        """Return the run folder of a training run."""
        return self.output / "trainings" / training.folder

    def measurement_folder(self, measurement: Measurement) -> Path:
        """Return the folder of a measurement."""
        return self.output / "measurements" / measurement.key

    def failure_file(self, key: str) -> Path:
        """Return the path of the file that records the failure of a training or measurement."""
        return self.output / "failed" / f"{key}.json"

    def has_failed(self, measurement: Measurement) -> bool:
        """Return True if a measurement or its training run has failed."""
        keys = [measurement.key]
        if measurement.needs_training:
            keys.append(measurement.training.key)
        return any(self.failure_file(key).exists() for key in keys)

    def read_results(self, measurement: Measurement) -> Results:
        """Read the results of a finished measurement."""
        results: Results = read_json(self.measurement_folder(measurement) / "metrics.json")
        return results


def is_job_done(workspace: Workspace, job: ExperimentJob) -> bool:
    """Return True if every part of a job is complete or has failed."""
    if workspace.failure_file(job.key).exists():
        return True
    has_model = job.training is None or is_trained(workspace.run_folder(job.training), job.training.stages)
    return has_model and all(_is_settled(workspace, measurement) for measurement in job.measurements)


def is_trained(folder: Path, stages: int) -> bool:
    """Return True if a run has completed this number of stages (1 or 2)."""
    if stages < 2:
        return (folder / "points" / "landmarks.safetensors").exists()
    if not (folder / "model" / "model.json").exists():
        return False
    return any(event["event"] == "done" for event in Run.open(folder).events())


def run_experiment_job(workspace: Workspace, job: ExperimentJob) -> None:
    """Train and measure what is not done yet; record failures.

    After a failed training, nothing is measured. After a failed measurement, the other measurements continue.
    """
    if job.training is not None and not is_trained(workspace.run_folder(job.training), job.training.stages):
        try:
            train_or_resume(workspace, job.training)
        except (TrainingError, NotEnoughData) as error:
            _record_failure(workspace, job.key, job.training, str(error))
            return
    for measurement in job.measurements:
        if not _is_settled(workspace, measurement):
            try:
                run_measurement(workspace, measurement)
            except (DiskError, FolderLocked, DamagedFile, UnsafeFile):
                raise
            except InputError as error:
                reason = f"the measurement '{measurement.kind}' failed: {error}"
                _record_failure(workspace, measurement.key, measurement.training, reason)


def _record_failure(workspace: Workspace, key: str, training: Training, reason: str) -> None:
    path = workspace.failure_file(key)
    make_folder(path.parent)
    write_json({"training": training.folder, "why": reason}, path)


def train_or_resume(workspace: Workspace, training: Training) -> None:
    """Start or resume a training run, up to the last stage that is needed."""
    folder = workspace.run_folder(training)
    train = discover if training.stages > 1 else train_stage1
    if (folder / "run.json").exists():
        with workspace.open_listener() as listener:
            train(output=folder, resume=True, device=workspace.device, listener=listener)
        return
    cached = workspace.datasets.load(training.data, training.points)
    settings, images = dict(training.settings), cached.write_train_file()
    if training.start is not None:
        images = cached.write_start_train_file(training.start)
        points = cached.write_start_points_file(training.start, training.config.seed, training.config)
        settings |= {"keypoints.detector": "file", "keypoints.points_file": str(points)}
    with workspace.open_listener() as listener:
        train(
            inputs=[images],
            output=folder,
            preset=training.preset,
            settings=settings,
            device=workspace.device,
            listener=listener,
        )


def run_measurement(workspace: Workspace, measurement: Measurement) -> None:
    """Measure and write metrics.json; "measured" lists the fields and detectors that it covers."""
    folder = workspace.measurement_folder(measurement)
    make_folders(folder)
    results = _MEASURE[measurement.kind](_build_task(workspace, measurement, folder))
    write_json(results | {"measured": _requested_inputs(measurement)}, folder / "metrics.json")


def _is_settled(workspace: Workspace, measurement: Measurement) -> bool:
    """Return True if a measurement is complete or has failed."""
    return workspace.failure_file(measurement.key).exists() or _is_measured(workspace, measurement)


def _is_measured(workspace: Workspace, measurement: Measurement) -> bool:
    """Return True if metrics.json exists and covers all requested fields and detectors."""
    path = workspace.measurement_folder(measurement) / "metrics.json"
    return path.exists() and set(_requested_inputs(measurement)) <= set(read_json(path)["measured"])


def _requested_inputs(measurement: Measurement) -> list[str]:
    return [*measurement.by, *measurement.detectors]


# --- one function for each kind of measurement -------------------------------------------------------------


def _build_task(workspace: Workspace, measurement: Measurement, folder: Path) -> MeasurementTask:
    cached = workspace.datasets.load(measurement.data, measurement.points)
    training = measurement.training
    config = override(
        training.config, {f"evaluation.{name}": value for name, value in measurement.evaluation.items()}
    )
    # Stage 1 is measured with every ridge in `ridges`, and the error with `ridge` is read from these results.
    if config.evaluation.ridge not in config.evaluation.ridges:
        ridges = (*config.evaluation.ridges, config.evaluation.ridge)
        config = replace(config, evaluation=replace(config.evaluation, ridges=ridges))
    return MeasurementTask(
        run=workspace.run_folder(training) if measurement.needs_training else None,
        config=config,
        test=cached.write_test_file(),
        # The evaluation of Stage 2 draws its own samples, so it gets a file with all images.
        fit=cached.write_fit_file(
            config.seed, None if measurement.kind == "detector" else measurement.fit_images
        ),
        fit_images=measurement.fit_images,
        by=measurement.by,
        detectors=measurement.detectors,
        folder=folder,
        device=select_device(workspace.device),
    )


def _evaluate(task: MeasurementTask) -> Results:
    """Evaluate a run like `selfmark evaluate`, with regressors fitted on all images or on random samples."""
    samples = () if task.fit_images is None else (task.fit_images,)
    settings = asdict(task.config.evaluation) | {"fit_images": samples}
    return evaluate_run(
        task.run_folder,
        EvaluationInputs(task.test, task.test, task.fit, task.fit),
        EvaluationOptions(by=task.by, settings=settings),
        output=task.folder / "evaluation",
        device=str(task.device),
    )


_MEASURE: dict[MeasurementKind, Callable[[MeasurementTask], Results]] = {
    "keypoints": stage1_measurements.measure_precision,
    "stage1": stage1_measurements.measure_stage1_errors,
    "rounds": stage1_measurements.measure_errors_by_round,
    "detector": _evaluate,
    "keypoint map": descriptor_maps.map_keypoints,
    "map": descriptor_maps.map_stage1_landmarks,
    "keypoint sheet": contact_sheets.draw_keypoint_sheet,
    "sheet": contact_sheets.draw_landmark_sheet,
    "matched sheet": contact_sheets.draw_matched_sheet,
}
