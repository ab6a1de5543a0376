"""From a finished run to its report: which pictures and figures the page shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfmark.config import to_dict
from selfmark.detector import Detector
from selfmark.images.store import load_store
from selfmark.points import FloatArray
from selfmark.report.page import ReportData, write_report
from selfmark.run import Run, read_json
from selfmark.train.checkpoint import read_tensors

_EXAMPLES = 24  # images shown


def report_on_run(run: Run, detector: Detector) -> Path:
    """Write report/index.html of a finished run and return its path."""
    refs = run.refs()
    chosen = [refs[index] for index in np.linspace(0, len(refs) - 1, min(_EXAMPLES, len(refs))).astype(int)]
    store = load_store(chosen, run.config.images, run.config.runtime.store_gigabytes, run.path)
    located = detector.locate(store.pixels)
    data = ReportData(
        title=run.path.resolve().name,
        names=detector.names,
        examples=store.pixels.permute(0, 2, 3, 1).numpy(),
        example_xy=located.xy.cpu().numpy(),
        example_score=located.score.cpu().numpy(),
        example_names=tuple(ref.name for ref in store.refs),
        mirror=detector.card.mirror,
        detection=_detection(run),
        history=tuple(run.events()),
        figures=_figures(run),
        settings=to_dict(run.config),
    )
    return write_report(data, run.path / "report")


def _detection(run: Run) -> FloatArray:
    """Share of the training images in which Stage 1 found each landmark, [K]."""
    tensors, _ = read_tensors(run.path / "points" / "landmarks.safetensors")
    label = tensors["label"].numpy()
    used = _images_used(run)
    found: FloatArray = np.bincount(label[label >= 0], minlength=run.config.K) / used
    return found


def _figures(run: Run) -> tuple[tuple[str, str, str], ...]:
    """Headline figures: what an evaluation has left in metrics.json, then what the run itself knows."""
    path = run.path / "metrics.json"
    measured = read_json(path)["figures"] if path.exists() else []
    own = (
        ("Landmarks", str(run.config.K), "K, the number of points the detector finds in every image."),
        ("Training images", str(_images_used(run)), "Images that could be read; none of them was labelled."),
    )
    return (*((str(name), str(value), str(meaning)) for name, value, meaning in measured), *own)


def _images_used(run: Run) -> int:
    return next(int(event["used"]) for event in reversed(run.events()) if event["event"] == "images")
