"""Test labels exported from Label Studio: small examples, and a round trip through selfmark's export."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from selfmark.annotations import AnnotatedObjects
from selfmark.errors import InputError
from selfmark.evaluation import label_files
from selfmark.export.label_studio import write_label_studio
from selfmark.image_ref import ImageRef
from tests.export.fakes import CARD, NAMES, STILLS, TWO_OBJECTS, iterate_expected_objects, make_predictions


def _make_point(name: str, x: float, y: float, **more: Any) -> dict[str, Any]:
    size = {"original_width": 200, "original_height": 50}
    value = {"x": x, "y": y, "width": 0.4, "keypointlabels": [name]}
    return {"type": "keypointlabels", "id": name, "value": value, **size, **more}


def _make_box(**more: Any) -> dict[str, Any]:
    value = {
        "x": 10,
        "y": 20,
        "width": 50,
        "height": 40,
        "rotation": 0,
        "rectanglelabels": ["object"],
        **more,
    }
    return {
        "type": "rectanglelabels",
        "id": "box",
        "value": value,
        "original_width": 200,
        "original_height": 50,
    }


def _make_task(*regions: dict[str, Any], image: str = "/data/local-files/?d=photos/a.jpg") -> dict[str, Any]:
    return {"id": 1, "data": {"image": image}, "annotations": [{"result": list(regions)}]}


def _read(folder: Path, content: Any, *images: ImageRef) -> AnnotatedObjects:
    path = folder / "export.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return label_files.read_ground_truth(path, images or [ImageRef(Path("/home/me/photos/a.jpg"))])


def test_percentages_become_pixels(tmp_path: Path) -> None:
    truth = _read(tmp_path, [_make_task(_make_point("nose", 50, 50), _make_point("ear", 0.25, 99))])
    assert truth.names == ("nose", "ear")
    # Half of 200 pixels is the border between pixels 99 and 100; pixel centers are whole numbers.
    np.testing.assert_allclose(truth.xy[0], [[99.5, 24.5], [0, 49]], atol=1e-12)
    assert np.isnan(truth.boxes).all()


def test_labels_of_thumbnails_are_refused(tmp_path: Path) -> None:
    """The percentages would be converted with the size of the thumbnails."""
    path = tmp_path / "a.jpg"
    Image.new("RGB", (400, 100)).save(path)
    task = _make_task(_make_point("nose", 50, 50))
    with pytest.raises(
        InputError, match=r"'photos/a.jpg' is 200 x 50 pixels in the labels, but .* 400 x 100"
    ):
        _read(tmp_path, [task], ImageRef(path))
    Image.new("RGB", (200, 50)).save(path)
    for region in task["annotations"][0]["result"]:
        region |= {"original_width": 200.0, "image_rotation": 0.0}
    assert not [note for note in _read(tmp_path, [task], ImageRef(path)).notes if "does not fit" in note]


def test_points_in_a_rectangle_form_an_object(tmp_path: Path) -> None:
    regions = [_make_point("nose", 50, 50, parentID="box"), _make_box(), _make_point("nose", 1, 2)]
    images = [ImageRef(Path("photos/a.jpg"), None, box) for box in ((20, 10, 100, 20), (0, 0, 5, 5))]
    with pytest.raises(InputError, match=r"result\[2\] needs a 'bbox'"):
        _read(tmp_path, [_make_task(*regions)], *images)
    truth = _read(tmp_path, [_make_task(*regions[:2])], *images)
    assert truth.refs == (images[0],)
    np.testing.assert_allclose(truth.boxes, [[20, 10, 100, 20]])
    rotated = _read(tmp_path, [_make_task(regions[0], _make_box(rotation=30))])
    assert np.isnan(rotated.boxes).all()


@pytest.mark.parametrize(
    "address",
    [
        "/data/local-files/?d=me/photos/a%20%C3%A9%2Bb.jpg",
        "/data/upload/12/0a1b2c3d-a%20%C3%A9%2Bb.jpg",
        "https://example.org/me/photos/a%20%C3%A9%2Bb.jpg?token=1",
        "s3://bucket/photos/a%20%C3%A9%2Bb.jpg",
        "photos/a é+b.jpg",
    ],
)
def test_an_image_is_found_by_every_kind_of_address(address: str, tmp_path: Path) -> None:
    ref = ImageRef(Path("/home/me/photos/a é+b.jpg"))
    assert _read(tmp_path, [_make_task(_make_point("nose", 1, 2), image=address)], ref).refs == (ref,)


def test_tasks_without_annotations_are_ignored(tmp_path: Path) -> None:
    untouched = {"data": {"image": "photos/b.jpg"}, "predictions": [{"result": [_make_point("nose", 1, 2)]}]}
    canceled = _make_task(_make_point("nose", 1, 2), image="photos/c.jpg")
    canceled["annotations"][0]["was_canceled"] = True
    assert len(_read(tmp_path, [untouched, canceled, _make_task(_make_point("nose", 1, 2))])) == 1
    with pytest.raises(InputError, match="annotates no objects"):
        _read(tmp_path, [untouched, canceled])


def test_accepted_predictions_are_read_back(tmp_path: Path) -> None:
    batches = make_predictions([*STILLS, TWO_OBJECTS[1]])
    tasks = json.loads(write_label_studio(batches, CARD, tmp_path).read_text())
    for task in tasks:
        task["annotations"] = task.pop("predictions")
    objects = list(iterate_expected_objects(batches))
    truth = _read(tmp_path, tasks, *(item.ref for item in objects))
    assert truth.names == NAMES
    assert truth.refs == tuple(item.ref for item in objects)
    np.testing.assert_allclose(truth.xy, [item.xy for item in objects], atol=6e-4)


def _make_changed_task(change: Callable[[dict[str, Any]], Any]) -> list[Any]:
    task = _make_task(_make_point("nose", 50, 50, parentID="box"), _make_box())
    change(task)
    return [task]


def _get_region(task: dict[str, Any], number: int = 0) -> dict[str, Any]:
    region: dict[str, Any] = task["annotations"][0]["result"][number]
    return region


INVALID: dict[str, tuple[Any, str]] = {
    "broken": ("[", "is not valid JSON"),
    "a number": ([3], r"tasks\[0\] is not a task"),
    "no result": (
        _make_changed_task(lambda t: t["annotations"][0].pop("result")),
        "list of regions under 'result'",
    ),
    "two annotators": (
        _make_changed_task(lambda t: t["annotations"].append(copy.deepcopy(t["annotations"][0]))),
        "annotated 2 times",
    ),
    "no image": (_make_changed_task(lambda t: t.update(data={})), "address of its image"),
    "no size": (
        _make_changed_task(lambda t: _get_region(t).pop("original_width")),
        "'original_width' must be a number",
    ),
    "a word": (
        _make_changed_task(lambda t: _get_region(t)["value"].update(x="5")),
        "'x' must be a number, not '5'",
    ),
    "true": (_make_changed_task(lambda t: _get_region(t)["value"].update(x=True)), "'x' must be a number"),
    "nan": (
        _make_changed_task(lambda t: _get_region(t)["value"].update(x=float("nan"))),
        "'x' must be a number",
    ),
    "no value": (_make_changed_task(lambda t: _get_region(t).pop("value")), r"result\[0\] needs a 'value'"),
    "no value of a box": (
        _make_changed_task(lambda t: _get_region(t, 1).pop("value")),
        r"result\[1\] needs a 'value'",
    ),
    "no name": (
        _make_changed_task(lambda t: _get_region(t)["value"].pop("keypointlabels")),
        "must list names",
    ),
    "twice": ([_make_task(_make_point("nose", 1, 2), _make_point("nose", 3, 4))], "'nose' occurs twice"),
    "a negative box": (
        _make_changed_task(lambda t: _get_region(t, 1)["value"].update(width=-1)),
        "w and h not negative",
    ),
    "no pixels": (
        _make_changed_task(lambda t: _get_region(t).update(original_height=0)),
        r"result\[0\]: 'original_height' must be larger than 0, not 0",
    ),
    "two sizes": (
        _make_changed_task(lambda t: _get_region(t, 1).update(original_width=100)),
        r"tasks\[0\]: its regions belong to images of 100 x 50 and 200 x 50 pixels",
    ),
    "a rotated image": (
        _make_changed_task(lambda t: _get_region(t).update(image_rotation=90)),
        r"result\[0\]: the image was rotated by 90 degrees in Label Studio; rotate it back",
    ),
    "a rotated image of a box": (
        _make_changed_task(lambda t: _get_region(t, 1).update(image_rotation=270)),
        r"result\[1\]: the image was rotated by 270 degrees",
    ),
    "an address that is not valid": (
        [_make_task(_make_point("nose", 1, 2), image="http://[::1/a.jpg")],
        r"tasks\[0\]: the address of its image, 'http://\[::1/a.jpg', is not valid",
    ),
    "a name that is not valid": (
        [_make_task(_make_point("\ud800", 1, 2))],
        r"keypointlabels\[0\] '.ud800' is not valid UTF-8",
    ),
    "other images": (
        [_make_task(_make_point("nose", 1, 2), image="b.jpg")],
        "is not among the given images",
    ),
}


@pytest.mark.parametrize(("content", "message"), INVALID.values(), ids=INVALID)
def test_an_unusable_export_is_a_one_line_error(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        _read(tmp_path, content)
    assert "\n" not in str(caught.value)
