"""Measure the errors of both stages of a run, with the chosen normalizer and with inter-ocular distances."""

from __future__ import annotations

from dataclasses import dataclass, replace

from selfmark.annotations import AnnotatedObjects
from selfmark.config import Config, Evaluation
from selfmark.evaluation import protocol
from selfmark.evaluation.inter_ocular import measure_by_definition
from selfmark.evaluation.nme import IntArray
from selfmark.evaluation.normalizers import list_inter_ocular_specs
from selfmark.evaluation.protocol import Examples, Metrics
from selfmark.points import FloatArray


@dataclass(frozen=True)
class StageExamples:
    """Landmarks of both stages in training and test images.

    Attributes:
        train: Landmarks of Stage 2 in the images to fit regressors on.
        test: Landmarks of Stage 2 in the images to measure errors on.
        stage1_train: Landmarks of Stage 1 in the images of `train`.
        stage1_test: Landmarks of Stage 1 in the images of `test`.
        completed: [N, K, 2] landmarks of `stage1_train` with their gaps filled, see `completion`.
    """

    train: Examples
    test: Examples
    stage1_train: Examples
    stage1_test: Examples
    completed: FloatArray

    def measure(self, settings: Evaluation) -> Metrics:
        """Measure the errors of both stages."""
        return {
            "errors": protocol.errors_by_num_images(self.train, self.test, settings),
            "guessing": protocol.mean_shape_errors(self.train, self.test),
            "headline": protocol.headline_errors(self.train, self.test, settings),
            "curves": protocol.curves_by_num_images(self.train, self.test, settings),
            "stage1": protocol.stage1_errors(self.stage1_train, self.stage1_test, settings, self.completed),
        }

    def with_normalizer(self, rows: IntArray, lengths: FloatArray) -> StageExamples:
        """Keep only these rows [T] of the test images, and divide their errors by these lengths [T]."""
        test, stage1_test = (
            replace(examples.select(rows), normalizer=lengths) for examples in (self.test, self.stage1_test)
        )
        return replace(self, test=test, stage1_test=stage1_test)


def measure_inter_ocular(
    stages: StageExamples,
    errors: Metrics,
    truth: AnnotatedObjects,
    regions: FloatArray,
    spec: str,
    config: Config,
) -> Metrics:
    """Measure the errors of 68 facial points with two definitions of the inter-ocular distance.

    Args:
        stages: Landmarks of both stages.
        errors: Errors with the normalizer `spec`. They are returned for the definition that equals `spec`.
        truth: The T test objects.
        regions: [T, 4] x, y, w, h of their network images in the originals.
        spec: The chosen normalizer.
        config: Settings of the evaluation, and the size of the network image.

    Returns:
        See `measure_by_definition`.
    """
    # If neither definition is the chosen normalizer, regressors are fitted on all training images only.
    is_chosen = spec in list_inter_ocular_specs(truth.names).values()
    settings = config.evaluation if is_chosen else replace(config.evaluation, fit_images=())

    def measure(definition: str, rows: IntArray, lengths: FloatArray) -> Metrics:
        if definition == spec and len(rows) == len(stages.test):
            return errors
        return stages.with_normalizer(rows, lengths).measure(settings)

    return measure_by_definition(truth, regions, config.images.size, measure)
