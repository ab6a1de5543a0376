"""Compare GroupNorm and ReLU on a CPU, and the networks that use them, with torch's own operations.

Psi is the network that locates landmarks.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfmark.config import Config, preset
from selfmark.demo.scene import generate_scene
from selfmark.images.feed import PixelFeed
from selfmark.inspection import step_timing
from selfmark.model.cpu_norm import NormReLU, normalize_relu
from selfmark.model.network import Psi, prepare_network
from selfmark.model.plain_backend import create_plain_backend
from selfmark.train.engine import Phase, run_phase

CPU = torch.device("cpu")


def make_maps(*shape: int) -> Tensor:
    return torch.randn(*shape).contiguous(memory_format=torch.channels_last)


def differentiate(y: Tensor, x: Tensor, norm: nn.GroupNorm, grad: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(y, [x, norm.weight, norm.bias], grad)


@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((2, 16, 64, 64), 8),
        ((3, 8, 64, 64), 8),
        ((2, 64, 64, 48), 4),
        ((1, 6, 47, 61), 3),
        ((2, 32, 8, 8), 8),
    ],
)
def test_norm_and_relu_agree_with_torch(shape: tuple[int, ...], groups: int) -> None:
    torch.manual_seed(0)
    norm = nn.GroupNorm(groups, shape[1])
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x, grad = (2 * make_maps(*shape) + 1).requires_grad_(), make_maps(*shape)
    expected, found = F.relu(norm(x)), normalize_relu(norm, x)
    assert torch.equal(found, expected)
    assert found.is_contiguous(memory_format=torch.channels_last)
    pairs = zip(differentiate(found, x, norm, grad), differentiate(expected, x, norm, grad), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))


def test_gradients_agree_with_finite_differences() -> None:
    torch.manual_seed(0)
    x = make_maps(2, 4, 5, 6).double().requires_grad_()
    weight, bias = (torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda *tensors: NormReLU.apply(*tensors, 2, 1e-5), (x, weight, bias))


def test_predictions_are_those_of_plain_torch() -> None:
    torch.manual_seed(0)
    psi, images = Psi(preset("tiny").network, 10).eval(), torch.rand(2, 3, 128, 128)
    prepare_network(psi, CPU)
    with torch.no_grad():
        found = psi(images)
        psi.backend = create_plain_backend()
        assert torch.equal(found, psi(images))


def train(config: Config, feed: PixelFeed, steps: int, is_plain: bool) -> list[float]:
    """Train Stage 2 on random labels; return the loss of every step."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    state, task = step_timing._build_stage2(config, feed, config.K, generator)
    if is_plain:
        state.network.backend = create_plain_backend()
    losses: list[float] = []
    run_phase(
        state,
        Phase("test", 0, 0, steps, ()),
        task,
        replace(config.runtime, log_every=1, checkpoint_every=10 * steps),
        lambda phase, iteration, means, seconds: losses.append(means["total"]),
        lambda: None,
    )
    return losses


def test_training_agrees_with_plain_torch() -> None:
    """The first losses agree up to rounding. Training amplifies errors, so later losses are averaged."""
    config = preset("tiny")
    config = replace(config, network=replace(config.network, channels=32, depth=1, norm_groups=4))
    # Maps of the first layers have 48 x 48 cells, enough for the faster backward pass.
    images, stage2 = replace(config.images, size=96), replace(config.stage2, batch=2)
    config = replace(config, images=images, stage2=stage2)
    pixels = torch.from_numpy(generate_scene(8, config.images.size, 0).images).permute(0, 3, 1, 2)
    feed = PixelFeed(pixels.contiguous(), CPU)
    found, expected = (torch.tensor(train(config, feed, 200, plain)) for plain in (False, True))
    torch.testing.assert_close(found[:3], expected[:3], rtol=1e-5, atol=0)
    means, expected_means = found.view(4, 50).mean(dim=1), expected.view(4, 50).mean(dim=1)
    torch.testing.assert_close(means, expected_means, rtol=0.05, atol=0)
