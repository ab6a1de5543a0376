"""Test learned detectors: shared code with a trivial network, the networks, and the published weights."""

from copy import deepcopy
from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np
import pytest
import torch
from torch import nn

from selfmark.config import FirstKeypoints
from selfmark.keypoints import create_detector
from selfmark.keypoints.alike import CHANNELS, Alike
from selfmark.keypoints.learned_detector import IMAGES_PER_PASS, LearnedDetector
from selfmark.keypoints.r2d2 import R2D2
from selfmark.keypoints.superpoint import SuperPoint

from .scenes import draw_polygons, draw_rectangles, pairwise_distances, require_published_weights, to_batch

CPU = torch.device("cpu")


# --- shared code, with a trivial network -----------------------------------------------------------


class Brightness(nn.Module):
    """Network that scores a pixel by its red channel and describes a cell of 8x8 pixels by row and column."""

    def forward(self, rgb):
        height, width = rgb.shape[-2:]
        assert height % 8 == 0
        assert width % 8 == 0
        rows, columns = torch.meshgrid(torch.arange(height / 8), torch.arange(width / 8), indexing="ij")
        return rgb[:, 0], torch.stack((rows, columns, torch.ones_like(rows))).expand(len(rgb), -1, -1, -1)


def create_brightness_detector(threshold=0.1, max_points=5):
    return create_with_network(Brightness(), threshold, max_points)


def create_with_network(network, threshold, max_points):
    return LearnedDetector(
        "test",
        network,
        stride=8,
        multiple=8,
        threshold=threshold,
        nms_radius=2,
        max_points=max_points,
        device=CPU,
    )


def test_padding_does_not_change_the_points():
    image = torch.zeros(1, 3, 37, 51, dtype=torch.uint8)
    image[0, 0, 30, 44] = 200
    image[0, 0, 36, 50] = 255  # in the corner that the padding repeats; too close to the border to count
    points = create_brightness_detector().detect(image)
    assert points.xy.tolist() == [[44, 30]]
    assert points.score.tolist() == pytest.approx([200 / 255])
    # Cells have 8 pixels. x = 44 lies 0.0625 cells past the center of column 5 (43.5), and y = 30 lies 0.3125
    # cells past the center of row 3 (27.5).
    expected = torch.tensor([3.3125, 5.0625, 1.0])
    assert points.descriptor is not None
    torch.testing.assert_close(points.descriptor[0], expected / expected.norm())


def test_the_padding_repeats_the_edge():
    inputs = []

    class RecordingNetwork(Brightness):
        def forward(self, rgb):
            inputs.append(rgb)
            return super().forward(rgb)

    image = torch.randint(0, 256, (1, 3, 37, 51), dtype=torch.uint8)
    create_with_network(RecordingNetwork(), threshold=0.1, max_points=5).detect(image)
    expected = np.pad(image[0].numpy() / 255, ((0, 0), (0, 3), (0, 5)), mode="edge")
    np.testing.assert_allclose(inputs[0][0].numpy(), expected, atol=1e-6)


def test_images_of_several_passes_keep_their_order():
    count = 2 * IMAGES_PER_PASS + 3
    images = torch.zeros(count, 3, 32, 32, dtype=torch.uint8)
    for index in range(count):
        images[index, 0, 10, 5 + index % 20] = 100 + index
    points = create_brightness_detector().detect(images)
    assert points.image_index.tolist() == list(range(count))
    assert points.xy[:, 0].tolist() == [5 + index % 20 for index in range(count)]


@pytest.mark.parametrize(("size", "expected"), [(64, [16, 4]), (1024, [1] * 20)])
def test_fewer_large_images_are_processed_at_a_time(size, expected):
    counts = []

    class RecordingNetwork(nn.Module):
        def forward(self, rgb):
            counts.append(len(rgb))
            return rgb[:, 0, :64, :64], torch.ones(len(rgb), 1, 8, 8)

    images = torch.zeros(1, 3, 1, 1, dtype=torch.uint8).expand(20, 3, size, size)
    create_with_network(RecordingNetwork(), threshold=0.1, max_points=5).detect(images)
    assert counts == expected


@pytest.mark.parametrize("channel", [0, 1, 7, 8, 35, 63])
def test_superpoint_channels_are_the_pixels_of_a_cell_row_by_row(channel):
    network = SuperPoint().eval()
    nn.init.zeros_(network.convPb.weight)
    assert network.convPb.bias is not None
    nn.init.zeros_(network.convPb.bias)
    network.convPb.bias.data[channel] = 10.0
    with torch.inference_mode():
        score, descriptors = network(torch.rand(1, 3, 16, 24))
    assert score.shape == (1, 16, 24)
    assert descriptors.shape == (1, 256, 2, 3)
    row, column = divmod(channel, 8)
    bright = [[y, x] for y in (row, row + 8) for x in (column, column + 8, column + 16)]
    assert (score[0] > 0.5).nonzero().tolist() == bright


def test_superpoint_can_predict_a_cell_without_a_point():
    network = SuperPoint().eval()
    nn.init.zeros_(network.convPb.weight)
    assert network.convPb.bias is not None
    network.convPb.bias.data[:64], network.convPb.bias.data[64] = 0.0, 20.0
    with torch.inference_mode():
        assert network(torch.rand(1, 3, 16, 16))[0].max() < 1e-6


def test_the_receptive_field_of_r2d2_is_symmetric():
    # The 3x3 kernels have the radii 1, 1, 1, 2, 2 and 4. The radii of the 2x2 kernels are half their
    # dilations: 2, 4 and 8. Together, the field extends 25 pixels to each side of pixel 40.
    torch.manual_seed(0)
    image = torch.rand(1, 3, 81, 81, requires_grad=True)
    R2D2().eval().ops((image - 0.5) * 10)[0, :, 40, 40].square().sum().backward()
    assert image.grad is not None
    rows, columns = image.grad.abs().sum(dim=(0, 1)).nonzero().unbind(dim=1)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (15, 65, 15, 65)


def test_alike_upsamples_with_aligned_corners():
    # With aligned corners, the interpolation of two coarse cells over 64 pixels is one straight line.
    torch.manual_seed(0)
    network = Alike(CHANNELS["alike-t"]).eval()
    nn.init.zeros_(network.convhead2.weight)
    network.convhead2.weight.data[-1, 48:] = 1.0  # the score is the sum of the coarsest features
    with torch.inference_mode():
        score, descriptors = network(torch.rand(1, 3, 64, 64))
    assert descriptors.shape == (1, 64, 64, 64)
    steps = score[0].double().logit().diff(dim=1)
    assert steps.abs().max() > 1e-4
    torch.testing.assert_close(steps, steps[:, :1].expand_as(steps), atol=1e-5, rtol=0)


# --- with the published weights --------------------------------------------------------------------

NAMES = ["superpoint", "alike-t", "alike-n", "r2d2"]


@cache
def create_published(name, max_points=64, nms_radius=4):
    settings = FirstKeypoints(
        detector=name, weights=require_published_weights(name), max_points=max_points, nms_radius=nms_radius
    )
    return create_detector(settings, CPU)


@dataclass(frozen=True)
class Pair:
    """Points and descriptors of an image before and after a change."""

    before: np.ndarray
    after: np.ndarray
    before_descriptor: torch.Tensor
    after_descriptor: torch.Tensor


def detect_pair(name, before, after):
    points = create_published(name).detect(to_batch(before, after))
    assert points.descriptor is not None
    first = points.image_index == 0
    return Pair(
        points.xy[first].numpy(),
        points.xy[~first].numpy(),
        points.descriptor[first],
        points.descriptor[~first],
    )


def draw_checkerboard():
    y, x = np.mgrid[:192, :192]
    board = ((y // 24 + x // 24) % 2 * 180 + 40).astype(np.uint8)
    crossings = np.array([(x - 0.5, y - 0.5) for x in range(24, 192, 24) for y in range(24, 192, 24)])
    return np.repeat(cv2.GaussianBlur(board, (0, 0), 0.7)[..., None], 3, axis=2), crossings


# R2D2 marks the dark side of a corner, a few pixels inside, so its maximum distance is larger. By chance, 5 %
# of the points would be within 3 pixels of a corner and 14 % within 5 pixels.
@pytest.mark.parametrize(
    ("name", "max_distance", "fraction"),
    [("superpoint", 3, 0.95), ("alike-t", 3, 0.7), ("alike-n", 3, 0.65), ("r2d2", 5, 0.95)],
)
@pytest.mark.parametrize("scene", ["rectangles", "checkerboard"])
def test_the_best_points_are_corners(name, max_distance, fraction, scene):
    image, corners = draw_rectangles(192, 0) if scene == "rectangles" else draw_checkerboard()
    points = create_published(name, max_points=30, nms_radius=8).detect(to_batch(image))
    assert len(points) == 30
    nearest = pairwise_distances(points.xy.numpy(), corners).min(axis=1)
    assert (nearest <= max_distance).mean() >= fraction


@pytest.mark.parametrize("name", NAMES)
def test_points_move_with_the_image(name):
    scene = draw_polygons(208, 1)
    pair = detect_pair(name, scene[:192, :192], scene[16:, 16:])
    in_both = pair.before[(pair.before > 24).all(axis=1) & (pair.before < 184).all(axis=1)]
    assert len(in_both) > 30
    nearest = pairwise_distances(in_both, pair.after + 16).min(axis=1)
    assert (nearest <= 2).mean() > 0.75


@pytest.mark.parametrize("name", NAMES)
def test_descriptors_recognize_a_point_after_a_small_rotation(name):
    image = draw_polygons(192, 1)
    rotation = cv2.getRotationMatrix2D((95.5, 95.5), 15, 1)
    pair = detect_pair(
        name, image, cv2.warpAffine(image, rotation, (192, 192), borderMode=cv2.BORDER_REFLECT)
    )
    for descriptor in (pair.before_descriptor, pair.after_descriptor):
        torch.testing.assert_close(descriptor.norm(dim=1), torch.ones(len(descriptor)))
    distance = pairwise_distances(pair.before @ rotation[:, :2].T + rotation[:, 2], pair.after)
    is_found_again = distance.min(axis=1) <= 3
    assert is_found_again.sum() > 30
    match = (pair.before_descriptor @ pair.after_descriptor.T).argmax(dim=1).numpy()
    is_correct = distance[np.arange(len(match)), match] <= 3
    assert is_correct[is_found_again].mean() > 0.8  # by chance: 1 in 64


@pytest.mark.parametrize("name", NAMES)
def test_superpoint_applies_the_threshold_and_other_detectors_select_by_rank(name):
    image = to_batch(draw_polygons(96, 2))
    points = {}
    for threshold in (0.015, 0.6):
        settings = FirstKeypoints(
            detector=name,
            weights=require_published_weights(name),
            threshold=threshold,
            max_points=20,
            nms_radius=3,
        )
        points[threshold] = create_detector(settings, CPU).detect(image)
    assert len(points[0.015]) == 20
    if name == "superpoint":
        assert points[0.6].score.tolist() == [score for score in points[0.015].score.tolist() if score > 0.6]
        assert 0 < len(points[0.6]) < 20
    else:
        assert torch.equal(points[0.6].xy, points[0.015].xy)


@pytest.mark.gpu
@pytest.mark.parametrize("make", [SuperPoint, R2D2, lambda: Alike(CHANNELS["alike-t"])])
def test_cuda_gives_the_same_maps_as_the_cpu(make):
    torch.manual_seed(0)
    on_cpu = make().eval().requires_grad_(False)
    on_gpu = deepcopy(on_cpu).cuda()
    image = to_batch(draw_polygons(96, 0))
    for expected, actual in zip(on_cpu(image / 255), on_gpu(image.cuda() / 255), strict=True):
        torch.testing.assert_close(actual.cpu(), expected, atol=5e-3, rtol=1e-2)  # CUDA may use TF32.
    points = LearnedDetector(
        "random",
        on_gpu,
        stride=1,
        multiple=32,
        threshold=-torch.inf,
        nms_radius=4,
        max_points=20,
        device=torch.device("cuda"),
    ).detect(image)
    assert points.xy.is_cuda
    assert len(points) == 20
