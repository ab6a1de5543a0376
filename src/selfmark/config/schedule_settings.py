"""Settings of schedules whose length follows the number of images."""

from __future__ import annotations

from dataclasses import dataclass

from selfmark.config.limits import above, between


@dataclass(frozen=True)
class Schedule:
    """Iterations that depend on the number of images, in runs with the method `self-training`."""

    # How strongly the iterations grow with the number of images. The iterations are multiplied by a factor:
    # the number of images divided by `schedule.reference_images`, raised to the power of this value. With 0,
    # the iterations do not depend on the number of images.
    growth: float = between(0, 1, 0.0)
    # Number of images for which the factor is 1, so that the iterations do not change.
    reference_images: int = between(1, 10_000_000, 3_000)
    min_factor: float = above(0, 1, 0.4)  # Smallest factor, which applies to very few images.
    max_factor: float = between(1, 100, 2.0)  # Largest factor, which applies to very many images.

    def factor(self, num_images: int) -> float:
        """Return the factor on the iterations for a number of images.

        >>> few = Schedule(growth=0.5, reference_images=400)
        >>> [few.factor(num_images) for num_images in (4, 100, 400, 1_600_000)]
        [0.4, 0.5, 1.0, 2.0]
        """
        factor: float = (num_images / self.reference_images) ** self.growth
        return min(max(factor, self.min_factor), self.max_factor)
