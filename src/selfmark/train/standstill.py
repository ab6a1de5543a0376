"""End the first part of a phase of the training early, when the landmarks of held-out images stand still.

The learning rate of a phase is high in its first part and low in its final part. During the first part, the
network finds the landmarks of a few images that it is not trained on, at regular intervals. If they have
hardly moved over several intervals, the rest of the first part is skipped: the iteration jumps to the start
of the final part. The learning rate, the batches and the end of a phase depend on the iteration only, so they
need not know about the jump.

The decision depends only on `Movements`, which checkpoints contain, so a resumed training makes the same
decision. Several processes average their measurements, so they make the same decision, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup


def is_standing_still(percents: Sequence[float], limit: float, patience: int) -> bool:
    """Return True if each of the last `patience` movements is below the limit.

    >>> is_standing_still([3.0, 0.9, 0.8], 1.0, 2), is_standing_still([0.9, 1.0, 0.8], 1.0, 2)
    (True, False)
    >>> is_standing_still([0.9], 1.0, 2)
    False
    """
    recent = percents[-patience:]
    return len(recent) == patience and all(percent < limit for percent in recent)


@dataclass
class Movements:
    """What was measured in a phase; part of the training state.

    positions: [H, K, 2] landmarks of the held-out images at the last measurement, percent of the image's
               side; None before the first one
    percents:  mean movement of the landmarks between two measurements, oldest first, percent of the side
    """

    positions: Tensor | None = None
    percents: list[float] = field(default_factory=list)

    def add(self, positions: Tensor, group: ProcessGroup = SINGLE_PROCESS) -> None:
        """Add the landmarks of a new measurement; this waits for the device.

        >>> movements = Movements()
        >>> movements.add(torch.tensor([[[10.0, 10.0], [50.0, 50.0]]]))
        >>> movements.add(torch.tensor([[[13.0, 14.0], [50.0, 49.0]]]))
        >>> movements.percents
        [3.0]
        """
        if self.positions is not None:
            mean = (positions - self.positions).norm(dim=-1).double().mean()
            self.percents.append(float(group.all_sum(mean)) / group.size)
        self.positions = positions

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint needs, by name; none before the first measurement."""
        if self.positions is None:
            return {}
        return {
            "positions": self.positions,
            "percents": torch.tensor(self.percents, dtype=torch.float64),
        }

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], device: torch.device) -> Movements:
        """Restore the movements from the tensors of a checkpoint."""
        if not tensors:
            return cls()
        return cls(tensors["positions"].to(device), tensors["percents"].tolist())


@dataclass(frozen=True)
class Standstill:
    """When a phase measures the movement of its landmarks, and when it skips the rest of its first part.

    first:       first iteration after which the landmarks are found
    interval:    iterations between two measurements
    final_start: first iteration of the final part
    limit:       movement below which landmarks stand still, percent of the image's side
    patience:    number of measurements in a row in which they must stand still
    locate:      returns the landmarks [H, K, 2] of the held-out images, percent of the image's side
    on_measured: called with the iteration, the movement, and the iteration at which the training continues
    """

    first: int
    interval: int
    final_start: int
    limit: float
    patience: int
    locate: Callable[[], Tensor]
    on_measured: Callable[[int, float, int], None]

    def is_due(self, iteration: int) -> bool:
        """Return True if the landmarks are measured after this many iterations.

        >>> nothing = lambda *_: None
        >>> standstill = Standstill(30, 15, 70, 1.0, 2, nothing, nothing)
        >>> [iteration for iteration in range(300) if standstill.is_due(iteration)]
        [30, 45, 60]
        """
        is_first_part = self.first <= iteration < self.final_start
        return is_first_part and (iteration - self.first) % self.interval == 0

    def measure(self, iteration: int, movements: Movements, group: ProcessGroup) -> int:
        """Measure the movement after an iteration at which `is_due` returns True.

        Args:
            iteration: number of iterations done.
            movements: earlier measurements; the new one is added.
            group: the processes that train together.

        Returns:
            The iteration at which the training continues: the given one, or the start of the final part.
        """
        movements.add(self.locate(), group)
        if not movements.percents:
            return iteration
        is_still = is_standing_still(movements.percents, self.limit, self.patience)
        next_iteration = self.final_start if is_still else iteration
        self.on_measured(iteration, movements.percents[-1], next_iteration)
        return next_iteration
