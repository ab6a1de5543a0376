"""Settings that adapt the number of iterations to the number of images, and to the movement of landmarks."""

from __future__ import annotations

from dataclasses import dataclass

from selfmark.config.limits import above, between


@dataclass(frozen=True)
class Schedule:
    """How the iterations depend on the number of images and on the landmarks, for the method `self-training`.

    `schedule.stop_when_still` and the settings after it apply to Stage 2. In runs with pretrained features,
    they also apply to the rounds.
    """

    # How strongly the iterations grow with the number of images. The iterations are multiplied by a factor:
    # the number of images divided by `schedule.reference_images`, raised to the power of this value. With 0,
    # the iterations do not depend on the number of images.
    growth: float = between(0, 1, 0.0)
    # Number of images for which the factor is 1, so that the iterations do not change.
    reference_images: int = between(1, 10_000_000, 3_000)
    min_factor: float = above(0, 1, 0.4)  # Smallest factor, which applies to very few images.
    max_factor: float = between(1, 100, 2.0)  # Largest factor, which applies to very many images.
    # Whether Stage 2, or a round of a run with features, jumps to its final part when the landmarks of
    # held-out images stand still. The iterations in between are skipped.
    stop_when_still: bool = False
    # Landmarks stand still if their mean movement between two measurements is less than this value, in
    # percent of the image's side.
    still_movement: float = between(0, 100, 2.0)
    # Number of measurements in a row in which landmarks must stand still.
    patience: int = between(1, 1_000, 2)
    # Time between two measurements, as a fraction of the iterations of a round or of Stage 2.
    measure_every: float = above(0, 1, 0.05)
    # Fraction of the iterations of a round that form its final part, which is never skipped. The final part
    # of Stage 2 begins when its learning rate falls for the first time.
    final_fraction: float = above(0, 1, 0.25)
    # Number of images that are held out of a round or of Stage 2. Each round holds out other images.
    held_out_images: int = between(1, 128, 8)
    # Largest fraction of the images that may be held out. If this fraction is less than one image, nothing is
    # held out, and no iterations are skipped.
    held_out_fraction: float = above(0, 0.5, 0.1)

    def factor(self, num_images: int) -> float:
        """Return the factor on the iterations for a number of images.

        >>> few = Schedule(growth=0.5, reference_images=400)
        >>> [few.factor(num_images) for num_images in (4, 100, 400, 1_600_000)]
        [0.4, 0.5, 1.0, 2.0]
        """
        factor: float = (num_images / self.reference_images) ** self.growth
        return min(max(factor, self.min_factor), self.max_factor)
