"""RMSprop over long vectors compared with torch.optim.RMSprop."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from selfmark.config import Optimizer
from selfmark.train.optimizer import FlatRMSprop


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 1, 1)]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("clip", [0.0, 0.05, 100.0])
@pytest.mark.parametrize("channels_last", [False, True])
def test_many_steps_match_torch(clip: float, channels_last: bool) -> None:
    ours, theirs = _network(), _network()
    if channels_last:
        ours.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    settings = Optimizer(lr=3e-3, weight_decay=0.02, clip_norm=clip)
    flat = FlatRMSprop([(ours[0], 0.1), (ours[1:], 1.0)], settings)
    groups = [
        {"params": list(theirs[0].parameters()), "lr": 3e-4},
        {"params": list(theirs[1:].parameters()), "lr": 3e-3},
    ]
    reference = torch.optim.RMSprop(groups, weight_decay=0.02)
    generator = torch.Generator().manual_seed(1)
    for step in range(60):
        images = torch.randn(4, 3, 6, 6, generator=generator)
        if step == 40:
            flat.scale_learning_rate(0.1)
            for group in reference.param_groups:
                group["lr"] *= 0.1
        for network, zero in ((ours, flat.zero_grad), (theirs, reference.zero_grad)):
            zero()
            (network(images) - images.mean(1, keepdim=True)).square().mean().backward()
        if clip > 0:
            nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        flat.step()
        reference.step()
    for (name, parameter), expected in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-5, atol=1e-6, msg=name)
        assert not torch.equal(expected, dict(_network().named_parameters())[name])


def test_flattening_does_not_change_the_network() -> None:
    network = _network()
    before = copy.deepcopy(network)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(2, 3, 6, 6)
    flat = FlatRMSprop([(network, 1.0)], Optimizer())
    torch.testing.assert_close(network(images), before(images))
    for name, value in before.state_dict().items():
        assert torch.equal(network.state_dict()[name], value), name
    other = _network()
    nn.init.ones_(other[0].weight)
    network.load_state_dict(other.state_dict())
    torch.testing.assert_close(network(images), other(images))
    assert flat.weight_copies == {}


def test_copies_collect_gradients_and_stay_equal_to_the_parameters() -> None:
    network = _network()
    flat = FlatRMSprop([(network, 1.0)], Optimizer(lr=0.1), torch.bfloat16)
    assert {id(p) for p in flat.weight_copies} == {
        id(p) for m in (network[0], network[3]) for p in m.parameters()
    }
    before = {p: p.detach().clone() for p in network.parameters()}
    flat.zero_grad()
    for low_precision in flat.weight_copies.values():
        low_precision.grad = torch.ones_like(low_precision)
    flat.step()
    for parameter, low_precision in flat.weight_copies.items():
        assert (parameter < before[parameter]).all()
        assert torch.equal(low_precision, parameter.bfloat16())
    assert torch.equal(
        network[1].weight, before[network[1].weight] - 0.1 * _first_step(before[network[1].weight])
    )
    nn.init.ones_(network[0].weight)
    flat.update_copies()
    assert (flat.weight_copies[network[0].weight] == 1).all()


def _first_step(value: torch.Tensor) -> torch.Tensor:
    """Return the first step without a gradient, where only weight decay acts: g / sqrt(0.01 g^2)."""
    gradient = value * Optimizer().weight_decay
    return gradient / ((0.01 * gradient.square()).sqrt() + 1e-8)
