"""Test SIFT and ORB: positions, spread, batches and descriptors."""

from itertools import pairwise

import cv2
import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from selfmark.config import FirstKeypoints
from selfmark.keypoints import create_detector
from selfmark.keypoints.opencv_detectors import merge_duplicates, to_root_sift, to_signed_bits

from .scenes import draw_polygons, draw_rectangles, pairwise_distances, to_batch

CPU = torch.device("cpu")


def create(name, max_points=40):
    return create_detector(FirstKeypoints(detector=name, max_points=max_points), CPU)


def select_points(points, index):
    return points.xy[points.image_index == index].numpy().astype(np.float64)


def test_sift_finds_the_centers_of_blobs():
    centers = np.array([[40.3, 52.8], [101.6, 60.0], [70.0, 120.5], [150.2, 150.9]])
    y, x = np.mgrid[:192, :192]
    image = np.full((192, 192), 60.0)
    for center_x, center_y in centers:
        image += 150 * np.exp(-((x - center_x) ** 2 + (y - center_y) ** 2) / (2 * 5.0**2))
    points = create("sift").detect(to_batch(np.repeat(image.astype(np.uint8)[..., None], 3, axis=2)))
    assert pairwise_distances(select_points(points, 0)[:4], centers).min(axis=0).max() < 0.15


def test_sift_finds_mirrored_points_in_the_mirror_image():
    # OpenCV's default would shift every point by a quarter of a pixel in the same direction. A point and its
    # mirrored counterpart would then be half a pixel apart.
    image = draw_polygons(192, 0)
    points = create("sift").detect(to_batch(image, image[:, ::-1]))
    mirrored = select_points(points, 1) * [-1, 1] + [191, 0]
    nearest = pairwise_distances(select_points(points, 0), mirrored).min(axis=1)
    assert np.median(nearest) < 0.1


def test_orb_finds_corners():
    image, corners = draw_rectangles(192, 0)
    points = create("orb", 60).detect(to_batch(image))
    nearest = pairwise_distances(select_points(points, 0), corners).min(axis=1)
    assert (nearest < 4).mean() > 0.6  # by chance: 0.09


@pytest.mark.parametrize("name", ["sift", "orb"])
def test_points_are_spread(name):
    image = draw_polygons(192, 1)
    image[:, 96:] = cv2.GaussianBlur(image[:, 96:], (0, 0), 4)  # one half has far more texture than the other
    few_points, all_points = (
        select_points(create(name, max_points).detect(to_batch(image)), 0) for max_points in (20, 2000)
    )
    strongest = all_points[:20]
    assert len(few_points) == 20
    assert pdist(few_points).min() > 2 * pdist(strongest).min()


@pytest.mark.parametrize(("name", "length"), [("sift", 128), ("orb", 256)])
def test_a_batch_with_a_blank_image_gives_the_same_points_as_single_images(name, length):
    images = [draw_polygons(128, 2), np.full((128, 128, 3), 90, np.uint8), draw_polygons(128, 3)]
    batched = create(name).detect(to_batch(*images))
    assert batched.descriptor is not None
    assert batched.descriptor.shape == (len(batched), length)
    assert batched.descriptor.dtype == batched.xy.dtype == batched.score.dtype == torch.float32
    assert batched.counts(3).tolist() == [40, 0, 40]
    assert (batched.image_index.diff() >= 0).all()
    for index in (0, 2):
        found_alone = create(name).detect(to_batch(images[index]))
        part = batched.select(batched.image_index == index)
        assert torch.equal(found_alone.xy, part.xy)
        assert found_alone.descriptor is not None
        assert part.descriptor is not None
        assert torch.equal(found_alone.descriptor, part.descriptor)
        assert all(a >= b for a, b in pairwise(part.score.tolist()))
        assert len(np.unique(part.xy.round().numpy(), axis=0)) == len(part)


def test_a_batch_of_blank_images_has_no_points():
    points = create("sift").detect(torch.zeros(2, 3, 64, 64, dtype=torch.uint8))
    assert points.counts(2).tolist() == [0, 0]
    assert points.descriptor is not None
    assert points.descriptor.shape == (0, 128)


def test_merging_keeps_the_strongest_point_of_a_pixel():
    xy = np.array([[10.0, 4.0], [10.2, 4.4], [30.0, 30.0], [10.4, 3.6], [30.0, 31.0]])
    score = np.array([0.2, 0.9, 0.5, 0.1, 0.7])
    assert merge_duplicates(xy, score).tolist() == [1, 4, 2]


def test_the_root_sift_distance_is_the_hellinger_distance():
    raw = np.random.default_rng(0).integers(0, 256, (5, 128)).astype(np.float32)
    vectors = to_root_sift(raw)
    for a in range(5):
        for b in range(5):
            p, q = raw[a] / raw[a].sum(), raw[b] / raw[b].sum()
            squared_hellinger = 2 - 2 * sum(np.sqrt(p[i] * q[i]) for i in range(128))
            assert ((vectors[a] - vectors[b]) ** 2).sum() == pytest.approx(squared_hellinger, abs=1e-5)


def test_the_squared_distance_of_signed_bits_is_the_fraction_of_differing_bits():
    raw = np.random.default_rng(0).integers(0, 256, (6, 32), dtype=np.uint8)
    vectors = to_signed_bits(raw)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for a in range(6):
        for b in range(6):
            fraction = cv2.norm(raw[a], raw[b], cv2.NORM_HAMMING) / 256
            assert ((vectors[a] - vectors[b]) ** 2).sum() == pytest.approx(fraction, abs=1e-6)
            assert ((unit[a] - unit[b]) ** 2).sum() == pytest.approx(4 * fraction, abs=1e-5)
