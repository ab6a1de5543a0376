"""Write a zip file that CVAT imports as "COCO Keypoints": skeletons on the images of one task."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from selfmark.detector import Prediction
from selfmark.errors import InputError
from selfmark.export.coco_keypoints import write_coco_annotations
from selfmark.export.output_files import open_output, require_writable
from selfmark.image_ref import ImageRef
from selfmark.model.card import ModelCard

ANNOTATIONS = "annotations/person_keypoints_default.json"  # CVAT recognizes keypoints by this file name


def write_cvat(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/cvat.zip for a task made from the same images, or from the same single video."""
    require_writable(folder)
    path = folder / "cvat.zip"
    with (
        open_output(path, "wb", verify=_read_back) as output,
        zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(ANNOTATIONS, "w", force_zip64=True) as entry,
        io.TextIOWrapper(entry, encoding="utf-8") as handle,
    ):
        write_coco_annotations(_require_one_task(predictions), card, handle, _get_task_file_names)
    return path


def _read_back(path: Path) -> None:
    """Raise an OSError if the archive cannot be read or a checksum in it is wrong."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged_file = archive.testzip()
    except zipfile.BadZipFile as error:
        raise OSError(0, f"the archive cannot be read back ({error})") from error
    if damaged_file is not None:
        raise OSError(0, "the archive cannot be read back")


def _require_one_task(predictions: Iterable[Prediction]) -> Iterator[Prediction]:
    """Yield the predictions; raise unless all are from still images or all from the same video."""
    sources: set[Path | None] = set()  # videos, and None for still images
    for prediction in predictions:
        sources |= {None if ref.frame is None else ref.path for ref in prediction.refs}
        if len(sources) > 1:
            raise InputError(
                "a CVAT task is either images or one video: predict each video separately, with its own "
                "output folder"
            )
        yield prediction


def _get_task_file_names(refs: Sequence[ImageRef]) -> list[str]:
    """Return the names that CVAT gives to the images.

    Names of video frames contain the frame number. Names of still images are paths relative to the common
    folder of the images.
    """
    if any(ref.frame is not None for ref in refs):
        return [f"frame_{ref.frame:06d}.PNG" for ref in refs]
    paths = [os.path.abspath(ref.path) for ref in refs]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
    return [Path(os.path.relpath(path, folder)).as_posix() for path in paths]
