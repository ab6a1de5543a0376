"""Run the label-free checks of a detector on a sample of images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from selfmark.config import Config
from selfmark.detector import Detector
from selfmark.evaluation.background_check import are_whole_frames_of_one_video, measure_background
from selfmark.evaluation.consistency import (
    compute_agreeing_fraction,
    compute_cluster_separation,
    compute_detection_rates,
    compute_stable_fraction,
    measure_deformation_errors,
    measure_mirror_errors,
    nan_median,
)
from selfmark.evaluation.individuals import check_individuals
from selfmark.evaluation.located_images import locate_images
from selfmark.evaluation.protocol import Metrics, to_json_list, to_json_number
from selfmark.evaluation.stage1_landmarks import Stage1Finder, find_stage1_landmarks
from selfmark.evaluation.trust import TrustEvidence, judge_landmarks
from selfmark.evaluation.verdict import judge_run
from selfmark.image_ref import ImageRef
from selfmark.images.store import ImageStore, load_store
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from selfmark.sampling import evenly_spaced


def run_label_free_checks(
    detector: Detector,
    stage1: Stage1Finder,
    refs: Sequence[ImageRef],
    config: Config,
    image_store: ImageStore | None = None,
    second_run: Metrics | None = None,
    group: ProcessGroup = SINGLE_PROCESS,
) -> Metrics:
    """Run all checks that need no labels, and judge each landmark and the run by them.

    Args:
        detector: The detector.
        stage1: Stage 1 of the detector's run.
        refs: The images; a sample of at most `evaluation.num_samples` of them is checked.
        config: Settings of the run.
        image_store: Decoded images, among them all `refs`; None decodes the sample.
        second_run: Content of verification.json, the agreement with a second run; None without such a run.
        group: The processes that share the passes of the networks over the images; each process gets all
            results.

    Returns:
        The section `unlabelled` of metrics.json, with None for unknown values.
    """
    settings, batch = config.evaluation, config.runtime.predict_batch
    chosen = [refs[row] for row in evenly_spaced(len(refs), settings.num_samples)]
    store = (
        image_store.select(chosen) if image_store else load_store(chosen, config.images, float("inf"), None)
    )
    generator = torch.Generator(detector.device).manual_seed(settings.seed)
    deformed = measure_deformation_errors(
        detector, store.pixels, settings.deformations, config.augment, generator, batch, group
    )
    located = locate_images(detector, store.pixels, batch, group)
    xy, peaks = (values.cpu().numpy().astype(np.float64) for values in located)
    landmarks = find_stage1_landmarks(stage1, store.pixels, group)
    mirrored = measure_mirror_errors(detector, store.pixels, batch, group) if config.flip.train else None
    separation = compute_cluster_separation(
        landmarks.descriptor, landmarks.label, stage1.centroids.cpu().numpy()
    )
    individuals = check_individuals(xy, store.pixels, config, detector.device, group)
    stable = compute_stable_fraction(deformed, settings.agreement_radius)
    found = landmarks.found.mean(axis=0)
    trust = judge_landmarks(
        TrustEvidence(
            stable=stable,
            appearance_error=individuals.appearance_error,
            unexplained=individuals.unexplained,
            found=found,
            second_run_error=None if second_run is None else np.array(second_run["backward_shares"], float),
        ),
        settings,
    )
    background = np.full(len(found), np.nan)
    if are_whole_frames_of_one_video(store.refs):
        background = measure_background(
            store.pixels, xy, settings.background_radius, settings.background_difference
        )
    verdict = judge_run(trust.expected_error, individuals.missed_movement, settings)
    return {
        "images": len(store),
        "deformation": to_json_list(100 * nan_median(deformed.error)),
        "stable": to_json_list(stable),
        "symmetric": to_json_list(compute_agreeing_fraction(mirrored, settings.agreement_radius, len(found))),
        "found": to_json_list(found),
        "detected": to_json_list(compute_detection_rates(peaks, config.heatmaps.threshold)),
        "score": to_json_list(peaks.mean(axis=0)),
        "separation": to_json_list(separation),
        "purity": to_json_list(individuals.purity),
        "constellation": to_json_list(individuals.constellation),
        "unexplained": to_json_list(individuals.unexplained),
        "appearance_error": to_json_list(individuals.appearance_error),
        "spread": to_json_list(individuals.spread),
        "background": to_json_list(background),
        "duplicates": individuals.duplicates,
        "kind_separation": to_json_number(individuals.kind_separation),
        "upright_accuracy": to_json_number(individuals.upright_accuracy),
        "missed_movement": to_json_number(individuals.missed_movement),
        "expected_error": to_json_list(trust.expected_error),
        "trust": to_json_list(trust.trust),
        "order": [int(landmark) for landmark in trust.order],
        "verdict": verdict.verdict,
        "expected_forward": verdict.expected_forward,
    }
