"""Test Jakab et al. 2018: Gaussians, running means and losses against loops, and checkpoints.

Psi is the network that locates landmarks.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from selfmark.config import PRESETS, Config
from selfmark.methods.contract import RandomChanges
from selfmark.methods.decoder import Decoder
from selfmark.methods.jakab2018 import Jakab2018, gaussian_maps
from selfmark.methods.method_registry import build_method
from selfmark.methods.perceptual import PerceptualFeatures
from selfmark.model.soft_argmax import mean_positions
from selfmark.train.batch_plan import BatchSlice


def _make_config(size: int = 32) -> Config:
    tiny = PRESETS["tiny"]
    return replace(
        tiny,
        method="jakab2018",
        K=3,
        images=replace(tiny.images, size=size),
        network=replace(tiny.network, channels=32, norm_groups=4, depth=2),
    )


def _build_method(config: Config) -> Jakab2018:
    torch.manual_seed(0)
    method = build_method(config)
    assert isinstance(method, Jakab2018)
    return method


def _draw_images(seed: int, size: int = 32) -> Tensor:
    return torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(seed))


def _make_changes(config: Config, seed: int = 0) -> RandomChanges:
    return RandomChanges(config, BatchSlice(0, 2, 2), torch.Generator().manual_seed(seed))


def _use_scaled_pixels_as_features(method: Jakab2018) -> None:
    """Replace the four perceptual maps by the image times 2, 3, 4 and 5, so that their errors are known."""
    features = PerceptualFeatures("scaled", lambda images: [images * factor for factor in (2, 3, 4, 5)])
    method._perceptual = features


def test_gaussians_match_a_loop_over_cells() -> None:
    positions = torch.tensor([[[0.25, -0.5], [-1.0, 1.0]]])
    maps = gaussian_maps(positions, 4, 8, 0.3)
    assert maps.shape == (1, 2, 4, 8)
    for landmark, (x, y) in enumerate(positions[0].tolist()):
        for row in range(4):
            for column in range(8):
                distance = math.hypot((column + 0.5) / 4 - 1 - x, (row + 0.5) / 2 - 1 - y)
                expected = math.exp(-(distance**2) / (2 * 0.3**2))
                assert float(maps[0, landmark, row, column]) == pytest.approx(expected, abs=1e-6)


def test_gaussian_is_one_at_a_cell_center() -> None:
    maps = gaussian_maps(torch.tensor([[[0.125, -0.375]]]), 8, 8, 0.1)
    assert float(maps[0, 0, 2, 4]) == pytest.approx(1)
    assert float(maps[0, 0, 2, 5]) == pytest.approx(math.exp(-(0.25**2) / 0.02), abs=1e-6)


def test_decoder_doubles_the_resolution_between_blocks() -> None:
    decoder = Decoder(5, [12, 8, 6], groups=4)
    assert decoder(torch.zeros(2, 5, 4, 6)).shape == (2, 3, 16, 24)
    groups = [layer.num_groups for layer in decoder.modules() if isinstance(layer, nn.GroupNorm)]
    assert groups == [4, 4, 4, 4, 2, 2]  # 6 channels allow only 2 of the 4 groups


@pytest.mark.parametrize("size", [32, 96])
def test_any_multiple_of_32_pixels_is_generated(size: int) -> None:
    method = _build_method(_make_config(size))
    images = _draw_images(0, size)
    assert method.generate(images, images).shape == images.shape


def test_target_reaches_the_generated_image_through_landmarks_only() -> None:
    method = _build_method(_make_config())
    method.psi.distributions = lambda images: torch.full((2, 3, 4, 4), 1 / 16)  # type: ignore[method-assign]
    with torch.no_grad():
        first = method.generate(_draw_images(0), _draw_images(1))
        assert torch.equal(method.generate(_draw_images(0), _draw_images(2)), first)
        assert not torch.equal(method.generate(_draw_images(3), _draw_images(1)), first)


def test_the_gain_of_the_head_spreads_the_first_landmarks() -> None:
    config = _make_config()
    plain_method = _build_method(replace(config, jakab2018=replace(config.jakab2018, head_gain=1.0)))
    scaled = _build_method(config)
    weight, gain = plain_method.psi.head.last.weight, config.jakab2018.head_gain
    torch.testing.assert_close(scaled.psi.head.last.weight, gain * weight)
    with torch.no_grad():
        before, after = (
            mean_positions(method.psi.distributions(_draw_images(0))) for method in (plain_method, scaled)
        )
    assert float(after.std(dim=1).mean()) > 2 * float(before.std(dim=1).mean())


def test_losses_are_errors_divided_by_their_running_means() -> None:
    config = _make_config()
    method = _build_method(config)
    _use_scaled_pixels_as_features(method)
    momentum, history = config.jakab2018.momentum, []
    for step in range(3):
        losses = method.compute_losses(_draw_images(step), _draw_images(step), _make_changes(config, step))
        pixels = float(losses["pixels"].detach())
        history.append(pixels)
        for layer, factor in enumerate((2, 3, 4, 5), start=1):
            assert float(losses[f"features {layer}"].detach()) == pytest.approx(pixels * factor**2, rel=1e-4)
        weights = [momentum ** (step - past) for past in range(step + 1)]
        mean = sum(w * error for w, error in zip(weights, history, strict=True)) / sum(weights)
        # All layers are multiples of the pixels, so each contributes the same.
        assert float(losses["total"].detach()) == pytest.approx(5 * pixels / mean, rel=1e-4)
    assert len(set(history)) == 3


def test_the_source_is_the_second_image_warped_twice_and_the_target_is_the_first_image_warped_once() -> None:
    config = _make_config()
    method = _build_method(config)
    _use_scaled_pixels_as_features(method)
    seen: list[Tensor] = []

    def generate(source: Tensor, target: Tensor) -> Tensor:
        seen.extend([source, target])
        return source

    method.generate = generate  # type: ignore[method-assign]
    losses = method.compute_losses(_draw_images(0), _draw_images(1), _make_changes(config))
    changes = _make_changes(config)
    first, second = changes.draw_warps(), changes.draw_warps()
    torch.testing.assert_close(seen[0], second.apply(first.apply(_draw_images(1))))
    torch.testing.assert_close(seen[1], first.apply(_draw_images(0)))
    assert float(losses["pixels"]) == pytest.approx(float((seen[0] - seen[1]).square().mean()), rel=1e-5)


def test_gradients_reach_every_part() -> None:
    config = _make_config()
    method = _build_method(config)
    method.compute_losses(_draw_images(0), _draw_images(0), _make_changes(config))["total"].backward()
    for name, parameter in method.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
    for part in (method.psi.backbone, method.psi.head, method.encoder, method.decoder):
        gradients = [parameter.grad for parameter in part.parameters() if parameter.grad is not None]
        assert any(float(gradient.abs().max()) > 0 for gradient in gradients)


def test_checkpoints_continue_exactly_and_leave_out_the_perceptual_network() -> None:
    config = _make_config()
    method = _build_method(config)
    before = set(method.state_dict())
    method.compute_losses(_draw_images(0), _draw_images(0), _make_changes(config))
    state = {name: value.clone() for name, value in method.state_dict().items()}
    assert set(state) == before
    assert {name.split(".")[0] for name in state} == {
        "psi",
        "encoder",
        "decoder",
        "error_sums",
        "error_weight",
    }
    assert len(list(method.parameters())) == len(state) - 2, "error_sums and error_weight are no parameters"
    expected = method.compute_losses(_draw_images(1), _draw_images(1), _make_changes(config))
    resumed = build_method(config)
    resumed.load_state_dict(state)
    losses = resumed.compute_losses(_draw_images(1), _draw_images(1), _make_changes(config))
    assert all(torch.equal(losses[name], expected[name]) for name in expected)
