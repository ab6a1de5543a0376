"""Cache the results of the label-free checks of a run on a set of images, beside the cached predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from selfmark._version import __version__
from selfmark.config import Evaluation
from selfmark.errors import InputError, report_write_errors
from selfmark.evaluation.cached_predictions import cache_file, digest, images_fingerprint, run_fingerprint
from selfmark.evaluation.protocol import Metrics
from selfmark.evaluation.run_models import RunModels
from selfmark.image_ref import ImageRef
from selfmark.run.files import read_json, to_json, write_json
from selfmark.run.guarded_files import make_folder


def load_or_check(
    models: RunModels,
    refs: Sequence[ImageRef],
    settings: Evaluation,
    second_run: Metrics | None,
    compute: Callable[[], Metrics],
) -> Metrics:
    """Return the label-free checks of a run on images, from the cache if it is still valid.

    Args:
        models: The run, whose folder holds the cache.
        refs: The images; the checks use a sample of them.
        settings: Settings of the checks.
        second_run: Content of verification.json, the agreement with a second run; None without such a run.
        compute: Runs the checks.

    Raises:
        InputError: If the cache cannot be written, or the detector was replaced in the meantime.
    """
    path = cache_file(models.run, refs, "-checks.json")
    key = digest(
        run_fingerprint(models.run, models.card),
        images_fingerprint(refs),
        __version__,
        to_json(asdict(settings)),
        to_json(second_run),
    )
    if path.exists():
        cached = _read(path, key)
        if cached is not None:
            return cached
    checks = compute()
    models.require_unchanged()
    # If the weights of pretrained features are missing, some checks are left out. Such results are not
    # cached, because the weights may be installed later.
    if any(error is not None for error in checks["appearance_error"]):
        with report_write_errors(path):
            make_folder(path.parent)
            write_json({"fingerprint": key, "digest": digest(to_json(checks)), "checks": checks}, path)
    return checks


def _read(path: Path, key: str) -> Metrics | None:
    """Read cached checks; None if they are damaged, or their key differs because an input has changed."""
    try:
        stored = read_json(path)
        checks: Metrics = stored["checks"]
        is_valid = stored["fingerprint"] == key and stored["digest"] == digest(to_json(checks))
        return checks if is_valid else None
    except (InputError, KeyError, TypeError):
        return None
