"""Track a known number of animals from frame to frame.

Connected regions of foreground pixels (blobs) are assigned to animals so that the sum of distances from the
expected positions is minimal. Animals that touch share a blob. To divide the pixels of a blob between
its animals, one Gaussian per animal is fitted, starting from the animals' previous shapes and expected
positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import cv2
import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from selfmark.config import Tracking
from selfmark.tracking.background_model import Mask

Floats = npt.NDArray[np.float64]

_MAX_DIVISION_ROUNDS = 8  # iterations that divide the pixels of a blob; three or four usually suffice
_VELOCITY_GAIN = 0.5  # weight of the latest step in the expected step
_CONTACT_DAMPING = 0.9  # fraction by which _VELOCITY_GAIN is reduced while animals touch
# If the shared blob is smaller than this fraction of the animals' total area, one animal covers another.
_MIN_VISIBLE = 0.82
_RADIUS_PERCENTILE = 97  # percentile of the distances between an animal's pixels and its center


@dataclass(frozen=True)
class AnimalPositions:
    """Positions of the A animals in one frame, in pixels of the mask; NaN for animals that are not visible.

    center: [A, 2]
    radius: [A], extent of the body from its center; NaN also for animals that may be covered by another
    pixels: pixels [P, 2] of each animal; None for an animal that shares its blob or is not visible
    """

    center: Floats
    radius: Floats
    pixels: tuple[Floats | None, ...]


@dataclass
class AnimalState:
    """State of one animal, in pixels of the mask.

    center: [2]
    shape:  [2, 2], covariance of the pixels
    radius: extent of the body from its center; NaN while one animal of its blob covers another
    step:   [2], expected motion per frame
    unseen: number of frames since the animal was last visible
    """

    center: Floats
    shape: Floats
    radius: float
    step: Floats = field(default_factory=lambda: np.zeros(2))
    unseen: int = 0

    @property
    def expected(self) -> Floats:
        """Return the expected center [2] in the next frame."""
        return self.center + self.step if self.unseen == 0 else self.center


class AnimalTracker:
    """Tracker of a known number of animals in the foreground masks of a video."""

    def __init__(self, animals: int, area: float, settings: Tracking) -> None:
        """Start without any known position.

        Args:
            animals: number of animals.
            area: area of one animal, in pixels of the mask.
            settings: limits on the area and the motion of animals.
        """
        self._animals: list[AnimalState | None] = [None] * animals
        self._area = area
        self._settings = settings

    def update(self, mask: Mask) -> AnimalPositions:
        """Find the animals in the mask [h, w] of the next frame."""
        blobs = self._find_blobs(mask)
        center = np.full((len(self._animals), 2), np.nan)
        radius = np.full(len(self._animals), np.nan)
        pixels: list[Floats | None] = [None] * len(self._animals)
        members: dict[int, list[int]] = {}
        for animal, blob in self._assign(blobs).items():
            members.setdefault(blob, []).append(animal)
        for blob, animals in members.items():
            if len(animals) == 1:
                pixels[animals[0]] = blobs[blob]
            for animal, state in zip(animals, self._locate(blobs[blob], animals), strict=True):
                if state is not None:
                    self._animals[animal] = state
                    center[animal], radius[animal] = state.center, state.radius
        for animal in np.flatnonzero(np.isnan(center[:, 0])).tolist():
            hidden_state = self._animals[animal]
            if hidden_state is not None:
                hidden_state.unseen += 1
        return AnimalPositions(center, radius, tuple(pixels))

    def _locate(self, pixels: Floats, animals: list[int]) -> list[AnimalState | None]:
        """Return the new states of the animals of a blob; None for animals with too few pixels.

        Args:
            pixels: [P, 2] pixels of the blob.
            animals: numbers of the animals in the blob.
        """
        states = [self._animals[animal] for animal in animals]
        if len(animals) == 1:
            return [_update_state(states[0], pixels)]
        visible = [state for state in states if state is not None and state.unseen == 0]
        if len(visible) == len(states) and len(pixels) < _MIN_VISIBLE * len(animals) * self._area:
            # One animal covers another, so the pixels cannot be divided. Each animal takes its expected step.
            return [replace(state, center=state.expected, radius=float("nan")) for state in visible]
        min_pixels = self._settings.min_area * self._area
        return [
            _update_state(state, own_pixels, _CONTACT_DAMPING) if len(own_pixels) >= min_pixels else None
            for state, own_pixels in zip(states, divide_pixels(pixels, states), strict=True)
        ]

    def _find_blobs(self, mask: Mask) -> list[Floats]:
        """Return the pixels [P, 2] (x, y) of every blob that is large enough, largest first."""
        count, labels, stats, _ = cv2.connectedComponentsWithStats(mask)
        blobs = []
        for label in range(1, count):
            left, top, width, height, area = stats[label].tolist()
            if area >= self._settings.min_area * self._area:
                rows, columns = np.nonzero(labels[top : top + height, left : left + width] == label)
                blobs.append(np.stack([columns + left, rows + top], axis=1).astype(np.float64))
        return sorted(blobs, key=len, reverse=True)

    def _assign(self, blobs: list[Floats]) -> dict[int, int]:
        """Assign animals to blobs; return the blob of each assigned animal.

        A blob has as many slots as animals fit into its area, but at least one. Animals are assigned to slots
        so that the sum of their distances is minimal. An animal without a slot, or too far from its slot, is
        assigned to the blob in which it is expected, if there is one.
        """
        if not blobs:
            return {}
        slots: list[int] = []  # the blob of each slot
        for blob, pixels in enumerate(blobs):
            num_slots = min(len(self._animals), round(len(pixels) / self._area))
            slots += [blob] * max(1, num_slots)
        # As long as no animal has been seen, animals without a slot are assumed to be in the largest blob.
        if all(state is None for state in self._animals):
            slots += [0] * (len(self._animals) - len(slots))
        distance = np.array([self._distances(state, blobs) for state in self._animals])
        assigned = {
            int(animal): slots[slot]
            for animal, slot in zip(*linear_sum_assignment(distance[:, slots]), strict=True)
            if distance[animal, slots[slot]] <= self._max_distance(self._animals[animal])
        }
        for animal, state in enumerate(self._animals):
            if animal not in assigned and state is not None:
                nearest_blob = int(distance[animal].argmin())
                if distance[animal, nearest_blob] == 0:  # expected inside a blob that was assigned to others
                    assigned[animal] = nearest_blob
        return assigned

    def _distances(self, state: AnimalState | None, blobs: list[Floats]) -> Floats:
        """Return the distance [B] from an animal's expected position to each blob, in pixels.

        The distance is measured to the blob's center, or to the blob's nearest pixel if the blob may contain
        several animals. For an animal that was never seen, the distance is near 0 for every blob, and
        slightly smaller for larger blobs.
        """
        if state is None:
            return np.linspace(0, 1e-3, len(blobs))
        distances = []
        for pixels in blobs:
            if len(pixels) < 1.5 * self._area and len(self._animals) <= len(blobs):
                distances.append(float(np.linalg.norm(pixels.mean(axis=0) - state.expected)))
            else:
                nearest = float(np.linalg.norm(pixels - state.expected, axis=1).min())
                distances.append(0.0 if nearest < 1 else nearest)
        return np.array(distances, dtype=np.float64)

    def _max_distance(self, state: AnimalState | None) -> float:
        """Return how far an animal may have moved since it was last visible, in pixels."""
        if state is None:
            return float("inf")
        return float(self._settings.max_step * self._area**0.5 * (1 + state.unseen))


def _update_state(previous: AnimalState | None, pixels: Floats, damping: float = 0.0) -> AnimalState:
    """Return the state of an animal with the given pixels.

    Args:
        previous: state in the previous frame, None if the animal was never seen.
        pixels: [P, 2] x and y of the animal's pixels.
        damping: fraction by which to reduce the influence of the new position on the expected step.
    """
    center = pixels.mean(axis=0)
    radius = float(np.percentile(np.linalg.norm(pixels - center, axis=1), _RADIUS_PERCENTILE))
    state = AnimalState(center, _covariance(pixels), radius)
    if previous is not None and previous.unseen == 0:
        gain = _VELOCITY_GAIN * (1 - damping)
        state.step = (1 - gain) * previous.step + gain * (center - previous.center)
    return state


def divide_pixels(pixels: Floats, animals: list[AnimalState | None]) -> list[Floats]:
    """Divide the pixels of a blob between its animals, by fitting one Gaussian per animal.

    In each iteration, each pixel goes to the Gaussian that is most likely. Animals that were never seen start
    side by side along the long axis of the blob.

    Args:
        pixels: [P, 2], x and y of the blob's pixels.
        animals: state of each animal in the previous frame; None for animals that were never seen.

    Returns:
        The pixels [P_i, 2] of each animal, in the order of `animals`.
    """
    covariance, middle = _covariance(pixels), pixels.mean(axis=0)
    long_axis = np.linalg.eigh(covariance)[1][:, 1] * np.sqrt(np.linalg.eigvalsh(covariance)[1])
    offsets = np.linspace(-1, 1, len(animals))
    centers = np.stack(
        [
            middle + offset * long_axis if state is None else state.expected
            for offset, state in zip(offsets, animals, strict=True)
        ]
    )
    shapes = np.stack([covariance / len(animals) if state is None else state.shape for state in animals])
    owner = np.zeros(len(pixels), np.int64)
    for _ in range(_MAX_DIVISION_ROUNDS):
        difference = pixels[:, None] - centers
        inverse = np.linalg.inv(shapes)
        # Twice the logarithm of the likelihood, without a constant: [P, A].
        squared_distance = np.einsum("pai,aij,paj->pa", difference, inverse, difference)
        log_likelihood = -squared_distance - np.log(np.linalg.det(shapes))
        previous_owner, owner = owner, log_likelihood.argmax(axis=1)
        for animal in range(len(animals)):
            own_pixels = pixels[owner == animal]
            if len(own_pixels) > 2:
                centers[animal] = own_pixels.mean(axis=0)
                shapes[animal] = (shapes[animal] + _covariance(own_pixels)) / 2  # bodies change shape slowly
        if (owner == previous_owner).all():
            break
    return [pixels[owner == animal] for animal in range(len(animals))]


def _covariance(pixels: Floats) -> Floats:
    """Return the covariance [2, 2] of pixels [P, 2], plus 1 on the diagonal so that it is invertible."""
    centered = pixels - pixels.mean(axis=0)
    return np.asarray(centered.T @ centered / len(pixels) + np.eye(2), dtype=np.float64)
