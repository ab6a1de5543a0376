"""Unpack CVAT archives, read them with pycocotools, and test the file names in them."""

from __future__ import annotations

import contextlib
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfmark.errors import InputError
from selfmark.export.cvat import write_cvat
from selfmark.image_ref import ImageRef
from tests.export.fakes import (
    CARD,
    CROWD,
    FRAMES,
    NAMES,
    STILLS,
    TWO_OBJECTS,
    iterate_expected_objects,
    make_predictions,
)


def _unpack(path: Path) -> Any:
    coco: Any = pytest.importorskip("pycocotools.coco")
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["annotations/person_keypoints_default.json"]
        archive.extractall(path.parent)
    with contextlib.redirect_stdout(io.StringIO()):
        return coco.COCO(str(path.parent / "annotations" / "person_keypoints_default.json"))


@pytest.mark.parametrize("objects", [[*STILLS, *TWO_OBJECTS], FRAMES, CROWD])
def test_pycocotools_reads_the_annotations(objects: Any, tmp_path: Path) -> None:
    batches = make_predictions(objects)
    data = _unpack(write_cvat(batches, CARD, tmp_path))
    (category,) = data.loadCats(data.getCatIds())
    assert category["keypoints"] == list(NAMES)
    assert category["skeleton"] == [[1, 2], [3, 4]]
    for annotation, obj in zip(
        data.loadAnns(sorted(data.getAnnIds())), iterate_expected_objects(batches), strict=True
    ):
        (image,) = data.loadImgs(annotation["image_id"])
        assert (image["width"], image["height"]) == obj.size
        np.testing.assert_allclose(np.reshape(annotation["keypoints"], (-1, 3))[:, :2], obj.xy, atol=6e-4)
        # In a CVAT task created from the folder "set", the image set/left/a.jpg is called "left/a.jpg".
        if obj.ref.frame is None:
            assert image["file_name"] == obj.ref.path.relative_to("set").as_posix()
        else:
            assert image["file_name"] == f"frame_{obj.ref.frame:06d}.PNG"


def test_image_names_are_relative_to_the_resolved_common_folder(tmp_path: Path) -> None:
    given = [(ImageRef(Path("/data/x/a.jpg")), (9, 9)), (ImageRef(Path("/data/y/../x/b.jpg")), (9, 9))]
    data = _unpack(write_cvat(make_predictions(given), CARD, tmp_path))
    assert [image["file_name"] for image in data.loadImgs(data.getImgIds())] == ["a.jpg", "b.jpg"]


@pytest.mark.parametrize("objects", [[*FRAMES, *CROWD], [*STILLS, *FRAMES], [*FRAMES, *STILLS]])
@pytest.mark.parametrize("batch", [1, 100])
def test_an_archive_has_either_images_or_one_video(objects: Any, batch: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="either images or one video"):
        write_cvat(make_predictions(objects, batch), CARD, tmp_path)
    assert list(tmp_path.iterdir()) == []
