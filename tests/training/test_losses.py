"""Compare the losses of the keypoint network with naive loops."""

import math

import torch
from torch.nn import functional as F

from training.keypoints.losses import (
    compute_descriptor_loss,
    compute_detector_loss,
    find_full_cells,
    label_cells,
)


def make_generator():
    return torch.Generator().manual_seed(0)


def test_the_label_of_a_cell_is_the_index_of_the_pixel_with_a_point():
    xy = torch.tensor(
        [[[0.0, 0.0], [9.3, 2.6], [23.4, 15.5], [math.nan, math.nan], [24.0, 3.0], [-0.6, 5.0]]]
    )
    expected = torch.full((3, 3), 64)
    for x, y in ((0, 0), (9, 3), (23, 16)):  # The y of 15.5 is rounded to 16.
        expected[y // 8, x // 8] = 8 * (y % 8) + x % 8
    assert torch.equal(label_cells(xy, 24, make_generator())[0], expected)


def test_one_of_the_points_that_share_a_cell_is_chosen_at_random():
    xy = torch.tensor([[1.0, 1.0], [6.0, 2.0], [3.0, 7.0]]).expand(600, 3, 2)
    labels = label_cells(xy, 8, make_generator()).flatten()
    counts = torch.bincount(labels, minlength=65)
    assert counts[[9, 22, 59]].sum() == 600
    assert counts[[9, 22, 59]].min() > 150


def test_a_cell_counts_only_if_all_its_pixels_are_inside():
    is_inside = torch.ones(1, 16, 24, dtype=torch.bool)
    is_inside[0, 8, 15] = False
    assert find_full_cells(is_inside)[0].tolist() == [[True, True, True], [True, False, True]]


def test_detector_loss_is_the_mean_over_counted_cells():
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 65, 3, 4), torch.randint(65, (2, 3, 4))
    counted = torch.rand(2, 3, 4) > 0.5
    terms = [
        -logits[b, :, r, c].double().log_softmax(0)[labels[b, r, c]].item()
        for b, r, c in counted.nonzero().tolist()
    ]
    assert math.isclose(
        compute_detector_loss(logits, labels, counted).item(), sum(terms) / len(terms), rel_tol=1e-5
    )
    assert compute_detector_loss(logits, labels, torch.zeros_like(counted)).item() == 0


def compute_naive_descriptor_loss(first, second, xy1, xy2, valid, temperature, min_distance):
    def interpolate(field, x, y):
        """Return the descriptor at a pixel, by bilinear interpolation of cells of 8 pixels."""
        cell_x, cell_y = (x + 0.5) / 8 - 0.5, (y + 0.5) / 8 - 0.5
        column, row = math.floor(cell_x), math.floor(cell_y)
        right, lower = cell_x - column, cell_y - row  # weights of the next column and row
        upper_value = (1 - right) * field[:, row, column] + right * field[:, row, column + 1]
        lower_value = (1 - right) * field[:, row + 1, column] + right * field[:, row + 1, column + 1]
        return F.normalize((1 - lower) * upper_value + lower * lower_value, dim=0)

    total = 0.0
    for fields, places in (((first, second), (xy1, xy2)), ((second, first), (xy2, xy1))):
        terms = []
        for b in range(len(valid)):
            first_vectors = [interpolate(fields[0][b], *xy.tolist()) for xy in places[0][b]]
            second_vectors = [interpolate(fields[1][b], *xy.tolist()) for xy in places[1][b]]
            for i in valid[b].nonzero().flatten().tolist():
                candidates = [
                    j
                    for j in valid[b].nonzero().flatten().tolist()
                    if j == i or math.dist(places[1][b, i].tolist(), places[1][b, j].tolist()) >= min_distance
                ]
                scores = torch.stack([first_vectors[i] @ second_vectors[j] / temperature for j in candidates])
                terms.append((scores.logsumexp(0) - scores[candidates.index(i)]).item())
        total += sum(terms) / len(terms) / 2
    return total


def test_descriptor_loss_agrees_with_a_naive_loop():
    torch.manual_seed(1)
    first, second = torch.randn(2, 6, 5, 5), torch.randn(2, 6, 5, 5)
    xy1, xy2 = torch.rand(2, 7, 2) * 30 + 4, torch.rand(2, 7, 2) * 30 + 4
    valid = torch.rand(2, 7) > 0.3
    assert 0 < valid.sum() < 14
    loss = compute_descriptor_loss(first, second, xy1, xy2, valid, 0.2, 9.0)
    expected = compute_naive_descriptor_loss(first, second, xy1, xy2, valid, 0.2, 9.0)
    assert math.isclose(loss.item(), expected, rel_tol=1e-4)


def test_distinctive_descriptors_have_no_loss():
    field = torch.eye(16).reshape(1, 16, 4, 4)  # All cells have different descriptors.
    rows, columns = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
    centers = (torch.stack((columns, rows), dim=-1).reshape(1, 16, 2) * 8 + 3.5).float()
    valid = torch.ones(1, 16, dtype=torch.bool)
    assert compute_descriptor_loss(field, field, centers, centers, valid, 0.05, 4.0) < 1e-6
    mirrored = field.flip(-1)
    assert compute_descriptor_loss(field, mirrored, centers, centers, valid, 0.05, 4.0) > 10
