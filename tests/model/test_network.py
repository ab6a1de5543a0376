"""Test networks: number of parameters, shapes, and the initialization of Psi from Phi.

Phi is the network that finds and describes keypoints (Stage 1), Psi the network that locates landmarks.
"""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from selfmark.config import preset
from selfmark.model.heatmaps import sample_descriptors
from selfmark.model.network import Phi, Psi


def test_phi_has_the_size_of_the_authors_network() -> None:
    """With 256 channels, Phi has 6.77 million parameters and needs 20.8 GFLOP per image."""
    phi = Phi(preset("paper").network)
    assert round(sum(parameter.numel() for parameter in phi.parameters()) / 1e6, 2) == 6.77
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        maps = phi(torch.zeros(1, 3, 256, 256))
        phi.descriptor.last(maps.features)  # a descriptor in every cell
    assert round(counter.get_total_flops() / 1e9, 1) == 20.8


def test_maps_have_a_quarter_of_the_side_of_the_image() -> None:
    tiny = preset("tiny")
    maps = Phi(tiny.network)(torch.rand(2, 3, 128, 128))
    assert maps.confidence.shape == (2, 1, 32, 32)
    assert maps.features.shape == (2, 64, 32, 32)
    assert ((maps.confidence > 0) & (maps.confidence < 1)).all()


def test_sampling_before_or_after_the_last_layer_gives_the_same_descriptors() -> None:
    torch.manual_seed(0)
    phi = Phi(preset("tiny").network)
    features = torch.randn(2, 64, 16, 16)
    cells = torch.rand(2, 9, 2) * 18 - 1.5  # some outside the map
    after = sample_descriptors(phi.descriptor.last(features), cells)
    torch.testing.assert_close(phi.describe(features, cells), after, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", ["detector", "descriptor"])
def test_psi_inherits_all_but_the_last_layer(head: Literal["detector", "descriptor"]) -> None:
    settings = preset("tiny").network
    phi = Phi(settings)
    psi = Psi.from_phi(phi, settings, 7, head)
    psi_state, phi_state = psi.state_dict(), phi.state_dict()
    inherited = [name for name in psi_state if not name.startswith("head.last.")]
    assert len(inherited) == len(psi_state) - 2
    for name in inherited:
        assert torch.equal(psi_state[name], phi_state[name.replace("head.", f"{head}.")]), name
    assert psi(torch.rand(1, 3, 128, 128)).shape == (1, 7, 32, 32)


def test_the_first_layers_shift_with_the_image() -> None:
    """A shift of the image by 8 pixels shifts the output of the first block, at half the size, by 4 cells."""
    torch.manual_seed(0)
    phi = Phi(preset("tiny").network).eval()
    image = torch.rand(1, 3, 256, 256)
    with torch.no_grad():
        original = phi.backbone.block1(torch.relu(phi.backbone.stem(image - 0.5)))
        shifted = phi.backbone.block1(torch.relu(phi.backbone.stem(image.roll(8, dims=-1) - 0.5)))
    difference = (shifted.roll(-4, dims=-1) - original)[..., 20:100, 20:100].abs().mean()
    assert difference < 0.05 * original.abs().mean()
