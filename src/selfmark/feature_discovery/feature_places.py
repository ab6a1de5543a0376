"""Decide whether a part's place in the image helps to recognize the part.

The left and the right eye of a face have similar features. In images of upright faces, the places of the eyes
tell them apart. In images of birds that face left or right, the place of a part says little.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from selfmark.config import Config, override
from selfmark.correspondence.zero_shot import find_foreground, find_part_centroids, place_parts
from selfmark.feature_discovery.feature_images import UsedImages, checked_rows, compare_landmarks
from selfmark.features.cells import append_places, describe_cells, describe_colors
from selfmark.features.encoder import Encoder
from selfmark.images.feed import PixelFeed
from selfmark.pipeline_steps import create_generator
from selfmark.run.folder import Run


def settle_places(run: Run, encoder: Encoder, images: UsedImages) -> None:
    """If `features.places` is `auto`, replace it by `used` or `ignored`, whichever suits the images.

    The candidates for landmarks are found twice in a sample of the images: with and without places. Each of
    the two sets is then predicted from the other set. Landmarks that jump between similar parts cannot be
    predicted well. So places are used if the landmarks with places are clearly easier to predict.

    A landmark may also lie halfway between two similar parts in every image, for example between the eyes.
    Such a landmark is easy to predict but marks no part. With places, there is a landmark on each of the two
    parts. Places are therefore also used if the landmarks with places spread much further over the object,
    and if they are only slightly harder to predict.

    Args:
        run: the run.
        encoder: describes the cells.
        images: the used images, turned if necessary.
    """
    settings = run.config.features
    if settings.places != "auto":
        return
    decision = "ignored"
    if settings.orientation != "any":  # If objects have no common direction, a place means nothing.
        rows = checked_rows(len(images.feed))
        sample = PixelFeed(images.feed.pixels[rows], images.feed.device)
        plain, placed = _find_landmarks_twice(run, encoder, sample)
        matrix = images.matrix[rows.to(images.matrix.device)]
        unexplained_placed = compare_landmarks(plain, placed, matrix)
        unexplained_plain = compare_landmarks(placed, plain, matrix)
        spread_factor = measure_spread(placed) / max(measure_spread(plain), 1e-6)
        max_ratio = settings.max_place_ratio
        if spread_factor >= settings.min_place_spread:
            max_ratio = max(max_ratio, settings.max_spread_ratio)
        # On GPUs the errors may differ slightly between processes, but their decision must not.
        is_useful = unexplained_placed <= max_ratio * unexplained_plain
        decision = "used" if run.group.any(is_useful) else "ignored"
        run.log(
            "places",
            unexplained_with_places=round(unexplained_placed, 4),
            unexplained_without=round(unexplained_plain, 4),
            spread_factor=round(spread_factor, 3),
            places=decision,
        )
    run.settle_settings({"features.places": decision})


def measure_spread(landmarks: Tensor) -> float:
    """Return the horizontal spread of landmarks [N, K, 2] in pixels.

    The spread in one image is the standard deviation of x; the result is the median over all images. Only x
    counts, because the similar left and right parts of upright and turned objects lie beside each other.

    >>> xy = [[[-1.0, 5.0], [1.0, 7.0]], [[-3.0, 5.0], [3.0, 5.0]], [[0.0, 0.0], [0.0, 9.0]]]
    >>> measure_spread(torch.tensor(xy))
    1.0
    """
    return float(landmarks[..., 0].std(dim=1, correction=0).median())


@torch.no_grad()
def _find_landmarks_twice(run: Run, encoder: Encoder, sample: PixelFeed) -> tuple[Tensor, Tensor]:
    """Return the positions of candidates for landmarks, [N, C, 2] each: found without and with places.

    Every process computes the positions for all images of the sample.
    """
    config, all_rows = run.config, slice(0, len(sample))
    cells = describe_cells(encoder, sample, all_rows, config, run.path)
    colors = describe_colors(sample, all_rows, config.runtime.predict_batch)
    generator = create_generator(config, "places", sample.device)
    foreground = find_foreground(cells, colors, config.features, generator)
    num_candidates = _count_candidates(config, int(foreground.sum()))

    def find_landmarks(places: str) -> Tensor:
        settings = override(config, {"features.places": places}).features
        described = append_places(cells, settings)
        centroids = find_part_centroids(described, foreground, num_candidates, settings, generator)
        return place_parts(described, centroids, settings.sharpness).xy

    return find_landmarks("ignored"), find_landmarks("used")


def _count_candidates(config: Config, num_foreground: int) -> int:
    """Return the number of candidates that the run will find, see `feature_labels`.

    If K is not yet chosen, use the middle of the numbers that will be tried (setting `auto_k.candidates`).
    """
    candidates = config.auto_k.candidates
    planned_config = replace(config, K=config.K or candidates[len(candidates) // 2])
    return (
        planned_config.num_candidates if planned_config.num_candidates <= num_foreground else planned_config.K
    )
