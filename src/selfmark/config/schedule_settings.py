"""Settings of schedules whose length follows the number of images."""

from __future__ import annotations

from dataclasses import dataclass

from selfmark.config.limits import above, between


@dataclass(frozen=True)
class Schedule:
    """How the iterations of self-training follow the number of images; used by the preset `fast` only."""

    # the iterations are multiplied by (images / reference_images) ^ growth; 0: a fixed schedule
    growth: float = between(0, 1, 0.0)
    reference_images: int = between(1, 10_000_000, 3_000)  # number of images with a factor of 1
    min_factor: float = above(0, 1, 0.4)  # lower limit of the factor
    max_factor: float = between(1, 100, 2.0)  # upper limit of the factor

    def factor(self, num_images: int) -> float:
        """Return the factor on the iterations for a number of images.

        >>> few = Schedule(growth=0.5, reference_images=400)
        >>> [few.factor(num_images) for num_images in (4, 100, 400, 1_600_000)]
        [0.4, 0.5, 1.0, 2.0]
        """
        factor: float = (num_images / self.reference_images) ** self.growth
        return min(max(factor, self.min_factor), self.max_factor)
