"""Test the generated data set: it is reproducible, has correct visibility, and can be read as COCO."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from selfmark.demo import Scene, generate_scene, render, write_scene
from selfmark.demo.scene import random_subject
from selfmark.errors import InputError

COUNT, SIZE = 40, 64


@pytest.fixture(scope="module")
def scene() -> Scene:
    return generate_scene(COUNT, SIZE, seed=5)


def test_arrays_have_the_right_shapes_and_types_and_finite_values(scene: Scene) -> None:
    landmarks = len(scene.names)
    assert scene.images.shape == (COUNT, SIZE, SIZE, 3)
    assert scene.images.dtype == np.uint8
    assert scene.xy.shape == (COUNT, landmarks, 2)
    assert scene.xy.dtype == np.float32
    assert scene.visible.shape == (COUNT, landmarks)
    assert scene.visible.dtype == bool
    assert np.isfinite(scene.xy).all()
    assert np.all((scene.xy > -0.5) & (scene.xy < SIZE - 0.5))  # inside the picture


def test_a_picture_depends_only_on_the_seed_and_its_number(scene: Scene) -> None:
    repeated = generate_scene(3, SIZE, seed=5)
    assert np.array_equal(repeated.images, scene.images[:3])
    assert np.array_equal(repeated.xy, scene.xy[:3])
    assert np.array_equal(repeated.visible, scene.visible[:3])
    assert not np.array_equal(generate_scene(1, SIZE, seed=6).images, scene.images[:1])
    assert not np.array_equal(scene.images[0], scene.images[1])


def test_landmarks_do_not_depend_on_the_resolution() -> None:
    small, large = generate_scene(3, 64, seed=1), generate_scene(3, 128, seed=1)
    np.testing.assert_allclose((small.xy + 0.5) * 2 - 0.5, large.xy, atol=1e-4)


def test_landmarks_are_hidden_by_the_animal_or_by_occluders(scene: Scene) -> None:
    num_occluded_images = 0
    for index in range(COUNT):
        subject = random_subject(np.random.default_rng([5, index]), SIZE)
        xy, visible = render.project_landmarks(subject.body, subject.camera)
        np.testing.assert_allclose(scene.xy[index], xy, atol=1e-4)
        assert not np.any(scene.visible[index] & ~visible)
        num_occluded_images += bool(np.any(visible & ~scene.visible[index]))
    assert 0.05 * COUNT < num_occluded_images < 0.35 * COUNT


def test_the_animal_fills_most_of_the_picture() -> None:
    for index in range(12):
        subject = random_subject(np.random.default_rng([2, index]), SIZE)
        _, coverage = render.render(subject.body, subject.camera, subject.light, subject.palette, SIZE)
        rows, columns = np.nonzero(coverage > 0.5)
        longer = max(np.ptp(rows), np.ptp(columns)) + 1
        assert 0.52 * SIZE < longer < 0.92 * SIZE
        assert coverage[0].max() == coverage[-1].max() == coverage[:, 0].max() == coverage[:, -1].max() == 0.0


def test_every_landmark_is_often_visible_and_sometimes_hidden(scene: Scene) -> None:
    fraction = scene.visible.mean(axis=0)
    assert fraction.min() > 0.35
    assert 0.7 < fraction.mean() < 0.98


def test_pupils_are_darker_than_their_surroundings() -> None:
    """The marks are painted at the landmarks: a visible pupil is a dark spot on a white ring."""
    scene = generate_scene(12, 192, seed=0)
    gray = scene.images.astype(float).mean(axis=3)
    contrasts = []
    for index in range(12):
        for eye in ("left_eye", "right_eye"):
            landmark = scene.names.index(eye)
            if scene.visible[index, landmark]:
                x, y = np.round(scene.xy[index, landmark]).astype(int)
                patch = gray[index, y - 9 : y + 10, x - 9 : x + 10]
                contrasts.append(patch.max() - gray[index, y - 1 : y + 2, x - 1 : x + 2].mean())
    assert len(contrasts) > 15
    assert np.median(contrasts) > 80


def test_a_written_data_set_can_be_read_back(scene: Scene, tmp_path: Path) -> None:
    short_scene = Scene(scene.images[:3], scene.xy[:3], scene.visible[:3], scene.names, scene.flip_idx)
    labels = write_scene(short_scene, tmp_path / "demo")
    assert labels == tmp_path / "demo" / "labels.json"
    content = json.loads(labels.read_text(encoding="utf-8"))
    (category,) = content["categories"]
    assert tuple(category["keypoints"]) == scene.names
    assert tuple(category["flip_idx"]) == scene.flip_idx
    assert [entry["file_name"] for entry in content["images"]] == ["000000.png", "000001.png", "000002.png"]
    for index, (entry, annotation) in enumerate(zip(content["images"], content["annotations"], strict=True)):
        image = cv2.imread(str(labels.parent / "images" / entry["file_name"]))
        assert np.array_equal(image[..., ::-1], scene.images[index])
        assert (entry["width"], entry["height"]) == (SIZE, SIZE)
        assert annotation["image_id"] == entry["id"]
        points = np.array(annotation["keypoints"]).reshape(-1, 3)
        np.testing.assert_allclose(points[:, :2], scene.xy[index], atol=1e-3)
        assert np.array_equal(points[:, 2], np.where(scene.visible[index], 2, 1))
        x, y, width, height = annotation["bbox"]
        from_corner = points[:, :2] + 0.5  # boxes are measured from pixel corners
        assert [x, y] == pytest.approx(from_corner.min(axis=0), abs=1e-3)
        assert [x + width, y + height] == pytest.approx(from_corner.max(axis=0), abs=1e-3)


@pytest.mark.parametrize(("count", "size", "word"), [(0, 64, "picture"), (1, 8, "pixels")])
def test_invalid_requests_are_refused(count: int, size: int, word: str) -> None:
    with pytest.raises(InputError, match=word):
        generate_scene(count, size)
