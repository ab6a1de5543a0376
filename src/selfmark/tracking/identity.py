"""Tell animals apart by their appearance after they were in contact.

A path is a sequence of positions from the tracker. While animals touch or cover each other, two animals may
exchange paths. A blob is a connected region of foreground pixels. An animal that is alone in its blob is
described by its colors and its size. After a contact, these descriptions decide which path belongs to which
animal; the Hungarian method finds the best assignment of all animals that took part in the contact.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter1d
from scipy.optimize import linear_sum_assignment

from selfmark.config import Tracking
from selfmark.images.decode import Pixels

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_BINS = 16  # bins of the histogram of each color channel
DESCRIPTION_LENGTH = 3 * _BINS
"""Length of the description of an animal."""
_BLUR_SIGMA = 1.0  # bins; the blur reduces the effect of noise, which moves pixels to neighboring bins
# Maximum number of compared frames before a contact, relative to the number of compared frames after it.
_HISTORY_FACTOR = 10
_MIN_FRAMES = 5  # shorter parts of a path are not compared
_VARIANCE_FLOOR = 0.02  # fraction of the largest variance; added to all variances, as some bins hardly vary


def describe_animal(frame: Pixels, pixels: Floats, area: float) -> Floats:
    """Return a histogram [3 * bins] of an animal's colors, in units of a typical animal's area.

    The sum of the histogram is proportional to the size of the animal. So animals of the same color, but of
    different sizes, have different histograms.

    Args:
        frame: [h, w, 3] uint8.
        pixels: [P, 2] x and y of the animal's pixels.
        area: area of a typical animal, in pixels.
    """
    x, y = pixels.astype(np.int64).T
    colors = frame[y, x].astype(np.int64) * _BINS // 256  # [P, 3]
    counts = np.bincount((colors + _BINS * np.arange(3)).ravel(), minlength=3 * _BINS).reshape(3, _BINS)
    smooth = gaussian_filter1d(counts.astype(np.float64), _BLUR_SIGMA, axis=1)
    return np.asarray(smooth.ravel() / area, dtype=np.float64)


def restore_identities(description: npt.NDArray[np.floating], rate: float, settings: Tracking) -> Ints:
    """Decide after each contact which path belongs to which animal.

    Args:
        description: [T, A, D] description of the animal on each path in each frame; NaN while the animal is
            not alone or not visible.
        rate: frames per second.
        settings: how clear an exchange must be, and how many seconds are compared.

    Returns:
        [T, A] path of each animal in each frame; each row is a permutation of the A paths.
    """
    frames, animals = description.shape[:2]
    order = np.empty((frames, animals), np.int64)
    paths = np.arange(animals)  # path of each animal since the last contact
    num_decided = 0  # number of frames whose `order` is final

    def describe(start: int, stop: int, group: Ints) -> Floats:
        """Return descriptions [F, G, D] of a group of animals in frames `start` to `stop` - 1."""
        # Descriptions of a day of video take gigabytes, so only the compared frames are copied.
        part = np.take_along_axis(description[start:stop], order[start:stop, group, None], axis=1)
        return part.astype(np.float64)

    window = max(_MIN_FRAMES, round(settings.appearance_seconds * rate))
    for start, stop in find_contacts(np.isfinite(description[..., 0])):
        order[num_decided : stop + window] = paths
        num_decided = stop
        group = np.flatnonzero(np.isnan(description[start:stop, paths, 0]).any(axis=0))
        if len(group) < 2:
            continue
        after = describe(stop, stop + window, group)
        # Use the frames until an animal of the group is no longer alone.
        all_alone = np.asarray(np.isfinite(after[..., 0]).all(axis=1))
        after = after[: len(all_alone) if all_alone.all() else int(all_alone.argmin())]
        before = describe(max(0, start - _HISTORY_FACTOR * window), start, group)
        chosen = assign_identities(before, after, settings.max_appearance_ratio)
        paths[group] = paths[group[chosen]]
    order[num_decided:] = paths
    return order


def find_contacts(is_alone: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Find the intervals of frames in which not all animals are alone, as (first frame, last frame + 1).

    Args:
        is_alone: [T, A] bool, whether each animal is visible and alone in its blob.

    >>> find_contacts(np.array([[1, 1], [0, 0], [0, 1], [1, 1], [1, 0]], bool))
    [(1, 3), (4, 5)]
    """
    in_contact = ~is_alone.all(axis=1)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], in_contact, [False]]).astype(int)))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def assign_identities(before: Floats, after: Floats, max_ratio: float) -> Ints:
    """Return the path on which each animal continues after a contact.

    Two conditions must hold for an exchange. First, the differences between each animal before the contact
    and the path assigned to it after the contact are summed; the sum with the exchange must be at most
    `max_ratio` times the sum without it. Second, before the contact, no animal's appearance may have changed
    by more than `max_ratio` times the smallest difference between exchanged animals.

    Args:
        before: [T, A, D] descriptions of the animals before the contact; NaN where an animal was not alone.
        after: [S, A, D] descriptions on the paths after the contact, without NaN.
        max_ratio: limit of both conditions.

    Returns:
        [A] path of each animal; 0, 1, ... if no animals are exchanged.
    """
    animals = before.shape[1]
    unchanged_path = np.arange(animals)
    known = np.isfinite(before[..., 0])
    if len(after) < _MIN_FRAMES or known.sum(axis=0).min() < _MIN_FRAMES:
        return unchanged_path
    known_descriptions = [
        before[known[:, animal], animal] for animal in range(animals)
    ]  # [T_a, D] of each animal
    means = np.stack([descriptions.mean(axis=0) for descriptions in known_descriptions])
    variance = np.concatenate(
        [part - mean for part, mean in zip(known_descriptions, means, strict=True)]
    ).var(axis=0)
    variance += _VARIANCE_FLOOR * max(float(variance.max()), 1e-12)
    cost = _differences(means, after.mean(axis=0), variance)  # [animal, path]
    animal, path = linear_sum_assignment(cost)
    if cost[animal, path].sum() > max_ratio * cost[unchanged_path, unchanged_path].sum():
        return unchanged_path
    # Animals that look alike differ only by chance. In that case, the appearance of one animal changes over
    # time by about as much as the appearances of two animals differ, so appearance cannot decide.
    halves = [np.array_split(descriptions, 2) for descriptions in known_descriptions]
    change = max(
        float(((first.mean(axis=0) - second.mean(axis=0)) ** 2 / variance).sum()) for first, second in halves
    )
    animal_differences = _differences(means, means, variance)
    exchanged_differences = [float(animal_differences[a, b]) for a, b in enumerate(path.tolist()) if a != b]
    if exchanged_differences and change > max_ratio * min(exchanged_differences):
        return unchanged_path
    return np.asarray(path, dtype=np.int64)


def _differences(first: Floats, second: Floats, variance: Floats) -> Floats:
    """Return the squared differences [A, B] of descriptions [A, D] and [B, D], divided by variances [D]."""
    return np.asarray(((first[:, None] - second) ** 2 / variance).sum(axis=2), dtype=np.float64)
