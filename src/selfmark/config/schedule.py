"""Change the length of the training: the iterations of every phase by the same factor."""

from __future__ import annotations

from dataclasses import replace

from selfmark.config.schema import Config


def scale_schedule(config: Config, factor: float) -> Config:
    """Return the same settings with all iterations multiplied by a factor; the number of rounds stays.

    >>> scale_schedule(Config(), 0.5).stage2.iterations
    100000
    """

    def scale(iterations: int) -> int:
        return max(1, round(factor * iterations))

    return replace(
        config,
        student=replace(config.student, iterations=scale(config.student.iterations)),
        warmup=replace(config.warmup, iterations=scale(config.warmup.iterations)),
        rounds=replace(config.rounds, iterations=scale(config.rounds.iterations)),
        stage2=replace(config.stage2, iterations=scale(config.stage2.iterations)),
        methods=replace(config.methods, iterations=scale(config.methods.iterations)),
    )


def schedule_settings(config: Config) -> dict[str, int]:
    """Return the iterations of all phases by dotted name.

    >>> schedule_settings(Config())["warmup.iterations"]
    30000
    """
    return {
        "student.iterations": config.student.iterations,
        "warmup.iterations": config.warmup.iterations,
        "rounds.iterations": config.rounds.iterations,
        "stage2.iterations": config.stage2.iterations,
        "methods.iterations": config.methods.iterations,
    }
