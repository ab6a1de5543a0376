"""Which animal is which from frame to frame.

Blobs that stand out from the background are given to the animals by the least sum of distances from where
each is expected. Animals that touch share a blob: its pixels are then divided between bell-shaped bodies that
start with the shape and place they had before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import cv2
import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from selfmark.config import Tracking
from selfmark.tracking.background import Mask

Floats = npt.NDArray[np.float64]

_ROUNDS = 8  # of dividing a blob; it settles in three or four
_VELOCITY = 0.5  # share of the newest step in the expected one
_HELD = 0.9  # of that, how much is not believed while animals touch
_HIDDEN = 0.82  # share of the area of the animals in a blob; where it has less, one covers another
_OUTER = 97  # percentile of a body's pixels, by distance from its center, that says how far it reaches


@dataclass(frozen=True)
class Sighting:
    """The A animals of one frame, in pixels of the mask; NaN where one was not seen.

    center: [A, 2]
    radius: [A], how far the body reaches from its center
    """

    center: Floats
    radius: Floats


@dataclass
class _Body:
    """What is known of an animal; `unseen` counts frames since it was last seen."""

    center: Floats  # [2]
    shape: Floats  # [2, 2] covariance of its pixels
    radius: float  # how far it reaches from its center; NaN where it is covered
    step: Floats = field(default_factory=lambda: np.zeros(2))
    unseen: int = 0

    @property
    def expected(self) -> Floats:
        return self.center + self.step if self.unseen == 0 else self.center


class AnimalTracker:
    """Follows a known number of animals through the masks of a video."""

    def __init__(self, animals: int, area: float, settings: Tracking) -> None:
        """Args: area: pixels of one animal."""
        self._bodies: list[_Body | None] = [None] * animals
        self._area = area
        self._settings = settings

    def step(self, mask: Mask) -> Sighting:
        """The animals in the next mask."""
        blobs = self._blobs(mask)
        center = np.full((len(self._bodies), 2), np.nan)
        radius = np.full(len(self._bodies), np.nan)
        owners: dict[int, list[int]] = {}
        for animal, blob in self._assign(blobs).items():
            owners.setdefault(blob, []).append(animal)
        for blob, animals in owners.items():
            for animal, body in zip(animals, self._look(blobs[blob], animals), strict=True):
                if body is not None:
                    self._bodies[animal] = body
                    center[animal], radius[animal] = body.center, body.radius
        for animal in np.flatnonzero(np.isnan(center[:, 0])).tolist():
            lost = self._bodies[animal]
            if lost is not None:
                lost.unseen += 1
        return Sighting(center, radius)

    def _look(self, pixels: Floats, animals: list[int]) -> list[_Body | None]:
        """The animals in a blob as they are now; None for one that is not to be seen in it."""
        bodies = [self._bodies[animal] for animal in animals]
        if len(animals) == 1:
            return [_moved(bodies[0], pixels)]
        known = [body for body in bodies if body is not None and body.unseen == 0]
        if len(known) == len(bodies) and len(pixels) < _HIDDEN * len(animals) * self._area:
            # One covers the other: pixels say nothing of who is where, and each goes on as it went before.
            return [replace(body, center=body.expected, radius=float("nan")) for body in known]
        return [
            _moved(body, own, _HELD) if len(own) >= self._settings.min_area * self._area else None
            for body, own in zip(bodies, divide_pixels(pixels, bodies), strict=True)
        ]

    def _blobs(self, mask: Mask) -> list[Floats]:
        """Pixels [P, 2] (x, y) of every blob large enough, largest first."""
        count, labels, stats, _ = cv2.connectedComponentsWithStats(mask)
        blobs = []
        for label in range(1, count):
            left, top, width, height, area = stats[label].tolist()
            if area >= self._settings.min_area * self._area:
                rows, columns = np.nonzero(labels[top : top + height, left : left + width] == label)
                blobs.append(np.stack([columns + left, rows + top], axis=1).astype(np.float64))
        return sorted(blobs, key=len, reverse=True)

    def _assign(self, blobs: list[Floats]) -> dict[int, int]:
        """The blob of each animal; a blob with the area of two takes two."""
        if not blobs:
            return {}
        rooms = [
            blob
            for blob, pixels in enumerate(blobs)
            for _ in range(max(1, min(len(self._bodies), round(len(pixels) / self._area))))
        ]
        if all(body is None for body in self._bodies):  # at the start the largest blob holds who is missing
            rooms += [0] * (len(self._bodies) - len(rooms))
        away = np.array([self._distances(body, blobs) for body in self._bodies])
        chosen = {
            int(animal): rooms[room]
            for animal, room in zip(*linear_sum_assignment(away[:, rooms]), strict=True)
            if away[animal, rooms[room]] <= self._limit(self._bodies[animal])
        }
        for animal, body in enumerate(self._bodies):
            if animal not in chosen and body is not None:
                nearest = int(away[animal].argmin())
                if away[animal, nearest] == 0:  # it is under a blob that others were given
                    chosen[animal] = nearest
        return chosen

    def _distances(self, body: _Body | None, blobs: list[Floats]) -> Floats:
        """From where an animal is expected to each blob's middle, or where it holds several, nearest pixel.

        An animal not seen yet is as near to one as to another, so large blobs go first by their order.
        """
        if body is None:
            return np.linspace(0, 1e-3, len(blobs))
        away = []
        for pixels in blobs:
            if len(pixels) < 1.5 * self._area and len(self._bodies) <= len(blobs):
                away.append(float(np.linalg.norm(pixels.mean(axis=0) - body.expected)))
            else:
                nearest = float(np.linalg.norm(pixels - body.expected, axis=1).min())
                away.append(0.0 if nearest < 1 else nearest)
        return np.array(away, dtype=np.float64)

    def _limit(self, body: _Body | None) -> float:
        """How far an animal may have gone since it was seen."""
        if body is None:
            return float("inf")
        return float(self._settings.max_step * self._area**0.5 * (1 + body.unseen))


def _moved(before: _Body | None, pixels: Floats, held: float = 0.0) -> _Body:
    """An animal that now has these pixels; of its step a share `held` stays, because pixels are uncertain."""
    center = pixels.mean(axis=0)
    radius = float(np.percentile(np.linalg.norm(pixels - center, axis=1), _OUTER))
    body = _Body(center, _covariance(pixels), radius)
    if before is not None and before.unseen == 0:
        share = _VELOCITY * (1 - held)
        body.step = (1 - share) * before.step + share * (center - before.center)
    return body


def divide_pixels(pixels: Floats, bodies: list[_Body | None]) -> list[Floats]:
    """Pixels [P, 2] of a blob divided between the bodies in it, each with the shape and place it had."""
    spread, middle = _covariance(pixels), pixels.mean(axis=0)
    along = np.linalg.eigh(spread)[1][:, 1] * np.sqrt(np.linalg.eigvalsh(spread)[1])
    places = np.linspace(-1, 1, len(bodies))  # for animals not seen before: side by side along the blob
    centers = np.stack(
        [
            middle + place * along if body is None else body.expected
            for place, body in zip(places, bodies, strict=True)
        ]
    )
    shapes = np.stack([spread / len(bodies) if body is None else body.shape for body in bodies])
    owner = np.zeros(len(pixels), np.int64)
    for _ in range(_ROUNDS):
        apart = pixels[:, None] - centers
        inverse = np.linalg.inv(shapes)
        likelihood = -np.einsum("pai,aij,paj->pa", apart, inverse, apart) - np.log(np.linalg.det(shapes))
        before, owner = owner, likelihood.argmax(axis=1)
        for number in range(len(bodies)):
            own = pixels[owner == number]
            if len(own) > 2:
                centers[number] = own.mean(axis=0)
                shapes[number] = (shapes[number] + _covariance(own)) / 2  # bodies change their shape slowly
        if (owner == before).all():
            break
    return [pixels[owner == number] for number in range(len(bodies))]


def _covariance(pixels: Floats) -> Floats:
    """[2, 2], of pixels that have an extent."""
    apart = pixels - pixels.mean(axis=0)
    return np.asarray(apart.T @ apart / len(pixels) + np.eye(2), dtype=np.float64)
