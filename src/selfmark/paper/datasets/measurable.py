"""Objects whose errors can be measured: what they are divided by must have a length."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from selfmark.annotations import AnnotatedObjects
from selfmark.errors import InputError
from selfmark.evaluation.normalizers import measurable_lengths
from selfmark.paper.datasets.dataset import Dataset


def drop_unmeasurable(dataset: Dataset) -> Dataset:
    """The same without objects that have no normalizer, which a note counts: one joint, eyes in one place.

    Where regressors are fitted on a split of their own, nothing is measured on `train`, which stays whole.
    """
    kept, notes = {}, []
    for name, split in dataset.splits.items():
        if name == "train" and dataset.fit is not None:
            continue
        usable = _usable(dataset, split)
        if not usable.any():
            raise InputError(
                f"no image of the {name} split of {dataset.name} has the points between which "
                f"'{dataset.normalizer}', which errors are divided by, is measured"
            )
        if not usable.all():
            first = split.paths[int(np.argmin(usable))]
            kept[name] = split.select(usable)
            notes.append(
                f"{int((~usable).sum())} images of the {name} split were left out, because "
                f"'{dataset.normalizer}', which errors are divided by, has no length in them, the first is "
                f"{first}"
            )
    return dataset.changed(kept, notes)


def _usable(dataset: Dataset, split: AnnotatedObjects) -> npt.NDArray[np.bool_]:
    length = measurable_lengths(split, dataset.normalizer, np.ones((len(split), 4)))
    usable: npt.NDArray[np.bool_] = np.isfinite(length) & (length > 0)
    return usable
