"""Implement `selfmark check`: inspect the images of a planned run without training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selfmark.config import Config, override
from selfmark.errors import InputError, report_write_errors
from selfmark.features.loading import load_encoder
from selfmark.features.orientation import measure_uprightness
from selfmark.image_ref import ImageRef
from selfmark.images.input_files import require_inputs_kept
from selfmark.images.store import ImageStore, load_store
from selfmark.images.survey import ImageSurvey, describe_survey, survey_images
from selfmark.inspection.input_sheets import draw_crops, draw_originals, draw_ruler, write_sheet
from selfmark.inspection.run_estimate import RunEstimate, describe_estimate, estimate_run
from selfmark.inspection.setup_advice import InputFindings, advise_setup
from selfmark.keypoints.first_keypoints import detect_first_keypoints
from selfmark.run.devices import select_device
from selfmark.run.files import write_json
from selfmark.run.guarded_files import make_folders, remove_file
from selfmark.run.output_folder import read_record, require_own_output, require_written_by_selfmark
from selfmark.run_plan import RunInputs, RunOptions, check_request, resolve_config
from selfmark.sampling import evenly_spaced
from selfmark.tracking.regions import Regions, locate_objects

FILES = ("crops.jpg", "boxes.jpg", "ruler.jpg", "check.json")
"""Files that a check writes to its output folder."""

# The file for images that need more than `store_gigabytes`; no user has a file of this name.
_SCRATCH_NAME = ".selfmark-check-images.u8.part"
_FIELDS = ("summary", "survey", "estimate")  # fields that check.json has always had
_NUM_SAMPLES = 32  # images on which orientation and keypoints are measured

Progress = Callable[[str, int, int], None]
"""Called with the name of a step, the number of items done and their total."""


@dataclass(frozen=True)
class ImageCheck:
    """Result of a check.

    Attributes:
        survey: Properties of the images.
        estimate: Time and memory of the run.
        summary: The survey and the estimate as sentences.
        warnings: Sentences about possible problems of the images.
        advice: Sentences about options that suit the images and this machine.
        pictures: Paths of the crops, of the originals with their regions, and of one original with rulers.
    """

    survey: ImageSurvey
    estimate: RunEstimate
    summary: Sequence[str]
    warnings: Sequence[str]
    advice: Sequence[str]
    pictures: Sequence[Path]


def require_free_output(output: Path) -> None:
    """Raise if an output folder has files that a check would replace but did not write."""
    advice = "choose another folder with -o, or remove it"
    read_record(output / "check.json", advice, _FIELDS)
    require_written_by_selfmark([output / name for name in FILES], output / "check.json", advice)


def check_images(
    inputs: RunInputs,
    options: RunOptions,
    output: Path,
    on_progress: Progress = lambda step, done, total: None,
) -> ImageCheck:
    """Inspect images as `discover` would use them, and write contact sheets and check.json.

    Args:
        inputs: Images of the planned discovery.
        options: Options of the planned discovery.
        output: Folder for the contact sheets and check.json.
        on_progress: Called with the progress of each step.

    Raises:
        InputError: The images cannot be used, or the output is in a run or has files of the user.
    """
    require_own_output(output)
    device = select_device(options.device)
    tracking = check_request(inputs, options, device)
    notes: list[str] = []
    regions = inputs.regions or Regions()

    def check_output(images: Sequence[ImageRef]) -> None:
        require_inputs_kept(
            [output / name for name in FILES],
            (*dict.fromkeys(ref.path for ref in images), *inputs.inputs, regions.boxes),
        )
        require_free_output(output)

    refs = locate_objects(
        *inputs,
        tracking,
        lambda done, total: on_progress("finding animals", done, total),
        notes.append,
        check_output,
    )
    config, reason = resolve_config(inputs, options, len(refs), device)
    try:
        store = load_store(
            refs,
            config.images,
            config.runtime.store_gigabytes,
            output,
            lambda done, total: on_progress("reading images", done, total),
            _SCRATCH_NAME,
        )
        survey = survey_images(store)
        findings = _measure_sample(store, config, device)
        resolved_config = _resolve_orientation(config, findings)
        estimate = estimate_run(list(store.refs), resolved_config, device)
        first, *warnings = describe_survey(survey)
        planned = (
            f"preset {config.preset} ({reason}), {config.K or 'an automatic number of'} landmarks: "
            f"{describe_estimate(estimate, device)}"
        )
        result = ImageCheck(
            survey,
            estimate,
            (first, planned),
            (*warnings, *notes),
            advise_setup(survey, findings, estimate, config, inputs.every, device),
            (),
        )
        # check.json comes first: it marks the pictures as selfmark's, also if the check is interrupted.
        _write_result(result, store, output)
        return replace(result, pictures=_write_pictures(store, config, output))
    finally:
        remove_file(output / _SCRATCH_NAME)


def _write_pictures(store: ImageStore, config: Config, output: Path) -> list[Path]:
    """Write the pictures and return their paths; boxes.jpg is written only if images have boxes."""
    pictures = []
    with report_write_errors(f"to {output}"):
        write_sheet(draw_crops(store), output / "crops.jpg")
        pictures.append(output / "crops.jpg")
        if any(ref.box is not None for ref in store.refs):
            originals = draw_originals(store, config.images.max_megapixels)
            if originals is not None:
                write_sheet(originals, output / "boxes.jpg")
                pictures.append(output / "boxes.jpg")
        ruler = draw_ruler(store, config.images.max_megapixels)
        if ruler is not None:
            write_sheet(ruler, output / "ruler.jpg")
            pictures.append(output / "ruler.jpg")
    return pictures


def _measure_sample(store: ImageStore, config: Config, device: torch.device) -> InputFindings:
    """Measure on a few images whether objects are upright and how many keypoints they have."""
    rows = evenly_spaced(len(store), _NUM_SAMPLES)
    pixels, findings = store.pixels[rows], InputFindings()
    if len(rows) < config.images.minimum:
        return findings
    if config.uses_features and config.features.orientation == "auto":
        encoder = load_encoder(config.features.name, device)
        accuracy = measure_uprightness(encoder, pixels.to(device), config.runtime.predict_batch)
        findings = replace(findings, upright_accuracy=round(accuracy, 4))
    if config.keypoints.detector != "file":
        try:
            points = detect_first_keypoints(
                pixels, store.bounds[rows], config.keypoints, device, config.runtime.predict_batch
            )
        except InputError:  # The weights of the detector are not installed; `discover` reports this.
            return findings
        counts = points.counts(len(rows)).cpu().numpy()
        findings = replace(findings, keypoints=int(np.median(counts)))
    return findings


def _resolve_orientation(config: Config, findings: InputFindings) -> Config:
    """Return the settings with the orientation that a run would probably find; the estimate depends on it.

    If the objects are not upright, they are assumed to be `turned`. A run would also test whether all objects
    can be rotated to a common direction, and choose `any` if they cannot.
    """
    accuracy = findings.upright_accuracy
    if accuracy is None:
        return config
    is_upright = accuracy >= config.features.min_upright_accuracy
    return override(config, {"features.orientation": "upright" if is_upright else "turned"})


def _write_result(result: ImageCheck, store: ImageStore, output: Path) -> None:
    """Write check.json: all sentences, the survey, the estimate, and all images that cannot be read."""
    content: dict[str, Any] = {
        "summary": list(result.summary),
        "warnings": list(result.warnings),
        "advice": list(result.advice),
        "survey": asdict(result.survey),
        "estimate": asdict(result.estimate) | {"seconds": result.estimate.seconds},
        "unreadable": [asdict(skipped) for skipped in store.skipped],
    }
    with report_write_errors(f"to {output}"):
        make_folders(output)
        write_json(content, output / "check.json")
