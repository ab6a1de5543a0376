"""Draw Gaussians on heatmaps, find and refine peaks, and sample maps between cells.

Coordinates of cells and pixels are integers at their centers. Pixel x is therefore at cell
(x + 0.5) / stride - 0.5.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.config import STRIDE
from selfmark.config import PeakMethod as PeakMethod

_SINGLE_CELL_SIGMA = 0.05  # cells; at a distance of one cell, the Gaussian is 0 in float32


def to_cells(xy: Tensor) -> Tensor:
    """Convert network pixels [..., 2] to heatmap cells.

    >>> to_cells(torch.tensor([[1.5, 5.5]]))
    tensor([[0., 1.]])
    """
    return (xy + 0.5) / STRIDE - 0.5


def to_pixels(cells: Tensor) -> Tensor:
    """Convert heatmap cells [..., 2] to network pixels; the inverse of `to_cells`."""
    return (cells + 0.5) * STRIDE - 0.5


def draw_gaussians(cells: Tensor, size: int, sigma: float) -> Tensor:
    """Draw a Gaussian of height 1 around each point.

    Args:
        cells: [..., 2] points, in cells.
        size: side of the maps, in cells.
        sigma: standard deviation, in cells.

    Returns:
        Maps [..., size, size], one per point.
    """
    grid = torch.arange(size, device=cells.device, dtype=cells.dtype)
    profile = torch.exp(-((grid - cells[..., None]) ** 2) / (2 * sigma**2))  # [..., 2, size]
    return profile[..., 1, :, None] * profile[..., 0, None, :]


def prepare_gaussians(cells: Tensor, sigma: float) -> tuple[Tensor, float]:
    """Prepare points [..., 2], in cells, and sigma for drawing target Gaussians.

    If sigma is almost 0, the points are rounded, and sigma is set so that each Gaussian covers a single cell.

    >>> cells, sigma = prepare_gaussians(torch.tensor([0.4, 1.2]), sigma=0)
    >>> draw_gaussians(cells, 3, sigma).tolist()
    [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    return (cells, sigma) if sigma > _SINGLE_CELL_SIGMA else (cells.round(), _SINGLE_CELL_SIGMA)


def draw_target(cells: Tensor, valid: Tensor, size: int, sigma: float) -> Tensor:
    """Draw Gaussians at all valid points of an image into one map (H in Eq. 2 of the paper).

    Where Gaussians overlap, the highest value counts.

    Args:
        cells: [B, P, 2] points, in cells.
        valid: [B, P] bool, slots that contain a point.
        size: side of the maps, in cells.
        sigma: standard deviation, in cells.

    Returns:
        [B, 1, size, size].
    """
    maps = draw_gaussians(cells, size, sigma) * valid[..., None, None]
    return maps.amax(dim=1, keepdim=True)


class Peaks(NamedTuple):
    """Peaks of B maps in P slots: `cells` [B, P, 2] float, `score` [B, P], and `valid` [B, P] bool."""

    cells: Tensor
    score: Tensor
    valid: Tensor


Refine = Literal["cell", "quarter", "parabola"]


def local_maxima(score: Tensor, radius: int, threshold: float) -> Tensor:
    """Mark the local maxima of `score` [B, H, W] above `threshold`, [B, H, W] bool.

    A local maximum is the highest value within `radius` rows and columns. If several values are equal, the
    first in reading order (top to bottom, left to right) suppresses the other equal values within `radius`.

    >>> local_maxima(torch.tensor([[[3.0, 1.0, 2.0, 2.0]]]), radius=1, threshold=0.0).tolist()
    [[[True, False, True, False]]]
    """
    peak = (score == _window_maximum(score, radius)) & (score > threshold)
    height, width = score.shape[-2:]
    # Earlier pixels have higher priority; float32 represents integers exactly up to 4096 x 4096 pixels.
    priority = torch.arange(height * width, 0, -1, dtype=torch.float32, device=score.device)
    peak_priority = torch.where(peak, priority.view(height, width), 0.0)
    return peak & (peak_priority == _window_maximum(peak_priority, radius))


def _window_maximum(values: Tensor, radius: int) -> Tensor:
    """Return the maximum over windows of side 2 radius + 1; rows and columns separately, for speed."""
    side = 2 * radius + 1
    rows = F.max_pool2d(values[:, None], (1, side), stride=1, padding=(0, radius))
    return F.max_pool2d(rows, (side, 1), stride=1, padding=(radius, 0))[:, 0]


def find_peaks(heat: Tensor, threshold: float, radius: int, max_peaks: int, refine: Refine) -> Peaks:
    """Return the highest local maxima of each map by non-maximum suppression (Sec. 3.2).

    Args:
        heat: [B, H, W].
        threshold: minimum height of a peak.
        radius: radius of the suppression, in cells.
        max_peaks: maximum number of peaks per map.
        refine: see `refine_peaks`.
    """
    heat = heat.float()
    width = heat.shape[-1]
    kept = torch.where(local_maxima(heat, radius, threshold), heat, -torch.inf)
    score, flat_index = kept.flatten(1).topk(min(max_peaks, kept[0].numel()), dim=1)
    cells = torch.stack([flat_index % width, flat_index // width], dim=-1)
    return Peaks(refine_peaks(heat, cells, refine), score, score > -torch.inf)


def find_maxima(maps: Tensor, refine: Refine) -> Peaks:
    """Return the highest cell of each landmark's map [B, K, H, W] as K peaks, all valid."""
    images, landmarks, height, width = maps.shape
    maps = maps.float()
    score, flat_index = maps.flatten(2).max(dim=2)
    cells = torch.stack([flat_index % width, flat_index // width], dim=-1)
    fine = refine_peaks(maps.reshape(-1, height, width), cells.reshape(-1, 1, 2), refine)
    return Peaks(fine.reshape(images, landmarks, 2), score, torch.ones_like(score, dtype=torch.bool))


def heat_centroids(maps: Tensor) -> Peaks:
    """Return the mean cell of each landmark's map [B, K, H, W], weighted by squared heat, as K peaks.

    If a map has one sharp peak, the mean is at the peak. If it has several candidate positions, the mean is
    between them, which on average gives a smaller error than choosing one of them. The score is the highest
    heat.
    """
    height, width = maps.shape[-2:]
    maps = maps.float()
    weight = maps.clamp_min(0).square() + 1e-12  # the mean of a map without heat is its center
    total = weight.sum(dim=(2, 3))
    rows, columns = (torch.arange(n, device=maps.device, dtype=maps.dtype) for n in (height, width))
    x, y = weight.sum(dim=2) @ columns / total, weight.sum(dim=3) @ rows / total
    score = maps.amax(dim=(2, 3))
    return Peaks(torch.stack([x, y], dim=-1), score, torch.ones_like(score, dtype=torch.bool))


def read_heatmaps(maps: Tensor, method: PeakMethod) -> Peaks:
    """Return one peak per landmark from maps [B, K, H, W], all valid."""
    return heat_centroids(maps) if method == "centroid" else find_maxima(maps, method)


def refine_peaks(heat: Tensor, cells: Tensor, refine: Refine) -> Tensor:
    """Refine the positions of peaks from integer cells [B, P, 2] of maps [B, H, W] to fractions of a cell.

    "cell" keeps the cells. "quarter" moves them by a quarter of a cell toward the higher neighbor along each
    axis. "parabola" returns the vertex of a parabola through the logarithms of a peak and its neighbors.
    """
    if refine == "cell":
        return cells.to(heat.dtype)
    height, width = heat.shape[-2:]
    padded = F.pad(heat[:, None], (1, 1, 1, 1), mode="replicate")[:, 0].flatten(1)
    center = (cells[..., 1] + 1) * (width + 2) + cells[..., 0] + 1

    def neighbor(step: int) -> Tensor:
        return padded.gather(1, center + step)

    peak = neighbor(0)
    before = torch.stack([neighbor(-1), neighbor(-(width + 2))], dim=-1)
    after = torch.stack([neighbor(1), neighbor(width + 2)], dim=-1)
    if refine == "quarter":
        offset = 0.25 * torch.sign(after - before)
    else:
        # The logarithm of a Gaussian is a parabola; three samples give its vertex exactly.
        floor = 1e-4
        left, mid, right = (v.clamp_min(floor).log() for v in (before, peak[..., None], after))
        curvature = (2 * mid - left - right).clamp_min(1e-6)
        offset = (0.5 * (right - left) / curvature).clamp(-0.5, 0.5)
    limit = torch.tensor([width - 1, height - 1], device=heat.device, dtype=heat.dtype)
    return torch.minimum((cells + offset).clamp_min(0), limit)


def sample_maps(maps: Tensor, cells: Tensor) -> Tensor:
    """Sample maps [B, C, H, W] bilinearly at cells [B, P, 2]; return [B, P, C].

    Outside a map, its border is repeated.
    """
    height, width = maps.shape[-2:]
    x, y = (cells.to(maps.dtype) + 0.5).unbind(-1)
    grid = torch.stack([x * (2 / width), y * (2 / height)], dim=-1) - 1
    values = F.grid_sample(maps, grid[:, None], mode="bilinear", padding_mode="border", align_corners=False)
    return values[:, :, 0].transpose(1, 2)


def sample_descriptors(features: Tensor, cells: Tensor) -> Tensor:
    """Return unit descriptors [B, P, d] at cells [B, P, 2] of a feature map [B, d, h, w], in float32."""
    return F.normalize(sample_maps(features.float(), cells), dim=-1)
