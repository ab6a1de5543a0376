"""Test dense embeddings: exchange and matching against loops, and landmarks from clusters of embeddings.

An exchange replaces each vector of an image by a mean of similar vectors of an auxiliary image.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from selfmark.config import override, preset
from selfmark.images.feed import PixelFeed
from selfmark.methods.contract import RandomChanges
from selfmark.methods.dve import Dve, exchange, matching_loss
from selfmark.methods.warps import cell_positions
from selfmark.model.soft_argmax import mean_positions
from selfmark.train.batch_plan import BatchSlice
from tests.methods.test_training import _SMALL


def _draw_unit_vectors(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(shape, generator=generator, dtype=torch.float64), dim=-1)


def _apply_softmax(values: np.ndarray) -> np.ndarray:
    weights: np.ndarray = np.exp(values - values.max())
    return weights / weights.sum()


def test_exchange_and_matching_loss_agree_with_loops_over_cells() -> None:
    source, auxiliary, target = (
        _draw_unit_vectors(seed, 2, cells, 5) for seed, cells in ((0, 4), (1, 6), (2, 6))
    )
    positions = torch.rand(2, 4, 2, generator=torch.Generator().manual_seed(3)).double() * 2 - 1
    positions[1, 2] = torch.tensor([1.5, 0.0])  # outside of the image
    cells = cell_positions(2, 3, torch.device("cpu")).double()
    exchanged = exchange(source, auxiliary, sharpness=7.0)
    costs = []
    for image in range(2):
        for cell in range(4):
            weights = _apply_softmax(7.0 * auxiliary[image].numpy() @ source[image, cell].numpy())
            vector = sum(
                weight * other for weight, other in zip(weights, auxiliary[image].numpy(), strict=True)
            )
            np.testing.assert_allclose(exchanged[image, cell], vector)
            matches = _apply_softmax(7.0 * target[image].numpy() @ vector)
            distances = np.linalg.norm(positions[image, cell].numpy() - cells.numpy(), axis=1)
            is_outside = (image, cell) == (1, 2)
            if not is_outside:
                costs.append(
                    sum(match * distance**0.5 for match, distance in zip(matches, distances, strict=True))
                )
    loss = matching_loss(exchanged, target, positions, cells, sharpness=7.0, power=0.5)
    assert float(loss) == pytest.approx(np.mean(costs))


def test_embeddings_that_follow_the_warp_have_no_loss() -> None:
    cells = cell_positions(4, 4, torch.device("cpu"))
    target = torch.eye(16)[None]
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    source = exchange(target[:, order], target.flip(1), sharpness=400.0)
    right = matching_loss(source, target, cells[order][None], cells, sharpness=400.0, power=0.5)
    loss_with_wrong_match = matching_loss(source, target, cells[None], cells, sharpness=400.0, power=0.5)
    assert float(right) < 1e-6
    assert float(loss_with_wrong_match) > 0.5


def test_landmarks_are_where_embeddings_resemble_their_reference() -> None:
    config = override(preset("tiny"), _SMALL | {"method": "dve", "features.foreground_clusters": 4, "K": 3})
    torch.manual_seed(0)
    method = Dve(config)
    pixels = torch.randint(0, 256, (10, 3, 64, 64), dtype=torch.uint8)
    method.choose_landmarks(PixelFeed(pixels, torch.device("cpu")), torch.Generator().manual_seed(0))
    references = method.embedding.references
    torch.testing.assert_close(references.norm(dim=1), torch.full((3,), config.dve.landmark_sharpness))
    # A landmark is the center of mass of the softmax, over all cells, of the similarities to its reference.
    images = pixels[:2].float() / 255
    with torch.no_grad():
        embedded = method.embedding.embed(images)
        positions = mean_positions(method.embedding.distributions(images))
    torch.testing.assert_close(embedded.norm(dim=1), torch.ones(2, 16, 16))
    cells = cell_positions(16, 16, torch.device("cpu")).numpy()
    for image in range(2):
        for landmark in range(3):
            products = references[landmark].numpy() @ embedded[image].flatten(1).numpy()
            expected = _apply_softmax(products.astype(np.float64)) @ cells
            np.testing.assert_allclose(positions[image, landmark], expected, atol=1e-4)


def test_views_larger_than_the_limit_are_matched_at_fewer_cells() -> None:
    config = override(preset("tiny"), _SMALL | {"method": "dve", "dve.matched_cells": 5})
    torch.manual_seed(0)
    method = Dve(config)
    images = torch.rand(3, 3, 64, 64)
    changes = RandomChanges(config, BatchSlice(0, 3, 3), torch.Generator().manual_seed(1))
    loss = method.compute_losses(images, images, changes)["total"]
    loss.backward()  # type: ignore[no-untyped-call]
    # The loss is a mean of distance**0.5. Coordinates are from -1 to 1, so no distance exceeds the diagonal
    # of the image, 2**1.5.
    assert 0 < float(loss.detach()) < 2**0.75
    gradient = method.psi.head.last.weight.grad
    assert gradient is not None
    assert float(gradient.abs().max()) > 0
