"""The paper's metrics, each a small pure function on arrays."""

from selfmark.evaluate.nme import (
    backward_nme,
    box_normaliser,
    forward_nme,
    mean_shape,
    mean_shape_nme,
    nme,
    pair_normaliser,
)
from selfmark.evaluate.regression import Regressor, fit_ridge

__all__ = [
    "Regressor",
    "backward_nme",
    "box_normaliser",
    "fit_ridge",
    "forward_nme",
    "mean_shape",
    "mean_shape_nme",
    "nme",
    "pair_normaliser",
]
