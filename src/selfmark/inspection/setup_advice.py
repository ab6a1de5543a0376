"""Give advice before a run: number of images, recipe, number of landmarks, frames, memory, and a GPU."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import torch

from selfmark.config import Config
from selfmark.images.survey import ImageSurvey
from selfmark.inspection.run_estimate import RunEstimate
from selfmark.run.devices import available_memory
from selfmark.wording import choose_form, describe_count

_ENOUGH_IMAGES = 100  # fewer images than this often show too little variety
_MAX_MEMORY_FRACTION = 0.8  # fraction of the free memory that a run may take without a warning

FREE_GPU = (
    "Google Colab (colab.research.google.com: Runtime, Change runtime type, T4 GPU) and Kaggle notebooks "
    "(kaggle.com/code: Settings, Accelerator) lend a GPU for free; install selfmark there and upload "
    "the images"
)


@dataclass(frozen=True)
class InputFindings:
    """Properties that were measured on some images. Both properties are None if there are too few images.

    Attributes:
        upright_accuracy: Accuracy of telling images from upside-down copies; 0.5 is chance, 1 is perfect (see
            `measure_uprightness`). None if no features are used or the settings already say how objects are
            oriented.
        keypoints: Median number of generic keypoints per image. None if keypoints are read from a file or
            their detector is not installed.
    """

    upright_accuracy: float | None = None
    keypoints: int | None = None


def advise_setup(
    survey: ImageSurvey,
    findings: InputFindings,
    estimate: RunEstimate,
    config: Config,
    every: int,
    device: torch.device,
) -> list[str]:
    """Return sentences of advice on the options of a run.

    Args:
        survey: Properties of the images.
        findings: Properties that were measured on some images.
        estimate: Time and memory of the run.
        config: Settings of the run.
        every: Value of --every: the run uses every n-th frame of each video.
        device: Device that the run would use.
    """
    candidates = (
        _advise_image_count(survey, config),
        _advise_recipe(findings, config),
        _advise_landmarks(findings, config),
        _advise_frames(survey, every, config),
        _advise_memory(estimate),
        _advise_gpu(device),
    )
    return [sentence for sentence in candidates if sentence]


def _advise_image_count(survey: ImageSurvey, config: Config) -> str:
    images, verb = describe_count(survey.images, "image"), choose_form(survey.images, "is", "are")
    if survey.images < config.images.minimum:
        return f"{images} {verb} too few: at least {config.images.minimum} are needed"
    if survey.images < _ENOUGH_IMAGES:
        return f"{images} {verb} few: {_ENOUGH_IMAGES} or more give more reliable landmarks"
    return ""


def _advise_recipe(findings: InputFindings, config: Config) -> str:
    accuracy = findings.upright_accuracy
    if accuracy is None:
        return ""
    is_upright = accuracy >= config.features.min_upright_accuracy
    reason = f"upside-down copies are recognized in {accuracy:.0%} of cases"
    if is_upright:
        return (
            f"recipe: the objects are upright ({reason}), as --recipe auto will find; if they are seen from "
            "the side and face left in some images and right in others, use --recipe side-view"
        )
    return (
        f"recipe: the objects face any direction ({reason}), as --recipe auto will find; if they are all "
        "upright, use --recipe upright"
    )


def _advise_landmarks(findings: InputFindings, config: Config) -> str:
    num_keypoints = findings.keypoints
    if not num_keypoints or not config.K:
        return ""
    advice = f"number of landmarks: the images have about {num_keypoints} distinct points each"
    if num_keypoints < config.K:
        return f"{advice}, fewer than -k {config.K}: use -k {num_keypoints} or less"
    return f"{advice}; -k {config.K} is fine, or let 'selfmark discover -k auto' choose"


def _advise_frames(survey: ImageSurvey, every: int, config: Config) -> str:
    if survey.stride > 1:
        num_remaining = survey.images // survey.stride
        return (
            f"frames: successive frames look alike; --every {every * survey.stride} uses {num_remaining} "
            "frames and loses little"
        )
    max_images = config.features.max_images
    if survey.videos and config.uses_features and survey.images > max_images:
        stride = -(-survey.images // max_images)
        return (
            f"frames: the preset {config.preset} trains on {max_images} images at most; "
            f"--every {every * stride} reads only that many"
        )
    return ""


def _advise_memory(estimate: RunEstimate) -> str:
    free = available_memory()
    if free is None or estimate.host_bytes <= _MAX_MEMORY_FRACTION * free:
        return ""
    return (
        f"memory: the run needs about {estimate.host_bytes / 2**30:.1f} GiB, but {free / 2**30:.1f} GiB are "
        "free: use fewer images, or --set runtime.store_gigabytes=1 to keep images on disk"
    )


def _advise_gpu(device: torch.device) -> str:
    if device.type == "cuda":
        return ""
    if torch.cuda.is_available():
        return "GPU: leave out --device cpu to use the GPU of this machine"
    if shutil.which("nvidia-smi"):
        return (
            "GPU: this machine has an NVIDIA driver, but torch cannot use it: install a CUDA build of torch, "
            "see pytorch.org/get-started"
        )
    return (
        "GPU: none here. With a GPU, the preset auto trains a larger network within minutes and places "
        f"landmarks more accurately. {FREE_GPU}"
    )
