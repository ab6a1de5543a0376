"""From a finished run to its report: which pictures and figures the page shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from selfmark.config import to_dict
from selfmark.detector import Detector
from selfmark.evaluation.cached_predictions import run_fingerprint
from selfmark.evaluation.stage1_landmarks import Stage1, find_stage1_landmarks
from selfmark.images.store import ImageStore, load_store
from selfmark.model.colors import landmark_colors
from selfmark.points import FloatArray
from selfmark.report import metrics_text
from selfmark.report.embedding import embed_in_plane, is_tsne_available
from selfmark.report.page import ReportData, write_report
from selfmark.run.files import read_json
from selfmark.run.folder import Run
from selfmark.run.tensor_files import read_tensors
from selfmark.sampling import evenly_spaced

_EXAMPLES = 24  # images shown
_CLUSTER_IMAGES = 100  # images whose descriptors are laid out in the cluster picture
_CLUSTER_POINTS = 800  # descriptors in it, at most
_PROJECTED = (
    "This map shows two principal components, in which different landmarks may overlap. t-SNE separates them "
    "better: run pip install 'selfmark[report]' and build the report again."
)


def build_report(
    run: Run, detector: Detector, output: Path | None = None, loaded: ImageStore | None = None
) -> Path:
    """Write report/index.html of a finished run and return its path.

    Args:
        run: the run.
        detector: its detector.
        output: folder of metrics.json, in which the report goes too; None is the run folder.
        loaded: the run's images if they are in memory; None decodes the ones shown.
    """
    folder = output if output is not None else run.path
    metrics = _metrics(run, detector, folder / "metrics.json")
    refs = run.refs()
    chosen = [refs[row] for row in evenly_spaced(len(refs), _CLUSTER_IMAGES)]
    store = loaded.select(chosen) if loaded else load_store(chosen, run.config.images, float("inf"), None)
    shown = evenly_spaced(len(store), _EXAMPLES)
    located = detector.locate(store.pixels[shown])
    cluster_xy, cluster_label = _clusters(run, detector, store.pixels)
    checks = metrics.get("unlabelled")
    data = ReportData(
        title=run.path.resolve().name,
        names=detector.names,
        examples=store.pixels[shown].permute(0, 2, 3, 1).numpy(),
        example_xy=located.xy.cpu().numpy(),
        example_score=located.score.cpu().numpy(),
        example_names=tuple(store.refs[row].name for row in shown),
        mirror=detector.card.mirror,
        colors=landmark_colors(detector.card),
        skeleton=detector.card.skeleton,
        hidden=detector.card.hidden,
        detection=_detection(run),
        history=tuple(run.events()),
        figures=(*metrics_text.headline_figures(metrics), *_own_figures(run)),
        settings=to_dict(run.config),
        tables=metrics_text.metric_tables(metrics),
        curves=metrics_text.metric_curves(metrics),
        cluster_xy=cluster_xy,
        cluster_label=cluster_label,
        cluster_note="" if is_tsne_available() else _PROJECTED,
        trust=None if checks is None else np.array(checks["trust"], np.float64),
        order=None if checks is None else np.array(checks["order"], np.int64),
        facts=() if checks is None else metrics_text.landmark_facts(metrics),
        notes=tuple(metrics.get("notes", ())),
    )
    return write_report(data, folder / "report")


def _metrics(run: Run, detector: Detector, path: Path) -> dict[str, Any]:
    """What an evaluation has left, unless it was of another model or other settings."""
    metrics: dict[str, Any] = read_json(path) if path.exists() else {}
    if metrics and metrics.get("model") != run_fingerprint(run, detector.card):
        return {"notes": [f"{path.name} belongs to an earlier state of this run; evaluate it again."]}
    return metrics


def _clusters(run: Run, detector: Detector, pixels: Any) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Stage 1's descriptors of the landmarks laid out in the plane, [P, 2], and their landmarks [P]."""
    found = find_stage1_landmarks(Stage1.load(run, detector.device), pixels)
    rows = evenly_spaced(len(found.label), _CLUSTER_POINTS)
    return embed_in_plane(found.descriptor[rows]), found.label[rows]


def _detection(run: Run) -> FloatArray:
    """Share of the training images in which Stage 1 found each landmark, [K]."""
    tensors, _ = read_tensors(run.path / "points" / "landmarks.safetensors")
    label = tensors["label"].numpy()
    used = _images_used(run)
    found: FloatArray = np.bincount(label[label >= 0], minlength=run.config.K) / used
    return found


def _own_figures(run: Run) -> tuple[tuple[str, str, str], ...]:
    return (
        ("Landmarks", str(run.config.K), "K, the number of points the detector finds in every image."),
        ("Training images", str(_images_used(run)), "Images that could be read; none of them was labeled."),
    )


def _images_used(run: Run) -> int:
    return next(int(event["used"]) for event in reversed(run.events()) if event["event"] == "images")
