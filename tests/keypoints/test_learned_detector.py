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

from .scenes import batch, distances, published_weights, rectangles, textured

CPU = torch.device("cpu")


# --- what all share, with a network that can be seen through ---------------------------------------


class Brightness(nn.Module):
    """Scores a pixel by its red channel; describes a cell of 8 x 8 pixels by its row and column."""

    def forward(self, rgb):
        height, width = rgb.shape[-2:]
        assert height % 8 == 0
        assert width % 8 == 0
        rows, columns = torch.meshgrid(torch.arange(height / 8), torch.arange(width / 8), indexing="ij")
        return rgb[:, 0], torch.stack((rows, columns, torch.ones_like(rows))).expand(len(rgb), -1, -1, -1)


def see_through(threshold=0.1, max_points=5):
    return LearnedDetector("brightness", Brightness(), 8, 8, threshold, 2, max_points, CPU)


def test_sides_that_do_not_fit_the_network_are_padded_out_of_sight():
    image = torch.zeros(1, 3, 37, 51, dtype=torch.uint8)
    image[0, 0, 30, 44] = 200
    image[0, 0, 36, 50] = 255  # in the last corner, which the padding repeats; too near the border to count
    points = see_through().detect(image)
    assert points.xy.tolist() == [[44, 30]]
    assert points.score.tolist() == pytest.approx([200 / 255])
    # x = 44 lies 0.0625 cells past the center of column 5 (43.5), y = 30 0.3125 past that of row 3 (27.5).
    expected = torch.tensor([3.3125, 5.0625, 1.0])
    assert points.descriptor is not None
    torch.testing.assert_close(points.descriptor[0], expected / expected.norm())


def test_the_padding_repeats_the_edge():
    seen = []

    class Witness(Brightness):
        def forward(self, rgb):
            seen.append(rgb)
            return super().forward(rgb)

    image = torch.randint(0, 256, (1, 3, 37, 51), dtype=torch.uint8)
    LearnedDetector("witness", Witness(), 8, 8, 0.1, 2, 5, CPU).detect(image)
    expected = np.pad(image[0].numpy() / 255, ((0, 0), (0, 3), (0, 5)), mode="edge")
    np.testing.assert_allclose(seen[0][0].numpy(), expected, atol=1e-6)


def test_more_images_than_fit_one_pass_keep_their_order():
    count = 2 * IMAGES_PER_PASS + 3
    images = torch.zeros(count, 3, 32, 32, dtype=torch.uint8)
    for index in range(count):
        images[index, 0, 10, 5 + index % 20] = 100 + index
    points = see_through().detect(images)
    assert points.image_index.tolist() == list(range(count))
    assert points.xy[:, 0].tolist() == [5 + index % 20 for index in range(count)]


@pytest.mark.parametrize("channel", [0, 1, 7, 8, 35, 63])
def test_superpoints_channels_are_the_pixels_of_a_cell_row_by_row(channel):
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


def test_superpoint_may_find_nothing_in_a_cell():
    network = SuperPoint().eval()
    nn.init.zeros_(network.convPb.weight)
    assert network.convPb.bias is not None
    network.convPb.bias.data[:64], network.convPb.bias.data[64] = 0.0, 20.0
    with torch.inference_mode():
        assert network(torch.rand(1, 3, 16, 16))[0].max() < 1e-6


def test_r2d2_looks_as_far_in_all_directions():
    # Radii of the 3 x 3 kernels 1+1+1+2+2+4, of the 2 x 2 ones half their dilation, 2+4+8: 25 in all.
    torch.manual_seed(0)
    image = torch.rand(1, 3, 81, 81, requires_grad=True)
    R2D2().eval().ops((image - 0.5) * 10)[0, :, 40, 40].square().sum().backward()
    assert image.grad is not None
    rows, columns = image.grad.abs().sum(dim=(0, 1)).nonzero().unbind(dim=1)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (15, 65, 15, 65)


def test_alike_stretches_coarse_features_from_corner_to_corner():
    # Two coarse cells over 64 pixels: corner on corner, their interpolation is one straight line.
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
def detector(name, max_points=64, nms_radius=4):
    settings = FirstKeypoints(
        detector=name, weights=published_weights(name), max_points=max_points, nms_radius=nms_radius
    )
    return create_detector(settings, CPU)


@dataclass(frozen=True)
class Pair:
    """Points and descriptors in an image and in a changed one."""

    before: np.ndarray
    after: np.ndarray
    before_descriptor: torch.Tensor
    after_descriptor: torch.Tensor


def detect_pair(name, before, after):
    points = detector(name).detect(batch(before, after))
    assert points.descriptor is not None
    first = points.image_index == 0
    return Pair(
        points.xy[first].numpy(),
        points.xy[~first].numpy(),
        points.descriptor[first],
        points.descriptor[~first],
    )


def checkerboard():
    y, x = np.mgrid[:192, :192]
    board = ((y // 24 + x // 24) % 2 * 180 + 40).astype(np.uint8)
    crossings = np.array([(x - 0.5, y - 0.5) for x in range(24, 192, 24) for y in range(24, 192, 24)])
    return np.repeat(cv2.GaussianBlur(board, (0, 0), 0.7)[..., None], 3, axis=2), crossings


# R2D2 marks the dark side of a corner, a few pixels in. By chance 5 % lie within 3 pixels, 14 % within 5.
@pytest.mark.parametrize(
    ("name", "reach", "share"),
    [("superpoint", 3, 0.95), ("alike-t", 3, 0.7), ("alike-n", 3, 0.65), ("r2d2", 5, 0.95)],
)
@pytest.mark.parametrize("scene", ["rectangles", "checkerboard"])
def test_the_best_points_are_corners(name, reach, share, scene):
    image, corners = rectangles(192, 0) if scene == "rectangles" else checkerboard()
    points = detector(name, max_points=30, nms_radius=8).detect(batch(image))
    assert len(points) == 30
    assert (distances(points.xy.numpy(), corners).min(axis=1) <= reach).mean() >= share


@pytest.mark.parametrize("name", NAMES)
def test_points_move_with_the_image(name):
    scene = textured(208, 1)
    pair = detect_pair(name, scene[:192, :192], scene[16:, 16:])
    seen_twice = pair.before[(pair.before > 24).all(axis=1) & (pair.before < 184).all(axis=1)]
    assert len(seen_twice) > 30
    nearest = distances(seen_twice, pair.after + 16).min(axis=1)
    assert (nearest <= 2).mean() > 0.75


@pytest.mark.parametrize("name", NAMES)
def test_descriptors_recognize_a_point_after_a_small_rotation(name):
    image = textured(192, 1)
    turn = cv2.getRotationMatrix2D((95.5, 95.5), 15, 1)
    pair = detect_pair(name, image, cv2.warpAffine(image, turn, (192, 192), borderMode=cv2.BORDER_REFLECT))
    for descriptor in (pair.before_descriptor, pair.after_descriptor):
        torch.testing.assert_close(descriptor.norm(dim=1), torch.ones(len(descriptor)))
    apart = distances(pair.before @ turn[:, :2].T + turn[:, 2], pair.after)
    found_again = apart.min(axis=1) <= 3
    assert found_again.sum() > 30
    match = (pair.before_descriptor @ pair.after_descriptor.T).argmax(dim=1).numpy()
    right = apart[np.arange(len(match)), match] <= 3
    assert right[found_again].mean() > 0.8  # by chance: 1 in 64


@pytest.mark.parametrize("name", NAMES)
def test_superpoint_obeys_the_threshold_and_the_others_go_by_rank(name):
    image = batch(textured(96, 2))
    found = {}
    for threshold in (0.015, 0.6):
        settings = FirstKeypoints(
            detector=name, weights=published_weights(name), threshold=threshold, max_points=20, nms_radius=3
        )
        found[threshold] = create_detector(settings, CPU).detect(image)
    assert len(found[0.015]) == 20
    if name == "superpoint":
        assert found[0.6].score.tolist() == [score for score in found[0.015].score.tolist() if score > 0.6]
        assert 0 < len(found[0.6]) < 20
    else:
        assert torch.equal(found[0.6].xy, found[0.015].xy)


@pytest.mark.gpu
@pytest.mark.parametrize("make", [SuperPoint, R2D2, lambda: Alike(CHANNELS["alike-t"])])
def test_cuda_sees_what_the_cpu_sees(make):
    torch.manual_seed(0)
    here = make().eval().requires_grad_(False)
    there = deepcopy(here).cuda()
    image = batch(textured(96, 0))
    for mine, other in zip(here(image / 255), there(image.cuda() / 255), strict=True):
        torch.testing.assert_close(other.cpu(), mine, atol=5e-3, rtol=1e-2)  # TF32
    points = LearnedDetector("random", there, 1, 32, -torch.inf, 4, 20, torch.device("cuda")).detect(image)
    assert points.xy.is_cuda
    assert len(points) == 20
