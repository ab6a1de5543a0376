"""Describe the inputs of a measurement, and load its images."""

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
    """The inputs of one measurement.

    Attributes:
        run: Run folder; None if nothing is trained.
        config: Settings of the training run and of the evaluation.
        test: COCO file of the images on which errors are measured.
        fit: COCO file of the images on which regressors are fitted.
        by: Annotation fields to group errors by or, for contact sheets, to sort images by.
        detectors: Generic keypoint detectors to compare.
        folder: Folder for pictures, and for images that do not fit into memory.
        device: Device for the network.
        fit_images: Number of images in each random sample for fitting regressors; None for all images.
    """

    run: Path | None
    config: Config
    test: Path
    fit: Path
    by: tuple[str, ...]
    detectors: tuple[str, ...]
    folder: Path
    device: torch.device
    fit_images: int | None = None

    @property
    def run_folder(self) -> Path:
        """Run folder, for measurements that need a training run."""
        if self.run is None:
            raise ValueError("this measurement needs a training run")
        return self.run


def read_labels(path: Path, config: Config) -> AnnotatedObjects:
    """Read the objects of a COCO file; the file contains the absolute paths of its images."""
    return read_ground_truth(path, list_images([path]), config.evaluation.min_visibility)


def load_task_images(task: MeasurementTask, path: Path) -> LabeledImages:
    """Load all images of a COCO file; unreadable images are left out."""
    return load_labeled_images(read_labels(path, task.config), task.config, task.folder)


def load_image_sample(task: MeasurementTask, max_images: int) -> LabeledImages:
    """Load at most `max_images` test images, evenly spaced."""
    truth = read_labels(task.test, task.config)
    sample = truth.select(evenly_spaced(len(truth), max_images))
    return load_labeled_images(sample, task.config, task.folder)
