"""Split the images of a run, so that detectors can be compared on images they were not trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selfmark.image_ref import ImageRef


def split_images(
    refs: Sequence[ImageRef], fraction: float, max_images: int, seed: int
) -> tuple[list[ImageRef], list[ImageRef]]:
    """Split images into two parts that have as little in common as possible.

    Neighboring frames of a video are almost the same image, so the last frames of each video form the second
    part. Still images are drawn at random; objects of the same file stay together.

    Args:
        refs: the images.
        fraction: fraction of the frames of each video, and of the files of still images, in the second part.
            The numbers are rounded up, but at least one frame or file stays in the first part.
        max_images: the fraction is lowered if the second part would have more images than this.
        seed: seed of the draw.

    Returns:
        The first and the second part, both in the order of `refs`.

    >>> from pathlib import Path
    >>> video = [ImageRef(Path("a.mp4"), frame=number) for number in range(10)]
    >>> first, second = split_images(video, 0.2, 100, seed=0)
    >>> [ref.frame for ref in second]
    [8, 9]
    """
    fraction = min(fraction, max_images / max(len(refs), 1))
    # Group the rows of `refs` by video; all still images form the group None. Each row is stored with its
    # unit, which is not split: a frame of a video, or the file of a still image.
    groups: dict[str | None, list[tuple[int | str, int]]] = {}
    for row, ref in enumerate(refs):
        video, frame = ref.source_frame or (None, None)
        groups.setdefault(video, []).append((str(ref.path) if frame is None else frame, row))
    rng = np.random.default_rng(seed)
    second: set[int] = set()
    for video, members in groups.items():
        units = sorted({unit for unit, _ in members}, key=lambda unit: (str(type(unit)), unit))
        # Subtract a little, so that rounding errors add no unit. The first part keeps at least one unit.
        count = min(int(np.ceil(fraction * len(units) - 1e-9)), len(units) - 1)
        order = rng.permutation(len(units)) if video is None else np.arange(len(units))
        chosen = {units[index] for index in order[len(units) - count :]}
        second.update(row for unit, row in members if unit in chosen)
    return (
        [ref for row, ref in enumerate(refs) if row not in second],
        [ref for row, ref in enumerate(refs) if row in second],
    )
