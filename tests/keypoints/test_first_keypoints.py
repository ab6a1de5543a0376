"""Test the first keypoints of a data set: coordinates, bounds, resizing, and random points."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from selfmark.config import FirstKeypoints
from selfmark.errors import InputError
from selfmark.keypoints import (
    create_detector,
    detect_first_keypoints,
    first_keypoints,
    memory_limit,
    mix_in_random_points,
)
from selfmark.points import Keypoints

from .scenes import draw_polygons, pairwise_distances, to_batch

CPU = torch.device("cpu")


@dataclass(frozen=True)
class BlobDetector:
    """Detector that finds the centroid of the brightness and describes it by the mean brightness."""

    name: str = "blob"

    def detect(self, images):
        assert images.dtype == torch.uint8
        mass = images.double().mean(dim=1)
        columns, rows = torch.arange(mass.shape[-1]), torch.arange(mass.shape[-2])
        x = (mass.sum(dim=1) * columns).sum(dim=1) / mass.sum(dim=(1, 2))
        y = (mass.sum(dim=2) * rows).sum(dim=1) / mass.sum(dim=(1, 2))
        xy = torch.stack((x, y), dim=1).float()
        return Keypoints(
            xy, torch.arange(len(images)), torch.ones(len(images)), mass.mean(dim=(1, 2))[:, None]
        )


def draw_blobs(centers, side):
    y, x = np.mgrid[:side, :side]
    images = [
        250 * np.exp(-((x - center_x) ** 2 + (y - center_y) ** 2) / (2 * 4.0**2))
        for center_x, center_y in centers
    ]
    return torch.from_numpy(np.stack(images)).round().to(torch.uint8)[:, None].repeat(1, 3, 1, 1)


def make_full_bounds(count, side):
    return np.tile([0.0, 0.0, side - 1, side - 1], (count, 1))


@pytest.mark.parametrize("image_size", [32, 64, 100, 128])
def test_points_are_in_network_pixels_and_indexed_over_the_data_set(monkeypatch, image_size):
    monkeypatch.setattr(first_keypoints, "create_detector", lambda settings, device: BlobDetector())
    centers = [[20, 40], [30.5, 25], [44, 30], [25, 25], [32, 32]]
    done = []
    points = detect_first_keypoints(
        draw_blobs(centers, 64),
        make_full_bounds(5, 64),
        FirstKeypoints(image_size=image_size),
        CPU,
        batch=2,
        on_progress=lambda *progress: done.append(progress),
    )
    np.testing.assert_allclose(points.xy, centers, atol=0.1)
    assert points.image_index.tolist() == [0, 1, 2, 3, 4]
    assert done == [(2, 5), (4, 5), (5, 5)]


def test_points_outside_the_bounds_of_their_image_are_dropped(monkeypatch):
    monkeypatch.setattr(first_keypoints, "create_detector", lambda settings, device: BlobDetector())
    bounds = make_full_bounds(3, 64)
    bounds[1] = [32, 0, 63, 63]
    bounds[2] = [0, 0, 63, 39]
    points = detect_first_keypoints(
        draw_blobs([[30, 40]] * 3, 64), bounds, FirstKeypoints(image_size=64), CPU, batch=8
    )
    assert points.image_index.tolist() == [0]
    assert points.descriptor is not None
    assert points.descriptor.shape == (1, 1)


@pytest.mark.parametrize(("image_size", "expected"), [(256, [20]), (2048, [13, 7])])
def test_fewer_images_are_resized_at_a_time_if_they_become_large(monkeypatch, image_size, expected):
    sizes, scale = [], 16  # Everything is smaller by this factor, so that the test takes little memory.
    monkeypatch.setattr(memory_limit, "MAX_PASS_BYTES", memory_limit.MAX_PASS_BYTES // scale**2)

    class RecordingDetector(BlobDetector):
        def detect(self, images):
            sizes.append(len(images))
            return super().detect(images)

    monkeypatch.setattr(first_keypoints, "create_detector", lambda settings, device: RecordingDetector())
    settings = FirstKeypoints(image_size=image_size // scale)
    blobs = draw_blobs([[30, 40]] * 20, 64)
    points = detect_first_keypoints(blobs, make_full_bounds(20, 64), settings, CPU, batch=128)
    assert sizes == expected
    assert points.image_index.tolist() == list(range(20))


@pytest.mark.parametrize("detector", ["selfmark", "sift", "orb"])
def test_the_number_of_images_at_a_time_does_not_change_the_points(monkeypatch, detector):
    images = to_batch(*(draw_polygons(96, seed) for seed in range(6)))
    settings = FirstKeypoints(detector=detector, image_size=128, max_points=20)
    together = detect_first_keypoints(images, make_full_bounds(6, 96), settings, CPU, batch=128)
    monkeypatch.setattr(memory_limit, "MAX_PASS_BYTES", 1)
    points_alone = detect_first_keypoints(images, make_full_bounds(6, 96), settings, CPU, batch=128)
    assert len(together) > 6
    assert torch.equal(points_alone.image_index, together.image_index)
    assert torch.equal(points_alone.xy, together.xy)
    torch.testing.assert_close(points_alone.score, together.score, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(points_alone.descriptor, together.descriptor, atol=1e-4, rtol=1e-4)


def test_shrinking_does_not_alias():
    stripes = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    stripes[..., ::2] = 255  # too fine for the small image, which must be gray
    small_stripes = first_keypoints.resize_images(stripes, 24)[..., 4:-4].float()
    assert small_stripes.std() < 12
    assert abs(float(small_stripes.mean()) - 127.5) < 3


def test_sift_finds_the_same_points_in_batches_and_in_larger_images():
    image = draw_polygons(160, 5)
    settings = FirstKeypoints(detector="sift", image_size=160, max_points=30)
    batched = detect_first_keypoints(to_batch(image, image), make_full_bounds(2, 160), settings, CPU, batch=1)
    direct = create_detector(settings, CPU).detect(to_batch(image))
    torch.testing.assert_close(batched.xy[batched.image_index == 1], direct.xy, atol=1e-4, rtol=0)
    larger = detect_first_keypoints(
        to_batch(image),
        make_full_bounds(1, 160),
        FirstKeypoints(detector="sift", image_size=320, max_points=30),
        CPU,
        batch=1,
    )
    candidates = create_detector(FirstKeypoints(detector="sift", max_points=1000), CPU).detect(
        to_batch(image)
    )
    nearest = pairwise_distances(larger.xy.numpy(), candidates.xy.numpy()).min(axis=1)
    assert np.median(nearest) < 0.5


def test_there_is_no_detector_for_points_from_a_file():
    with pytest.raises(InputError, match=r"'file' only reads keypoints\.points_file"):
        create_detector(FirstKeypoints(detector="file"), CPU)


def make_points(counts):
    image_index = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    total = len(image_index)
    return Keypoints(
        torch.full((total, 2), 1000.0) + torch.arange(total)[:, None],  # recognizable, outside the image
        image_index,
        torch.rand(total, generator=torch.Generator().manual_seed(9)),
        torch.rand(total, 4),
    )


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.8, 1.0])
def test_the_fraction_of_random_points_is_exact_in_every_image(fraction):
    counts = [15, 0, 1, 40, 2, 15]
    points = make_points(counts)
    mixed = mix_in_random_points(points, fraction, len(counts), 64, torch.Generator().manual_seed(0))
    changed = (mixed.xy != points.xy).any(dim=1)
    for image, count in enumerate(counts):
        assert int(changed[points.image_index == image].sum()) == int(fraction * count + 0.5)
    assert torch.equal(mixed.xy[~changed], points.xy[~changed])
    assert torch.equal(mixed.image_index, points.image_index)
    assert torch.equal(mixed.score, points.score)
    assert mixed.descriptor is None


def test_random_points_and_the_choice_of_replaced_points_are_uniform():
    points = make_points([20] * 400)
    mixed = mix_in_random_points(points, 0.25, 400, 64, torch.Generator().manual_seed(1))
    changed = (mixed.xy != points.xy).any(dim=1)
    noise = mixed.xy[changed].numpy()
    for axis in (0, 1):
        assert kstest((noise[:, axis] + 0.5) / 64, "uniform").pvalue > 0.01
    # Each of the 400 images has 20 points. The i-th point should be replaced in 100 images, for every i. The
    # variance of this number is 400 * 0.25 * 0.75.
    replaced = changed.view(400, 20).sum(dim=0).float()
    chi_squared = float(((replaced - 100) ** 2 / 75).sum())
    assert chi_squared < 40  # about 20 expected


def test_with_fraction_zero_the_points_are_returned_unchanged():
    points = make_points([3, 4])
    assert mix_in_random_points(points, 0.0, 2, 64, torch.Generator()) is points
