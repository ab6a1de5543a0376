"""Compare RMSprop and AdamW over long vectors with those of torch.optim."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from selfmark.config import Optimizer
from selfmark.train.engine import Phase
from selfmark.train.optimizer import FlatAdamW, FlatRMSprop


def _build_network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 1, 1)]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("clip", [0.0, 0.05, 100.0])
@pytest.mark.parametrize("channels_last", [False, True])
def test_many_steps_match_torch(clip: float, channels_last: bool) -> None:
    ours, theirs = _build_network(), _build_network()
    if channels_last:
        ours.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    settings = Optimizer(lr=3e-3, weight_decay=0.02, clip_norm=clip)
    flat_optimizer = FlatRMSprop([(ours[0], 0.1), (ours[1:], 1.0)], settings)
    groups = [
        {"params": list(theirs[0].parameters()), "lr": 3e-4},
        {"params": list(theirs[1:].parameters()), "lr": 3e-3},
    ]
    torch_optimizer = torch.optim.RMSprop(groups, weight_decay=0.02)
    generator = torch.Generator().manual_seed(1)
    for step in range(60):
        images = torch.randn(4, 3, 6, 6, generator=generator)
        if step == 40:
            flat_optimizer.scale_learning_rate(0.1)
            for group in torch_optimizer.param_groups:
                group["lr"] *= 0.1
        for network, zero_grad in ((ours, flat_optimizer.zero_grad), (theirs, torch_optimizer.zero_grad)):
            zero_grad()
            (network(images) - images.mean(1, keepdim=True)).square().mean().backward()
        if clip > 0:
            nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        flat_optimizer.step()
        torch_optimizer.step()
    for (name, parameter), expected in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-5, atol=1e-6, msg=name)
        assert not torch.equal(expected, dict(_build_network().named_parameters())[name])


def test_flattening_does_not_change_the_network() -> None:
    network = _build_network()
    before = copy.deepcopy(network)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(2, 3, 6, 6)
    flat_optimizer = FlatRMSprop([(network, 1.0)], Optimizer())
    torch.testing.assert_close(network(images), before(images))
    for name, value in before.state_dict().items():
        assert torch.equal(network.state_dict()[name], value), name
    other_network = _build_network()
    nn.init.ones_(other_network[0].weight)
    network.load_state_dict(other_network.state_dict())
    torch.testing.assert_close(network(images), other_network(images))
    assert flat_optimizer.weight_copies == {}


def test_copies_collect_gradients_and_stay_equal_to_the_parameters() -> None:
    network = _build_network()
    flat_optimizer = FlatRMSprop([(network, 1.0)], Optimizer(lr=0.1), torch.bfloat16)
    convolutions = (network[0], network[3])
    assert {id(parameter) for parameter in flat_optimizer.weight_copies} == {
        id(parameter) for layer in convolutions for parameter in layer.parameters()
    }
    before = {parameter: parameter.detach().clone() for parameter in network.parameters()}
    flat_optimizer.zero_grad()
    for low_precision in flat_optimizer.weight_copies.values():
        low_precision.grad = torch.ones_like(low_precision)
    flat_optimizer.step()
    for parameter, low_precision in flat_optimizer.weight_copies.items():
        assert (parameter < before[parameter]).all()
        assert torch.equal(low_precision, parameter.bfloat16())
    # The weight of the norm has no copy and no gradient, so only weight decay changes it.
    norm_weight = network[1].weight
    assert torch.equal(norm_weight, before[norm_weight] - 0.1 * _compute_first_step(before[norm_weight]))
    nn.init.ones_(network[0].weight)
    flat_optimizer.update_copies()
    assert (flat_optimizer.weight_copies[network[0].weight] == 1).all()


def _compute_first_step(value: torch.Tensor) -> torch.Tensor:
    """Return the first step of RMSprop divided by the learning rate, if weight decay is the only gradient."""
    gradient = value * Optimizer().weight_decay
    return gradient / ((0.01 * gradient.square()).sqrt() + 1e-8)


# --- AdamW -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize("channels_last", [False, True])
def test_one_cycle_of_adamw_matches_torch(weight_decay: float, channels_last: bool) -> None:
    ours, theirs = _build_network(), _build_network()
    if channels_last:
        ours.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    flat_optimizer = FlatAdamW([(ours[0], 0.1), (ours[1:], 1.0)], lr=0.02, weight_decay=weight_decay)
    groups = [{"params": list(theirs[0].parameters())}, {"params": list(theirs[1:].parameters())}]
    torch_optimizer = torch.optim.AdamW(groups, weight_decay=weight_decay)
    phase = Phase("round", 1, 0, 60, (), warmup_fraction=0.2)
    generator = torch.Generator().manual_seed(1)
    for step in range(60):
        images = torch.randn(4, 3, 6, 6, generator=generator)
        rates = [0.002 * phase.lr_factor(step), 0.02 * phase.lr_factor(step)]
        flat_optimizer.scale_learning_rate(phase.lr_factor(step))
        assert flat_optimizer.learning_rates == pytest.approx(rates)
        for group, rate in zip(torch_optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for network, zero_grad in ((ours, flat_optimizer.zero_grad), (theirs, torch_optimizer.zero_grad)):
            zero_grad()
            (network(images) - images.mean(1, keepdim=True)).square().mean().backward()
        flat_optimizer.step()
        torch_optimizer.step()
    for (name, parameter), expected in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-5, msg=name)
        assert (expected - dict(_build_network().named_parameters())[name]).abs().max() > 1e-3


def test_the_first_step_of_adamw_is_the_learning_rate() -> None:
    """The first step of Adam does not depend on the size of the gradient."""
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    before = copy.deepcopy(network)
    flat_optimizer = FlatAdamW([(network[0], 1.0), (network[1], 0.1)], lr=0.01, weight_decay=0.0)
    for scale, parameter in enumerate(network.parameters(), start=1):
        parameter.grad = torch.full_like(parameter, -(10.0**-scale))
    flat_optimizer.step()
    for part, rate in ((0, 0.01), (1, 0.001)):
        for parameter, old in zip(network[part].parameters(), before[part].parameters(), strict=True):
            torch.testing.assert_close(parameter - old, torch.full_like(old, rate), rtol=1e-3, atol=1e-6)


def test_writing_to_the_state_tensors_of_adamw_restores_its_state() -> None:
    """If the state of one optimizer is copied into another one, both take the same next step."""
    networks = [_build_network(), _build_network()]
    networks[1].to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizers = [FlatAdamW([(network, 1.0)], lr=0.01, weight_decay=0.1) for network in networks]
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        _set_random_gradients(networks[0], generator)
        optimizers[0].step()
    states = [
        optimizer.state_tensors(network) for optimizer, network in zip(optimizers, networks, strict=True)
    ]
    names = [name for name, _ in networks[0].named_parameters()]
    assert set(states[0]) == {"steps", *(f"{name}.{kind}" for name in names for kind in ("mean", "square"))}
    for name, value in states[1].items():
        value.copy_(states[0][name])
    networks[1].load_state_dict(networks[0].state_dict())
    for network, optimizer in zip(networks, optimizers, strict=True):
        _set_random_gradients(network, torch.Generator().manual_seed(3))
        optimizer.step()
    for first, second in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        assert torch.equal(first, second)


def _set_random_gradients(network: nn.Module, generator: torch.Generator) -> None:
    for parameter in network.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
