"""Test features that ignore the direction of an object, and the decision whether objects are upright."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from selfmark.features.orientation import average_rotations, measure_uprightness
from tests.features.random_images import random_images
from tests.features.tiny_encoder import TinyEncoder


@torch.no_grad()
def _describe(images: Tensor) -> Tensor:
    return TinyEncoder().describe(images)


def test_one_rotation_gives_the_features_themselves() -> None:
    images = random_images(2, 64)
    assert torch.equal(average_rotations(_describe, images, 1), _describe(images))


def test_four_rotations_agree_with_a_loop_over_quarter_turns() -> None:
    images = random_images(2, 64)
    turns = [torch.rot90(_describe(torch.rot90(images, turn, (2, 3))), -turn, (2, 3)) for turn in range(4)]
    expected = F.normalize(torch.stack(turns).mean(dim=0), dim=1)
    torch.testing.assert_close(average_rotations(_describe, images, 4), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("rotations", [4, 8])
@pytest.mark.parametrize("turn", [1, 2, 3])
def test_features_of_a_turned_image_are_the_turned_features(rotations: int, turn: int) -> None:
    images = random_images(2, 64)
    turned = torch.rot90(images, turn, (2, 3))
    averaged = average_rotations(_describe, images, rotations)
    torch.testing.assert_close(
        average_rotations(_describe, turned, rotations),
        torch.rot90(averaged, turn, (2, 3)),
        atol=1e-3,
        rtol=0,
    )
    torch.testing.assert_close(averaged.norm(dim=1), torch.ones(2, 8, 8))
    single_rotation = torch.rot90(_describe(images), turn, (2, 3))
    assert (single_rotation - _describe(turned)).abs().max() > 0.1, (
        "the features of one rotation should depend on the orientation"
    )


def test_features_stay_at_their_positions() -> None:
    """A blob is found at its position, also for rotations other than quarter turns."""
    images = torch.zeros(1, 3, 64, 64)
    images[:, :, 40:48, 16:24] = 1

    def describe_brightness(images: Tensor) -> Tensor:
        light = F.avg_pool2d(images.mean(dim=1, keepdim=True), 8)
        return torch.cat([light, 1 - light], dim=1)

    light = average_rotations(describe_brightness, images, 7)[0, 0]
    assert divmod(int(light.argmax()), 8) == (5, 2)


def _draw_gradients(angles: Tensor) -> Tensor:
    """Return noisy images [N, 3, 32, 32] uint8 that are brightest in the direction of each angle."""
    generator = torch.Generator().manual_seed(1)
    line = torch.linspace(-1, 1, 32)
    slope = angles.cos()[:, None, None] * line[:, None] + angles.sin()[:, None, None] * line
    noise = torch.randn(len(angles), 3, 32, 32, generator=generator)
    return (128 + 60 * slope[:, None] + 20 * noise).clamp(0, 255).byte()


def test_upright_objects_are_told_apart_from_upside_down_copies() -> None:
    images = _draw_gradients(torch.randn(100, generator=torch.Generator().manual_seed(2)) * 0.3)
    assert measure_uprightness(TinyEncoder(), images, 32) > 0.95


def test_objects_in_any_direction_are_not_told_apart_from_upside_down_copies() -> None:
    angles = torch.rand(200, generator=torch.Generator().manual_seed(2)) * 2 * math.pi
    assert measure_uprightness(TinyEncoder(), _draw_gradients(angles), 64) == pytest.approx(0.5, abs=0.12)


def test_symmetric_features_cannot_tell_images_from_upside_down_copies() -> None:
    """An image and its upside-down copy have the same features, so any answer is wrong for one of them."""
    images = _draw_gradients(torch.zeros(40))
    assert measure_uprightness(TinyEncoder(is_symmetric=True), images, 16) <= 0.55


def test_the_number_of_images_per_pass_does_not_matter() -> None:
    angles = torch.rand(30, generator=torch.Generator().manual_seed(5)) * 2 * math.pi
    images = _draw_gradients(angles)
    accuracies = {measure_uprightness(TinyEncoder(), images, batch) for batch in (7, 30, 64)}
    assert len(accuracies) == 1


def test_similar_successive_frames_do_not_make_objects_look_upright() -> None:
    """A classifier that remembers each frame must not be tested on the next frame, which is similar."""
    angles = torch.linspace(0, math.pi, 101)[:-1]
    assert measure_uprightness(TinyEncoder(), _draw_gradients(angles), 64) < 0.6
