"""What a measurement works on: labeled images, a run, the settings; and images loaded with their points."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from selfmark.annotations import AnnotatedObjects
from selfmark.config import Config
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.labeled_images import LabeledImages, load_labeled_images
from selfmark.images.sources import list_images
from selfmark.sampling import evenly_spaced


@dataclass(frozen=True)
class MeasurementTask:
    """One measurement.

    run:       folder of the training; None where nothing is trained
    config:    its settings, with those of the evaluation
    test:      COCO file of the images errors are measured on
    fit:       COCO file of the images regressors are fitted on
    by:        annotation fields asked for
    detectors: generic keypoint detectors asked for
    folder:    where pictures go, and a store too large for memory
    """

    run: Path | None
    config: Config
    test: Path
    fit: Path
    by: tuple[str, ...]
    detectors: tuple[str, ...]
    folder: Path
    device: torch.device

    @property
    def trained(self) -> Path:
        if self.run is None:
            raise ValueError("this measurement needs a training")
        return self.run


def read_labels(path: Path, config: Config) -> AnnotatedObjects:
    """The objects of a COCO file that was made here: it names its own images."""
    return read_ground_truth(path, list_images([path]), config.evaluation.min_visibility)


def load_task_images(study: MeasurementTask, path: Path) -> LabeledImages:
    """Load all images of a file; those that cannot be read are left out."""
    return load_labeled_images(read_labels(path, study.config), study.config, study.folder)


def load_image_sample(study: MeasurementTask, most: int) -> LabeledImages:
    """Load at most so many of the test images, evenly spaced."""
    truth = read_labels(study.test, study.config)
    return load_labeled_images(truth.select(evenly_spaced(len(truth), most)), study.config, study.folder)
