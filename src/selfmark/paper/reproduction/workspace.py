"""Trainings and measurements, each made once and kept in the output folder.

OUT/trainings/DATA-KEY     run folders; one that was interrupted goes on
OUT/measurements/KEY       metrics.json, written last, and pictures
OUT/failed/KEY.json        why a training or a measurement came to nothing; neither is tried again while this
                           is there
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from selfmark.config import override
from selfmark.discovery import discover, train_stage1
from selfmark.errors import DiskError, InputError, NotEnoughData, TrainingError
from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions, evaluate_run
from selfmark.paper.reproduction import contact_sheets, descriptor_maps, stage1_measurements
from selfmark.paper.reproduction.dataset_cache import DatasetCache
from selfmark.paper.reproduction.experiment_plan import Job, Measurement, Training
from selfmark.paper.reproduction.measurement_task import MeasurementTask
from selfmark.paper.reproduction.table_metrics import Figures, Need
from selfmark.run.devices import select_device
from selfmark.run.files import read_json, write_json
from selfmark.run.folder import Listener, Run

Watch = Callable[[], AbstractContextManager[Listener | None]]


@dataclass(frozen=True)
class Workspace:
    """Where work is done: the data, the output folder, the device, and who watches each training."""

    shelf: DatasetCache
    output: Path
    device: str
    watch: Watch = nullcontext

    def run_folder(self, training: Training) -> Path:
        return self.output / "trainings" / training.folder

    def folder(self, measurement: Measurement) -> Path:
        return self.output / "measurements" / measurement.key

    def failure(self, key: str) -> Path:
        """Where it is kept that the training or measurement of this key came to nothing."""
        return self.output / "failed" / f"{key}.json"

    def has_failed(self, measurement: Measurement) -> bool:
        """Whether a measurement came to nothing, or the training it is of."""
        keys = [measurement.key, *([measurement.training.key] if measurement.trained else [])]
        return any(self.failure(key).exists() for key in keys)

    def figures(self, measurement: Measurement) -> Figures:
        figures: Figures = read_json(self.folder(measurement) / "metrics.json")
        return figures


def is_job_done(bench: Workspace, job: Job) -> bool:
    """Whether everything of a job is there, or came to nothing."""
    if bench.failure(job.key).exists():
        return True
    trained = job.training is None or is_trained(bench.run_folder(job.training), job.training.stages)
    return trained and all(_is_settled(bench, measurement) for measurement in job.measurements)


def is_trained(folder: Path, stages: int) -> bool:
    """Whether a run got as far as is needed: to its last clustering, or to a detector."""
    if stages < 2:
        return (folder / "points" / "landmarks.safetensors").exists()
    if not (folder / "model" / "model.json").exists():
        return False
    return any(event["event"] == "done" for event in Run.open(folder).events())


def run_job(bench: Workspace, job: Job) -> None:
    """Train, then measure what has not been measured; what comes to nothing is noted and left."""
    if job.training is not None and not is_trained(bench.run_folder(job.training), job.training.stages):
        try:
            train_run(bench, job.training)
        except (TrainingError, NotEnoughData) as error:
            _note_failure(bench, job.key, job.training, str(error))
            return
    for measurement in job.measurements:
        if not _is_settled(bench, measurement):
            try:
                run_measurement(bench, measurement)
            except DiskError:
                raise
            except InputError as error:
                why = f"its {measurement.need} could not be measured: {error}"
                _note_failure(bench, measurement.key, measurement.training, why)


def _note_failure(bench: Workspace, key: str, training: Training, why: str) -> None:
    path = bench.failure(key)
    path.parent.mkdir(exist_ok=True)
    write_json({"training": training.folder, "why": why}, path)


def train_run(bench: Workspace, training: Training) -> None:
    """Begin a training or go on with it, as far as is needed."""
    folder = bench.run_folder(training)
    begin = discover if training.stages > 1 else train_stage1
    if (folder / "run.json").exists():
        with bench.watch() as listener:
            begin(output=folder, resume=True, device=bench.device, listener=listener)
        return
    held = bench.shelf.hold(training.data, training.points)
    settings, images = dict(training.settings), held.train_file()
    if training.start is not None:
        images = held.started_train_file(training.start)
        file = held.start_file(training.start, training.config.seed, training.config)
        settings |= {"keypoints.detector": "file", "keypoints.points_file": str(file)}
    with bench.watch() as listener:
        begin(
            inputs=[images],
            output=folder,
            preset=training.preset,
            settings=settings,
            device=bench.device,
            listener=listener,
        )


def run_measurement(bench: Workspace, measurement: Measurement) -> None:
    """Measure, and keep metrics.json with a word on which fields and detectors it has."""
    folder = bench.folder(measurement)
    folder.mkdir(parents=True, exist_ok=True)
    figures = _KINDS[measurement.need](_study(bench, measurement, folder))
    write_json(figures | {"measured": _measured(measurement)}, folder / "metrics.json")


def _is_settled(bench: Workspace, measurement: Measurement) -> bool:
    return bench.failure(measurement.key).exists() or _is_measured(bench, measurement)


def _is_measured(bench: Workspace, measurement: Measurement) -> bool:
    path = bench.folder(measurement) / "metrics.json"
    if not path.exists():
        return False
    return set(_measured(measurement)) <= set(read_json(path)["measured"])


def _measured(measurement: Measurement) -> list[str]:
    return [*measurement.by, *measurement.detectors]


# --- what each need is met by ----------------------------------------------------------------------------


def _study(bench: Workspace, measurement: Measurement, folder: Path) -> MeasurementTask:
    held = bench.shelf.hold(measurement.data, measurement.points)
    training = measurement.training
    config = override(
        training.config, {f"evaluation.{name}": value for name, value in measurement.evaluation.items()}
    )
    if config.evaluation.ridge not in config.evaluation.ridges:  # Stage 1's error is looked up among these
        ridges = (*config.evaluation.ridges, config.evaluation.ridge)
        config = replace(config, evaluation=replace(config.evaluation, ridges=ridges))
    return MeasurementTask(
        run=bench.run_folder(training) if measurement.trained else None,
        config=config,
        test=held.test_file(),
        fit=held.fit_file(config.seed, measurement.fit_images),
        by=measurement.by,
        detectors=measurement.detectors,
        folder=folder,
        device=select_device(bench.device),
    )


def _evaluated(study: MeasurementTask) -> Figures:
    """All that `selfmark evaluate` measures with regressors fitted on every image there is to fit on."""
    settings = asdict(study.config.evaluation) | {"fit_images": (), "draws": 1}
    return evaluate_run(
        study.trained,
        EvaluationInputs(study.test, study.test, study.fit, study.fit),
        EvaluationOptions(by=study.by, settings=settings),
        output=study.folder / "evaluation",
        device=str(study.device),
    )


_KINDS: dict[Need, Callable[[MeasurementTask], Figures]] = {
    "keypoints": stage1_measurements.measure_precision,
    "stage1": stage1_measurements.measure_stage1_errors,
    "rounds": stage1_measurements.measure_errors_by_round,
    "detector": _evaluated,
    "keypoint map": descriptor_maps.map_keypoints,
    "map": descriptor_maps.map_stage1_landmarks,
    "keypoint sheet": contact_sheets.draw_keypoint_sheet,
    "sheet": contact_sheets.draw_landmark_sheet,
    "matched sheet": contact_sheets.draw_matched_sheet,
}
