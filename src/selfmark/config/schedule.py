"""Lengthen or shorten a training, and list the iterations of its stages."""

from __future__ import annotations

from dataclasses import replace

from selfmark.config.schema import Config


def fit_schedule(config: Config, num_images: int) -> Config:
    """Return the settings with the iterations that `config.schedule` gives for a number of images.

    >>> from selfmark.config import preset
    >>> [fit_schedule(preset("fast"), num_images).student.iterations for num_images in (60, 3_000, 20_000)]
    [183, 400, 585]
    >>> fit_schedule(preset("paper"), 60) == preset("paper")
    True
    """
    factor = config.schedule.factor(num_images)
    return config if factor == 1 else scale_schedule(config, factor)


def scale_schedule(config: Config, factor: float) -> Config:
    """Return the same settings with all iterations multiplied by a factor and unchanged numbers of rounds.

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
    """Return a mapping from dotted names to values of the settings that `scale_schedule` changes.

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


def stage_iterations(config: Config) -> dict[str, int]:
    """Return a mapping from the stages of a training, as log events call them, to their total iterations.

    >>> stage_iterations(Config())
    {'warm-up': 30000, 'round': 170000, 'stage 2': 200000}
    """
    if config.is_from_another_paper and not config.merges_clusters:
        return {"method": config.methods.iterations}
    if config.method == "zero-shot":
        return {}
    has_warmup = config.warmup.bootstrap == "equivariance"
    stage1 = {"warm-up": config.warmup.iterations} if has_warmup else {}
    stage1["round"] = config.rounds.count * config.rounds.iterations
    if not config.uses_features:
        return stage1 | {"stage 2": config.stage2.iterations}
    student = config.student.rounds * config.student.iterations
    return {**(stage1 if config.features.runs_stage1 else {}), "student": student}
