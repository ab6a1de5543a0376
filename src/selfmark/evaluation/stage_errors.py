"""Measure the errors of both stages of a run, with the chosen normalizer and with inter-ocular distances."""

from __future__ import annotations

from dataclasses import dataclass, replace

from selfmark.annotations import AnnotatedObjects
from selfmark.config import Config, Evaluation
from selfmark.evaluation import protocol
from selfmark.evaluation.inter_ocular import measure_by_definition
from selfmark.evaluation.nme import IntArray
from selfmark.evaluation.normalizers import list_inter_ocular_specs
from selfmark.evaluation.protocol import ErrorTables, Examples, Metrics, Stage1Tables
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

    def tables(self, settings: Evaluation) -> StageTables:
        """Compute the errors with regressors fitted on all training images."""
        return StageTables(
            protocol.error_tables(self.train, self.test, protocol.Regressors.of(settings).fitter),
            protocol.stage1_tables(self.stage1_train, self.stage1_test, settings, self.completed),
        )

    def measure(self, settings: Evaluation, tables: StageTables) -> Metrics:
        """Measure the errors of both stages."""
        by_num_images = protocol.errors_by_num_images(self.train, self.test, settings, tables.stage2)
        return {
            "errors": by_num_images.rows,
            "guessing": protocol.mean_shape_errors(self.train, self.test),
            "headline": protocol.headline_errors(self.train, self.test, settings, tables.stage2),
            "curves": by_num_images.curves,
            "stage1": protocol.stage1_errors(
                self.stage1_train, self.stage1_test, settings, self.completed, tables.stage1
            ),
        }

    def with_normalizer(self, rows: IntArray, lengths: FloatArray) -> StageExamples:
        """Keep only these rows [T'] of the test images, and divide their errors by these lengths [T']."""
        test, stage1_test = (
            replace(examples.select(rows), normalizer=lengths) for examples in (self.test, self.stage1_test)
        )
        return replace(self, test=test, stage1_test=stage1_test)


@dataclass(frozen=True)
class StageTables:
    """Errors of both stages with regressors fitted on all training images."""

    stage2: ErrorTables
    stage1: Stage1Tables

    def rescale(self, rows: IntArray, factor: FloatArray) -> StageTables:
        """Return the errors of these test images [T'], multiplied by a factor [T'] per image."""
        return StageTables(self.stage2.rescale(rows, factor), self.stage1.rescale(rows, factor))


def measure_inter_ocular(
    stages: StageExamples,
    errors: Metrics,
    tables: StageTables,
    truth: AnnotatedObjects,
    regions: FloatArray,
    spec: str,
    config: Config,
) -> Metrics:
    """Measure the errors of 68 facial points with two definitions of the inter-ocular distance.

    Args:
        stages: Landmarks of both stages.
        errors: Metrics with the normalizer `spec`. They are not measured again for a definition that equals
            `spec`, unless the definition leaves out test images.
        tables: Errors with the normalizer `spec`, of regressors fitted on all training images. With another
            normalizer, they differ by a factor per image, so these regressors are not fitted again.
        truth: The T test objects.
        regions: [T, 4] x, y, w, h of the network images in the originals.
        spec: The chosen normalizer.
        config: Settings of the evaluation, and the size of the network image.

    Returns:
        See `measure_by_definition`.
    """
    # If neither definition is the chosen normalizer, regressors are fitted only on the whole training set,
    # not on subsets of it.
    is_chosen = spec in list_inter_ocular_specs(truth.names).values()
    settings = config.evaluation if is_chosen else replace(config.evaluation, fit_images=())

    def measure(definition_spec: str, rows: IntArray, lengths: FloatArray) -> Metrics:
        if definition_spec == spec and len(rows) == len(stages.test):
            return errors
        rescaled = tables.rescale(rows, stages.test.normalizer[rows] / lengths)
        return stages.with_normalizer(rows, lengths).measure(settings, rescaled)

    return measure_by_definition(truth, regions, config.images.size, measure)
