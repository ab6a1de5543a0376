"""Build the report of a finished run: collect its pictures and numbers, and write the page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfmark.config import to_dict
from selfmark.errors import InputError
from selfmark.evaluation.cached_predictions import run_fingerprint
from selfmark.evaluation.run_models import RunModels
from selfmark.evaluation.stage1_landmarks import find_stage1_landmarks
from selfmark.images.reading_process import can_start_processes
from selfmark.images.run_images import load_run_images
from selfmark.images.store import ImageStore
from selfmark.model.card import ModelCard, landmarks_without_partner
from selfmark.model.colors import landmark_colors
from selfmark.points import FloatArray
from selfmark.report import metrics_text
from selfmark.report.cached_placements import Placements, load_or_compute_placements
from selfmark.report.embedding import embed_in_plane, is_tsne_available
from selfmark.report.embedding_process import EmbeddingProcess
from selfmark.report.metrics_schema import require_metrics
from selfmark.report.report_page import ReportData, write_report
from selfmark.run.event_log import LOG_NAME
from selfmark.run.files import read_json
from selfmark.run.folder import Run
from selfmark.run.tensor_files import read_tensors
from selfmark.sampling import evenly_spaced

_MAX_EXAMPLES = 24  # images shown with their landmarks
_MAX_EMBEDDED_IMAGES = 100  # images whose points are shown on the map of the landmarks
_MAX_EMBEDDED_POINTS = 800  # points on the map of the landmarks
_PROJECTION_NOTE = (
    "This map shows two principal components, in which different landmarks may overlap. t-SNE separates them "
    "better: run pip install 'selfmark[report]' and build the report again."
)


def build_report(
    models: RunModels, output: Path | None = None, image_store: ImageStore | None = None
) -> Path:
    """Write report/index.html of a finished run, and return its path.

    Args:
        models: Finished run and its networks.
        output: Folder that contains metrics.json and gets the report; None means the run folder.
        image_store: Decoded images of the run; None decodes the images that the report needs.

    Raises:
        InputError: If metrics.json or a file of the run is not valid.
    """
    run, card = models.run, models.card
    folder = output if output is not None else run.path
    metrics = _read_metrics(run, card, folder / "metrics.json")
    store, shown = _choose_images(run, image_store)

    def place() -> Placements:
        points = _find_points(models, store.pixels, shown)
        placements = points.place(embed_in_plane(points.descriptor))
        models.require_unchanged()
        return placements

    placed = load_or_compute_placements(run, card, store.refs, len(shown), place)
    numbers = collect_metrics(metrics, len(card.names), folder / "metrics.json")
    data = ReportData(
        title=run.path.resolve().name,
        names=card.names,
        examples=store.pixels[shown].permute(0, 2, 3, 1).numpy(),
        example_xy=placed.xy,
        example_score=placed.score,
        example_names=tuple(store.refs[row].name for row in shown),
        mirror=card.mirror,
        without_partner=tuple(landmarks_without_partner(card)),
        colors=landmark_colors(card),
        skeleton=card.skeleton,
        hidden=card.hidden,
        detection=_compute_detection_rates(run),
        history=tuple(run.events()),
        headline_numbers=(*numbers.headline_numbers, *_list_run_numbers(run, card)),
        settings=to_dict(run.config),
        tables=numbers.tables,
        curves=numbers.curves,
        cluster_xy=placed.plane_xy,
        cluster_label=placed.label,
        cluster_note="" if is_tsne_available() else _PROJECTION_NOTE,
        trust=numbers.trust,
        order=numbers.order,
        facts=numbers.facts,
        notes=numbers.notes,
    )
    return write_report(data, folder / "report")


@contextmanager
def embed_meanwhile(models: RunModels, image_store: ImageStore) -> Iterator[None]:
    """Compute the map of the landmarks in another process while the code in the context uses the GPU.

    The map is cached in the run folder, where `build_report` finds it. Nothing happens without a GPU, because
    the code in the context then needs all processors. Nothing happens without t-SNE either.

    Args:
        models: Finished run and its networks.
        image_store: Decoded images of the run.
    """
    if models.device.type == "cpu" or not (is_tsne_available() and can_start_processes()):
        yield
        return
    store, shown = _choose_images(models.run, image_store)
    points = _find_points(models, store.pixels, shown)
    try:
        process = EmbeddingProcess(points.descriptor)
    except OSError:  # For example, there is too little memory for another process.
        yield
        return
    with closing(process):
        yield
        load_or_compute_placements(
            models.run, models.card, store.refs, len(shown), lambda: points.place(process.result())
        )


@dataclass(frozen=True)
class ShownMetrics:
    """The parts of `ReportData` that come from metrics.json."""

    headline_numbers: tuple[Any, ...]
    tables: Any
    curves: Any
    trust: FloatArray | None
    order: npt.NDArray[np.int64] | None
    facts: Any
    notes: tuple[str, ...]


def collect_metrics(metrics: Any, num_landmarks: int, path: Path) -> ShownMetrics:
    """Convert the metrics to the form in which the report shows them.

    Args:
        metrics: content of metrics.json.
        num_landmarks: number of landmarks of the run.
        path: path of metrics.json, for messages.

    Raises:
        InputError: if the file was not written by an evaluation of this run.
    """
    try:
        require_metrics(metrics, num_landmarks)
    except ValueError as error:
        raise InputError(
            f"{path} is not the result of an evaluation of this run ({str(error)[:200]}): run 'selfmark "
            "evaluate' again"
        ) from error
    checks = metrics.get("unlabelled")
    return ShownMetrics(
        headline_numbers=tuple(metrics_text.list_headline_numbers(metrics)),
        tables=metrics_text.build_metric_tables(metrics),
        curves=metrics_text.build_metric_curves(metrics),
        trust=None if checks is None else np.array(checks["trust"], np.float64),
        order=None if checks is None else np.array(checks["order"], np.int64),
        facts=() if checks is None else metrics_text.list_landmark_facts(metrics),
        notes=(*metrics.get("advice", ()), *metrics.get("notes", ())),
    )


def _read_metrics(run: Run, card: ModelCard, path: Path) -> dict[str, Any]:
    """Return the metrics of the last evaluation.

    If the model or the settings have changed since then, the result contains only a note that says so.
    """
    metrics: dict[str, Any] = read_json(path) if path.exists() else {}
    if not isinstance(metrics, dict):
        raise InputError(f"{path} is not the result of an evaluation: run 'selfmark evaluate' again")
    if metrics and metrics.get("model") != run_fingerprint(run, card):
        return {
            "notes": [f"{path.name} belongs to an earlier state of this run. Run 'selfmark evaluate' again."]
        }
    return metrics


def _choose_images(run: Run, image_store: ImageStore | None) -> tuple[ImageStore, npt.NDArray[np.int64]]:
    """Return the images whose points are on the map of the landmarks, and the rows of the examples."""
    refs = run.refs()
    chosen = [refs[row] for row in evenly_spaced(len(refs), _MAX_EMBEDDED_IMAGES)]
    store = image_store.select(chosen) if image_store else load_run_images(run, chosen, run.config.images)
    return store, evenly_spaced(len(store), _MAX_EXAMPLES)


class _FoundPoints(NamedTuple):
    """Results of a run's networks: fields of `Placements`, and the descriptors [P, D] of the points."""

    xy: FloatArray
    score: FloatArray
    label: npt.NDArray[np.int64]
    descriptor: npt.NDArray[np.float32]

    def place(self, plane_xy: FloatArray) -> Placements:
        """Return the results with the positions [P, 2] of the points in the scatter plot."""
        return Placements(self.xy, self.score, plane_xy, self.label)


def _find_points(models: RunModels, pixels: Tensor, shown: npt.NDArray[np.int64]) -> _FoundPoints:
    """Locate landmarks in the rows `shown`, and sample the points of Stage 1 from all images."""
    located = models.detector.locate(pixels[shown])
    landmarks = find_stage1_landmarks(models.stage1, pixels)
    rows = evenly_spaced(len(landmarks.label), _MAX_EMBEDDED_POINTS)
    return _FoundPoints(
        located.xy.cpu().numpy(),
        located.score.cpu().numpy(),
        landmarks.label[rows],
        landmarks.descriptor[rows],
    )


def _compute_detection_rates(run: Run) -> FloatArray:
    """Return the fraction [K] of the training images in which Stage 1 found each landmark."""
    path = run.path / "points" / "landmarks.safetensors"
    label = read_tensors(path)[0].get("label")
    if label is None or label.dtype != torch.int64 or label.ndim != 1 or (label >= run.config.K).any():
        raise InputError(f"{path} does not belong to this run: it has no labels of {run.config.K} landmarks")
    found = label[label >= 0].numpy()
    rate: FloatArray = np.bincount(found, minlength=run.config.K) / _read_num_images(run)
    return rate


def _list_run_numbers(run: Run, card: ModelCard) -> tuple[tuple[str, str, str], ...]:
    return (
        ("Landmarks", str(run.config.K), "Points that the detector places in every image."),
        ("Training images", str(_read_num_images(run)), "Images that could be read. No labels were used."),
        *_list_feature_numbers(card),
    )


def _list_feature_numbers(card: ModelCard) -> tuple[tuple[str, str, str], ...]:
    """Return an entry for the pretrained features of the run; empty if it has none."""
    features = card.provenance.get("features")
    if not isinstance(features, dict) or not {"name", "training_data", "license"} <= set(features):
        return ()
    note = f"Pretrained: {features['training_data']}. License: {features['license']}."
    return (("Features", str(features["name"]), note),)


def _read_num_images(run: Run) -> int:
    """Return the number of training images that could be read, from the log of the run."""
    counts = [int(event["used"]) for event in run.events() if event["event"] == "images"]
    if not counts or counts[-1] == 0:
        raise InputError(f"{run.path / LOG_NAME} does not say how many images the run has")
    return counts[-1]
