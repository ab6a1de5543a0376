"""List the images that a label file names, cropped like the images that a run was trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from selfmark.errors import InputError
from selfmark.evaluation.label_files import is_coco
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.run.folder import Run


def list_labeled_images(labels: Path, folder: Path) -> list[ImageRef]:
    """Return the images that a COCO file names.

    The boxes of the file are kept if the run used boxes, or if an image shows several objects.

    Args:
        labels: the label file.
        folder: run folder or model folder.

    Raises:
        InputError: if the file is not a COCO file. Other formats do not name the folder of their images.
    """
    if not is_coco(labels):
        raise InputError(f"{labels} does not name the folder of its images: add the folder before --labels")
    return _crop_like_the_run(list_images([labels]), folder)


def _crop_like_the_run(refs: Sequence[ImageRef], folder: Path) -> list[ImageRef]:
    """Remove the boxes of a label file, unless the run used boxes or an image shows several objects.

    The labeled images are used to adapt a detector. They must be cropped like the images that the detector is
    later applied to, and most runs use whole images. If `folder` is a model folder, the images of its run are
    unknown, and the run is assumed to use whole images.
    """
    is_run = (folder / "run.json").exists()
    run_used_boxes = is_run and any(ref.box is not None for ref in Run.open(folder).refs())
    objects_per_image = Counter((ref.path, ref.frame) for ref in refs)
    if run_used_boxes or max(objects_per_image.values()) > 1:
        return list(refs)
    return [replace(ref, box=None) for ref in refs]
