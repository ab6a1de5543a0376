"""Leave out objects whose errors cannot be measured, because their normalizing length is zero or unknown."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from selfmark.annotations import AnnotatedObjects
from selfmark.errors import InputError
from selfmark.evaluation.normalizers import measure_unchecked_lengths
from selfmark.paper.datasets.dataset import Dataset
from selfmark.wording import choose_form, describe_count


def drop_unmeasurable(dataset: Dataset) -> Dataset:
    """Return the data set without objects whose normalizer is zero or unknown, and add a note.

    Examples are objects with one joint, or with both eyes at the same point. If there is a split `fit`,
    `train` keeps all its objects, because nothing is measured on them.
    """
    kept, notes = {}, []
    for name, split in dataset.splits.items():
        if name == "train" and dataset.fit is not None:
            continue
        is_usable = _is_measurable(dataset, split)
        if not is_usable.any():
            raise InputError(
                f"errors on {dataset.name} are divided by '{dataset.normalizer}', but no object of its "
                f"{name} split has the points to measure it"
            )
        if not is_usable.all():
            first = split.paths[int(np.argmin(is_usable))]
            kept[name] = split.select(is_usable)
            left_out = int((~is_usable).sum())
            notes.append(
                f"{describe_count(left_out, 'object')} of the {name} split "
                f"{choose_form(left_out, 'was', 'were')} left out because "
                f"'{dataset.normalizer}', by which errors are divided, is zero or unknown; the first is "
                f"in {first}"
            )
    return dataset.replace_splits(kept, notes)


def _is_measurable(dataset: Dataset, split: AnnotatedObjects) -> npt.NDArray[np.bool_]:
    # The regions of the crops (here, ones) only affect the normalizer "side", which can always be measured.
    length = measure_unchecked_lengths(split, dataset.normalizer, np.ones((len(split), 4)))
    is_usable: npt.NDArray[np.bool_] = np.isfinite(length) & (length > 0)
    return is_usable
