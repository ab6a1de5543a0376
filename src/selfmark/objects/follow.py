"""Which animal is which from frame to frame.

Blobs that stand out from the background are given to the animals by the least sum of distances from where
each is expected. Animals that touch share a blob: its pixels are then divided between bell-shaped bodies that
start with the shape and place they had before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import cv2
import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from selfmark.config import Tracking
from selfmark.objects.background import Mask

Floats = npt.NDArray[np.float64]

_ROUNDS = 8  # of dividing a blob; it settles in three or four
_VELOCITY = 0.5  # share of the newest step in the expected one
_OUTER = 97  # percentile of a body's pixels, by distance from its centre, that says how far it reaches


@dataclass(frozen=True)
class Sighting:
    """The A animals of one frame, in pixels of the mask; NaN where one was not seen.

    centre: [A, 2]
    radius: [A], how far the body reaches from its centre
    """

    centre: Floats
    radius: Floats


@dataclass
class _Body:
    """What is known of an animal; `unseen` counts frames since it was last seen."""

    centre: Floats  # [2]
    shape: Floats  # [2, 2] covariance of its pixels
    step: Floats = field(default_factory=lambda: np.zeros(2))
    unseen: int = 0

    @property
    def expected(self) -> Floats:
        return self.centre + self.step if self.unseen == 0 else self.centre


class Follower:
    """Follows a known number of animals through the masks of a video."""

    def __init__(self, animals: int, area: float, settings: Tracking) -> None:
        """Args: area: pixels of one animal."""
        self._bodies: list[_Body | None] = [None] * animals
        self._area = area
        self._settings = settings

    def step(self, mask: Mask) -> Sighting:
        """The animals in the next mask."""
        blobs = self._blobs(mask)
        centre = np.full((len(self._bodies), 2), np.nan)
        radius = np.full(len(self._bodies), np.nan)
        for number, pixels in self._share_out(blobs).items():
            body = _Body(pixels.mean(axis=0), _covariance(pixels))
            before = self._bodies[number]
            if before is not None and before.unseen == 0:
                body.step = (1 - _VELOCITY) * before.step + _VELOCITY * (body.centre - before.centre)
            self._bodies[number] = body
            centre[number] = body.centre
            radius[number] = np.percentile(np.linalg.norm(pixels - body.centre, axis=1), _OUTER)
        for number in np.flatnonzero(np.isnan(radius)).tolist():
            lost = self._bodies[number]
            if lost is not None:
                lost.unseen += 1
        return Sighting(centre, radius)

    def _blobs(self, mask: Mask) -> list[Floats]:
        """Pixels [P, 2] (x, y) of every blob large enough, largest first."""
        count, labels, stats, _ = cv2.connectedComponentsWithStats(mask)
        blobs = []
        for label in range(1, count):
            left, top, width, height, area = stats[label].tolist()
            if area >= self._settings.least_area * self._area:
                rows, columns = np.nonzero(labels[top : top + height, left : left + width] == label)
                blobs.append(np.stack([columns + left, rows + top], axis=1).astype(np.float64))
        return sorted(blobs, key=len, reverse=True)

    def _share_out(self, blobs: list[Floats]) -> dict[int, Floats]:
        """Pixels of each animal that is seen."""
        owners: dict[int, list[int]] = {}
        for animal, blob in self._assign(blobs).items():
            owners.setdefault(blob, []).append(animal)
        shared: dict[int, Floats] = {}
        for blob, animals in owners.items():
            if len(animals) == 1:
                shared[animals[0]] = blobs[blob]
                continue
            bodies = [self._bodies[animal] for animal in animals]
            for animal, pixels in zip(animals, divide(blobs[blob], bodies), strict=True):
                if len(pixels) >= self._settings.least_area * self._area:
                    shared[animal] = pixels
        return shared

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
        return float(self._settings.reach * self._area**0.5 * (1 + body.unseen))


def divide(pixels: Floats, bodies: list[_Body | None]) -> list[Floats]:
    """Pixels [P, 2] of a blob divided between the bodies in it, each with the shape and place it had."""
    spread, middle = _covariance(pixels), pixels.mean(axis=0)
    along = np.linalg.eigh(spread)[1][:, 1] * np.sqrt(np.linalg.eigvalsh(spread)[1])
    places = np.linspace(-1, 1, len(bodies))  # for animals not seen before: side by side along the blob
    centres = np.stack(
        [
            middle + place * along if body is None else body.expected
            for place, body in zip(places, bodies, strict=True)
        ]
    )
    shapes = np.stack([spread / len(bodies) if body is None else body.shape for body in bodies])
    owner = np.zeros(len(pixels), np.int64)
    for _ in range(_ROUNDS):
        apart = pixels[:, None] - centres
        inverse = np.linalg.inv(shapes)
        likelihood = -np.einsum("pai,aij,paj->pa", apart, inverse, apart) - np.log(np.linalg.det(shapes))
        before, owner = owner, likelihood.argmax(axis=1)
        for number in range(len(bodies)):
            own = pixels[owner == number]
            if len(own) > 2:
                centres[number] = own.mean(axis=0)
                shapes[number] = (shapes[number] + _covariance(own)) / 2  # bodies change their shape slowly
        if (owner == before).all():
            break
    return [pixels[owner == number] for number in range(len(bodies))]


def _covariance(pixels: Floats) -> Floats:
    """[2, 2], of pixels that have an extent."""
    apart = pixels - pixels.mean(axis=0)
    return np.asarray(apart.T @ apart / len(pixels) + np.eye(2), dtype=np.float64)
