"""Test benchmarks/quality/keypoints.py on synthetic images."""

import json
import sys
from importlib import import_module
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from selfmark.points import Keypoints

QUALITY = Path(__file__).resolve().parents[2] / "benchmarks" / "quality"


@pytest.fixture(scope="module")
def comparison():
    sys.path.insert(0, str(QUALITY))
    yield import_module("keypoints")
    sys.path.remove(str(QUALITY))


def make_picture(rng, size):
    return cv2.GaussianBlur(rng.integers(0, 256, (size, size, 3), np.uint8), (0, 0), 2)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a folder with the data set faces-yt68: four labeled faces in images of 128 pixels."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "faces-yt68" / "images" / "test").mkdir(parents=True)
    rng, images, annotations = np.random.default_rng(0), [], []
    for number in range(4):
        name = f"test/{number}.png"
        cv2.imwrite(str(folder / "faces-yt68" / "images" / name), make_picture(rng, 128))
        images.append({"id": number, "file_name": name, "width": 128, "height": 128})
        points = [40, 50, 2, 80, 50, 2, 60, 90, 2]
        annotations.append({"id": number, "image_id": number, "category_id": 1, "keypoints": points,
                            "bbox": [30, 40, 60, 60], "area": 3600, "num_keypoints": 3})  # fmt: skip
    category = {"id": 1, "name": "face", "keypoints": ["left_eye", "right_eye", "chin"], "skeleton": []}
    content = {"images": images, "annotations": annotations, "categories": [category]}
    (folder / "faces-yt68" / "test.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def samples(comparison, data):
    return comparison.load_test_images("faces-yt68", data / "faces-yt68", 4)


def make_keypoints(xy, images, descriptor=None):
    index = torch.arange(images).repeat_interleave(len(xy) // images)
    return Keypoints(torch.as_tensor(xy, dtype=torch.float32), index, torch.ones(len(xy)), descriptor)


def test_precision_and_reached_landmarks_match_a_hand_computed_case(comparison, samples):
    # The eyes are 40 pixels apart in images that are then enlarged twofold. The radius is a tenth of 80.
    assert samples.radius.tolist() == pytest.approx([8.0] * 4)
    eye = np.array([40.5 * 2 - 0.5, 50.5 * 2 - 0.5])
    detected = np.tile([eye, eye, [200.0, 30.0], [220.0, 30.0]], (4, 1))
    detected[0::4, 1] += 7.9
    detected[1::4, 1] += 8.1
    metrics = comparison.measure_precision(samples, lambda images: make_keypoints(detected, 4))
    assert metrics["precision"] == 25
    assert metrics["landmarks_reached"] == pytest.approx(100 / 3, abs=0.01)
    assert metrics["keypoints_per_image"] == 4


def test_points_that_follow_the_homography_are_repeated_and_matched(comparison, samples):
    grid = np.stack(np.meshgrid(np.arange(90, 170, 20.0), np.arange(90, 170, 20.0)), axis=-1).reshape(-1, 2)
    descriptors = torch.eye(len(grid)).repeat(4, 1)

    def detect_moved_points(images):
        if images is samples.store.pixels:
            return make_keypoints(np.tile(grid, (4, 1)), 4, descriptors)
        moved = [cv2.perspectiveTransform(grid[None], matrix)[0] for matrix in samples.matrices]
        moved_xy = np.concatenate(moved) + (10 if images is samples.relit else 0)
        return make_keypoints(moved_xy, 4, descriptors)

    metrics = comparison.measure_repeatability(samples, detect_moved_points)
    assert metrics["repeatability"] == metrics["matching"] == 1
    assert metrics["matching_relit"] == 0


def test_views_match_their_homography(comparison, samples):
    image = samples.store.pixels[0].permute(1, 2, 0).numpy()
    expected = cv2.warpPerspective(image, samples.matrices[0], (256, 256), borderMode=cv2.BORDER_REFLECT_101)
    difference = samples.views[0].permute(1, 2, 0).numpy().astype(float) - expected
    assert np.abs(difference).max() <= 2
    view, relit = samples.views[0].float(), samples.relit[0].float()
    assert relit.mean() == pytest.approx(0.7 * view.mean() + 0.1 * 255, abs=0.5)
    assert torch.corrcoef(torch.stack((view.flatten(), relit.flatten())))[0, 1] < 0.95


def test_missing_data_and_weights_are_skipped_and_reported(comparison, data, tmp_path, monkeypatch, capsys):
    words = ["keypoints", "--data-folder", str(data), "--weights-folder", str(tmp_path), "--images", "2"]
    words += ["--out", str(tmp_path / "figures.json"), "--device", "cpu", "--detectors", "sift", "superpoint"]
    monkeypatch.setattr(sys, "argv", words)
    comparison.main()
    output = capsys.readouterr().out
    assert "superpoint_v1.pth is not in" in output
    assert "birds-cub is not in" in output
    record = json.loads((tmp_path / "figures.json").read_text())
    assert [(row["data"], row["detector"]) for row in record["rows"]] == [
        ("faces-yt68", "sift"),
        ("faces-yt68", "random"),
    ]
    assert {"hardware", "versions", "commit", "seed", "own_weights"} <= set(record)
    assert "| sift |" in (tmp_path / "figures.md").read_text()
