"""Find out how many iterations a method can do in a given time, by timing a few steps of every stage."""

from __future__ import annotations

from typing import Any

import torch

from selfmark.comparison.comparison_plan import UNTRAINED_SETTINGS, MethodJob
from selfmark.config import Config, Network, override
from selfmark.config.schedule import scale_schedule, schedule_settings, stage_iterations
from selfmark.errors import InputError
from selfmark.feature_discovery.feature_images import checked_rows
from selfmark.features.loading import load_encoder
from selfmark.features.orientation import measure_uprightness
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.images.store import load_store
from selfmark.inspection.step_timing import measure_steps
from selfmark.run_plan import RunInputs, RunOptions, resolve_config
from selfmark.sampling import evenly_spaced

_TIMED_IMAGES = 64  # images on which steps are timed
_TIMED_FRACTION = 0.1  # fraction of the budget that timing may take
_MIN_TIMED_SECONDS = 5.0  # timing may always take this long
_MIN_FACTOR, _MAX_FACTOR = 0.01, 50.0  # limits of the factor on the iterations of the preset


def plan_schedule(job: MethodJob, device: torch.device) -> dict[str, Any]:
    """Plan the numbers of iterations so that training takes as long as the budget; return them as settings.

    Self-training ends Stage 1 after its warm-up if the landmarks so far do not agree with the zero-shot
    landmarks. Training then takes less time than the budget. For the row "untrained", return the settings
    that leave the network untrained.

    Args:
        job: the method and its budget.
        device: device to compute on.

    Raises:
        InputError: if fewer than two of the first images can be read.
    """
    if job.name == "untrained":
        # This row is a run of the method equivariance, whose network has a smaller depth than those of other
        # methods. Use the depth of the other methods.
        return UNTRAINED_SETTINGS | {"network.depth": job.settings.get("network.depth", Network().depth)}
    refs = list_images(list(job.comparison.images))
    config = resolve_job_config(job, len(refs), device)
    if config.method == "zero-shot":
        return schedule_settings(config)
    budget = job.comparison.budget
    timed_seconds = max(_TIMED_FRACTION * budget, _MIN_TIMED_SECONDS)
    seconds = predict_seconds(_settle_orientation(config, refs, device), refs, device, timed_seconds)
    factor = min(max(budget / max(seconds, 1e-6), _MIN_FACTOR), _MAX_FACTOR)
    return schedule_settings(scale_schedule(config, factor))


def resolve_job_config(job: MethodJob, num_images: int, device: torch.device) -> Config:
    """Return the settings of the run of a method, before its iterations are planned."""
    comparison = job.comparison
    options = RunOptions(
        comparison.landmarks,
        preset=comparison.preset,
        settings=job.settings,
        method=job.method,
        verify=False,
    )
    return resolve_config(RunInputs(list(comparison.images)), options, num_images, device)[0]


def predict_seconds(
    config: Config, refs: list[ImageRef], device: torch.device, timed_seconds: float
) -> float:
    """Return how many seconds all training iterations of a run take, if no stage is omitted.

    Args:
        config: settings of the run.
        refs: images of the run.
        device: device to compute on.
        timed_seconds: seconds to spend on timing; slow steps may take longer.
    """
    # Use the first images, because later frames of a video take longer to reach.
    store = load_store(refs[:_TIMED_IMAGES], config.images, float("inf"), None)
    if len(store) < 2:
        raise InputError(f"only {len(store)} of the first {len(refs[:_TIMED_IMAGES])} images can be read")
    pace = measure_steps(config, store, device, timed_seconds)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return sum(count * pace[stage] for stage, count in stage_iterations(config).items())


def _settle_orientation(config: Config, refs: list[ImageRef], device: torch.device) -> Config:
    """Replace the orientation "auto" by "upright" or "not-upright", because Stage 1 needs upright objects.

    The images and the check are those of the run (see `feature_images`), so the run makes the same decision.
    """
    features = config.features
    if not config.uses_features or features.orientation != "auto":
        return config
    used = evenly_spaced(len(refs), features.max_images)
    chosen = [refs[used[row]] for row in checked_rows(len(used)).tolist()]
    pixels = load_store(chosen, config.images, float("inf"), None).pixels.to(device)
    accuracy = measure_uprightness(load_encoder(features.name, device), pixels, config.runtime.predict_batch)
    is_upright = accuracy >= features.min_upright_accuracy
    return override(config, {"features.orientation": "upright" if is_upright else "not-upright"})
