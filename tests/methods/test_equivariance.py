"""Compare the losses of `equivariance` with loops over all pairs of cells."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from selfmark.config import Methods, Network, settings_of_method
from selfmark.methods.equivariance import alignment_loss, diversity_loss
from selfmark.methods.warps import cell_positions, random_warps
from selfmark.model.soft_argmax import SoftArgmaxPsi
from selfmark.train.batch_plan import BatchSlice


def _draw_distributions(seed: int, shape: tuple[int, ...]) -> Tensor:
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scores.flatten(2).softmax(-1).view(shape)


def test_alignment_matches_a_loop_over_all_pairs_of_cells() -> None:
    given, warped = _draw_distributions(0, (2, 3, 4, 4)), _draw_distributions(1, (2, 3, 4, 4))
    warps = random_warps(Methods(), BatchSlice(0, 2, 2), torch.Generator().manual_seed(2))
    cells = cell_positions(4, 4, torch.device("cpu")).double()
    total = 0.0
    for image in range(2):
        targets = warps(cells.float()[None].expand(2, -1, -1))[image].double()
        for landmark in range(3):
            p, q = given[image, landmark].flatten(), warped[image, landmark].flatten()
            for u in range(16):
                for v in range(16):
                    total += float(p[u] * q[v] * (cells[u] - targets[v]).square().sum())
    loss = alignment_loss(given.float(), warped.float(), warps)
    assert float(loss) == pytest.approx(total / 6, rel=1e-4), "the mean over 2 images with 3 landmarks"


def test_diversity_counts_landmarks_that_share_a_square() -> None:
    maps = torch.zeros(1, 3, 8, 8)
    # One of the 16 squares of 4 x 4 cells that contain the first landmark contains the second one, too.
    maps[0, 0, 0, 0] = maps[0, 1, 3, 3] = maps[0, 2, 7, 7] = 1
    assert float(diversity_loss(maps, 4)) == pytest.approx(1 / 16 / 3, abs=1e-6)
    assert float(diversity_loss(maps, 1)) == pytest.approx(0, abs=1e-6)
    maps[0, 1] = maps[0, 0]
    assert float(diversity_loss(maps, 4)) == pytest.approx(1 / 3, abs=1e-6)


def test_scores_do_not_depend_on_the_position_in_the_image() -> None:
    """A picture that is moved has the same scores at its new position, unless the network is an hourglass."""

    def measure_difference(depth: int) -> float:
        torch.manual_seed(0)
        psi = SoftArgmaxPsi(Network(channels=32, norm_groups=4, depth=depth), 3, "space").eval()
        images = torch.full((2, 3, 128, 128), 0.5)
        picture = torch.rand(3, 16, 16)
        images[0, :, 56:72, 56:72] = images[1, :, 16:32, 88:104] = picture
        with torch.no_grad():
            scores = psi.scores(images)
        # The second picture is 10 cells above and 8 to the right of the first one.
        moved = scores[1].roll((10, -8), dims=(1, 2))
        return float((scores[0] - moved)[:, 10:22, 10:22].abs().max() / scores[0].std())

    assert measure_difference(depth=0) < 1e-3
    assert measure_difference(depth=2) > 0.1


def test_the_method_equivariance_uses_a_network_without_an_hourglass() -> None:
    assert settings_of_method("equivariance")["network.depth"] == 0
