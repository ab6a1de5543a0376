"""Objects whose errors can be measured: what they are divided by must have a length."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from selfmark.datasets.form import DataSet, Objects
from selfmark.errors import InputError
from selfmark.evaluate.labels import GroundTruth
from selfmark.evaluate.normalise import measured
from selfmark.images.sources import ImageRef


def measurable(dataset: DataSet) -> DataSet:
    """The same without objects that have no normaliser, which a note counts: one joint, eyes in one place.

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
                f"'{dataset.normaliser}', which errors are divided by, is measured"
            )
        if not usable.all():
            first = split.files[int(np.argmin(usable))]
            kept[name] = split.select(usable)
            notes.append(
                f"{int((~usable).sum())} images of the {name} split were left out, because "
                f"'{dataset.normaliser}', which errors are divided by, has no length in them, the first is "
                f"{first}"
            )
    return dataset.changed(kept, notes)


def _usable(dataset: DataSet, split: Objects) -> npt.NDArray[np.bool_]:
    truth = GroundTruth(
        source=dataset.root,
        refs=tuple(map(ImageRef, split.files)),
        entries=tuple(map(str, split.files)),
        xy=split.xy,
        visible=np.all(np.isfinite(split.xy), axis=2),
        boxes=split.box,
        names=dataset.names,
        mirror=dataset.mirror,
        normaliser=dataset.normaliser,
        fields={},
        notes=(),
    )
    length = measured(truth, dataset.normaliser, np.ones((len(split), 4)))
    usable: npt.NDArray[np.bool_] = np.isfinite(length) & (length > 0)
    return usable
