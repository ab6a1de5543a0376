"""Discover landmarks with pretrained features, from unlabeled images to a landmark detector.

    images
      -> if objects face any direction: rotate the images until all objects face the same way (see
         `feature_images`)
      -> features of every cell, a square of 8 x 8 pixels, and the cell's place in the image if it helps (see
         `feature_places`); each cell belongs to the object or to the background
      -> candidates: clusters of the object's cells, up to three times as many as landmarks
      -> zero-shot landmarks: the K candidates that together predict all candidates best
      -> for upright objects: keypoints, clustered by their features, as more exact labels (see
         `feature_labels`)
      -> for upright objects, if `features.keypoint_landmarks` is set: the paper's Stage 1 on keypoints (see
         `pipeline`) with as many landmarks as candidates. They are more precise where keypoints recur on the
         same part. They replace the labels if the zero-shot candidates confirm them.
      -> rounds: train a detector, a head on the encoder, on the labels; find new landmarks with it. The first
         round finds the candidates; the K best ones, chosen once more, become the landmarks.
      -> detector; it rotates its input images if the training images were rotated

Features tell which part a location belongs to, but not exactly where the part is. Training on deformed
images makes the landmarks precise. A round that learns from features is undone if its landmarks are clearly
noisier than the zero-shot landmarks or no longer explain them. Rounds that learn the landmarks of Stage 1 are
not undone, because these landmarks are confirmed before the rounds. Every step stores its result in the run
folder, so that an interrupted run can be resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from selfmark.config import Config
from selfmark.config.schedule import stage_iterations
from selfmark.correspondence.merging import keep_clusters
from selfmark.correspondence.mirror import LandmarkPartners, count_nearest_in_mirror, find_mirror_partners
from selfmark.correspondence.selection import Targets, choose_landmarks
from selfmark.correspondence.zero_shot import PlacedLandmarks
from selfmark.detector import Detector
from selfmark.errors import CollapsedTraining
from selfmark.feature_discovery.feature_images import (
    Directions,
    UsedImages,
    build_used_store,
    compare_landmarks,
    find_directions,
    load_images_and_encoder,
    select_images,
    settle_orientation,
    turn_images,
    turn_keypoints,
    turn_keypoints_back,
    turn_positions_back,
)
from selfmark.feature_discovery.feature_labels import FeatureLabels, FoundLandmarks, find_feature_labels
from selfmark.feature_discovery.feature_partners import check_partners
from selfmark.feature_discovery.feature_places import settle_places
from selfmark.features.loading import load_encoder
from selfmark.images.feed import PixelFeed
from selfmark.images.store import ImageStore
from selfmark.model.card import Architecture
from selfmark.model.feature_network import FeaturePsi, ZeroShotPsi, bytes_per_feature_image
from selfmark.model.heatmaps import heat_centroids, to_pixels
from selfmark.model.landmark_network import prepare_landmark_network
from selfmark.model.network import Phi
from selfmark.model.turned_network import DirectionFinder, TurnedPsi
from selfmark.pipeline import (
    build_landmark_table,
    cluster_landmarks,
    explain_lack_of_keypoints,
    load_first_keypoints,
    plan_iterations,
    run_stage1,
)
from selfmark.pipeline_steps import (
    Preview,
    build_card,
    create_generator,
    derive_seed,
    discard_if_unusable,
    do_nothing,
    hold_out_images,
    keep_edits,
    report_out_of_memory,
    seed_weights,
    show_nothing,
    train_phase,
)
from selfmark.points import Keypoints, LabeledPoints
from selfmark.run.devices import images_per_pass
from selfmark.run.folder import Run
from selfmark.sampling import evenly_spaced
from selfmark.train.checkpoints import load_checkpoint
from selfmark.train.engine import Phase, build_student_state
from selfmark.train.objectives import LandmarkTable, RegressionSettings, build_regression_task
from selfmark.train.starting_weights import start_student

_CHOICE_IMAGES = 500  # images in which candidates are compared; more would hardly change the choice


class _PossibleResult(NamedTuple):
    """A detector that may become the result of the run.

    source:       origin of its landmarks: zero-shot, features or keypoints
    architecture: kind of its network
    psi:          its network
    found:        its landmarks of the used images
    partners:     mirror partners of the landmarks
    chosen:       [K] indices of its landmarks among the candidates in its first labels
    """

    source: str
    architecture: Architecture
    psi: FeaturePsi | ZeroShotPsi
    found: FoundLandmarks
    partners: LandmarkPartners
    chosen: Tensor


def train_feature_detector(
    run: Run,
    device: torch.device,
    is_new: bool,
    on_preview: Preview = show_nothing,
    on_plan: Callable[[], None] = do_nothing,
) -> tuple[Detector, ImageStore]:
    """Run the whole discovery with features.

    Args:
        run: the run folder, locked.
        device: device to compute on.
        is_new: whether the run was just created. The folder of a new run is deleted if its images are
            unusable.
        on_preview: called with the zero-shot landmarks, then with the landmarks of each round.
        on_plan: called once the orientation is settled, which decides whether Stage 1 is run.

    Returns:
        The detector and the training images.
    """
    with discard_if_unusable(run, is_new):
        store, encoder = load_images_and_encoder(run, device)
        info = encoder.info
        run.log("features", name=info.name, license=info.license, training_data=info.training_data)
        images = select_images(run, store, device)
        settle_orientation(run, encoder, images.feed)
        directions: Directions | None = None
        if run.config.features.orientation == "turned":
            directions = find_directions(run, encoder, images.feed)
            images = turn_images(run, images, directions.angle)
        settle_places(run, encoder, images)
        run.log("plan", **_plan(run.config), stages=stage_iterations(run.config))
        on_plan()
        feature_labels = find_feature_labels(run, encoder, images)
        chosen = _choose_landmarks(run, "zero-shot", feature_labels.zero_shot, images)
        centroids, zero_shot = feature_labels.centroids[chosen], feature_labels.zero_shot.select(chosen)
        on_preview("zero-shot", images.feed.pixels, zero_shot.xy)
        if run.config.method == "self-training" and run.config.features.runs_stage1:
            # Stage 1 needs these keypoints. If they cannot be computed, fail here: a new run is then deleted.
            load_first_keypoints(run, store, device)

    result = _PossibleResult(
        "zero-shot",
        "zero-shot",
        ZeroShotPsi(encoder, centroids, run.config.features),
        zero_shot,
        _find_partners(feature_labels.zero_shot, run.config).select(chosen.tolist()),
        chosen,
    )
    if run.config.method == "self-training":
        trained: _PossibleResult | None = None
        if run.config.features.runs_stage1:
            trained = _try_stage1_labels(run, images, feature_labels.zero_shot, on_preview)
        result = trained or _train_on_feature_labels(run, images, feature_labels, result, on_preview)
    if result.source != "keypoints":  # Stage 1 finds partners by descriptors, which do not contain places.
        partners = check_partners(run, encoder, images.feed, result.found.xy, result.partners)
        result = result._replace(partners=partners)
    _store_landmarks(run, result, centroids, images)
    psi = result.psi if directions is None else _turn_images_first(run, result.psi, directions)
    card = replace(
        build_card(run, result.partners, len(store)),
        architecture=result.architecture,
        features=run.config.features,
        student=run.config.student,
        refine="centroid",
    )
    card.provenance.update(
        landmarks=result.source,
        features={"name": info.name, "license": info.license, "training_data": info.training_data},
    )
    card = keep_edits(run, psi, card)
    return Detector(psi, card, device, run.config.runtime), store


def _turn_images_first(run: Run, psi: FeaturePsi | ZeroShotPsi, directions: Directions) -> TurnedPsi:
    """Return a network that turns images to the common direction before it applies `psi`."""
    settings = run.config.features
    # The encoder of psi may have been trained, but directions are found with the original weights.
    encoder = load_encoder(settings.name, directions.template.device)
    return TurnedPsi(DirectionFinder(encoder, settings, directions.template, directions.offset), psi)


def _plan(config: Config) -> dict[str, int]:
    """Return the number of rounds and the iterations of each stage, for progress displays."""
    student = config.student.rounds * config.student.iterations
    if config.method == "zero-shot":
        return {"rounds": 0, "stage1": 0, "stage2": 0, "student": 0, "student_rounds": 0}
    plan = {"rounds": 0, "stage1": 0, "stage2": 0}
    if config.features.runs_stage1:
        plan = plan_iterations(config) | {"stage2": 0}
    return plan | {"student": student, "student_rounds": config.student.rounds}


# --- rounds of self-training -------------------------------------------------------------------------


def _choose_landmarks(run: Run, name: str, found: FoundLandmarks, images: UsedImages) -> Tensor:
    """Choose K of the found candidates; return their indices [K] and store them in the run.

    Positions are compared in the images before turning, as in `compare_landmarks`.

    Args:
        run: the run.
        name: name of the step that found the candidates.
        found: the candidates in the used images.
        images: the used images.
    """
    config, settings = run.config, run.config.features
    device, num_found = found.xy.device, found.xy.shape[1]
    if num_found == config.K:
        return torch.arange(config.K, device=device)

    def compute() -> dict[str, Tensor]:
        rows = torch.from_numpy(evenly_spaced(len(found.xy), _CHOICE_IMAGES)).to(device)
        xy, mirrored_xy = (
            turn_positions_back(xy[rows], images.matrix[rows]) for xy in (found.xy, found.mirrored_xy)
        )
        weight = found.mirrored_score[rows].double().clamp(0, 1).cpu().numpy() ** settings.choice_power
        chosen = choose_landmarks(
            xy, Targets(mirrored_xy, weight), _find_partners(found, config), config.K, settings.choice_scale
        )
        run.log("chosen_landmarks", step=name, candidates=num_found, landmarks=config.K)
        return {"chosen": torch.from_numpy(chosen)}

    return run.load_or_compute_tensors(f"{name}-chosen", device, compute)["chosen"]


def _find_partners(found: FoundLandmarks, config: Config) -> LandmarkPartners:
    """Find the mirror partner of each landmark: the landmark of the mirror image that lies nearest to it."""
    if config.flip.partner == "itself":
        return LandmarkPartners.identity(found.xy.shape[1])
    return find_mirror_partners(
        count_nearest_in_mirror(found.xy.cpu().numpy(), found.mirrored_xy.cpu().numpy())
    )


def _train_on_feature_labels(
    run: Run,
    images: UsedImages,
    feature_labels: FeatureLabels,
    start: _PossibleResult,
    on_preview: Preview,
) -> _PossibleResult:
    """Train in rounds on labels from features; return the last detector that is not worse than the start.

    Args:
        run: the run.
        images: the used images.
        feature_labels: labels found with features, for the first rounds.
        start: the zero-shot detector.
        on_preview: called after each round.
    """
    settings = run.config.features

    def is_worse(found: FoundLandmarks, number: int) -> bool:
        # Noise cannot be predicted. Of two sets of landmarks, the noisier one is harder to predict from the
        # other one.
        unexplained_start = compare_landmarks(found.xy, start.found.xy, images.matrix)
        unexplained_found = compare_landmarks(start.found.xy, found.xy, images.matrix)
        is_noisier = unexplained_found > settings.max_noise_ratio * unexplained_start
        is_kept = not is_noisier and unexplained_start <= settings.max_unexplained_start
        run.log(
            "agreement",
            stage="student",
            round=number,
            unexplained_start=round(unexplained_start, 4),
            unexplained=round(unexplained_found, 4),
            is_kept=is_kept,
        )
        return not is_kept

    if feature_labels.keypoints is not None:
        labels = _FirstLabels(feature_labels.keypoints, settings.keypoint_label_rounds)
    else:
        labels = _FirstLabels(_build_table(feature_labels.zero_shot, run.config), 1)
    return _train_rounds(run, "student", images, labels, is_worse, on_preview) or start


def _try_stage1_labels(
    run: Run, images: UsedImages, zero_shot: FoundLandmarks, on_preview: Preview
) -> _PossibleResult | None:
    """Train on the landmarks of the paper's Stage 1.

    Args:
        run: the run.
        images: the used images.
        zero_shot: the zero-shot candidates, which must confirm the landmarks.
        on_preview: called after each round.

    Returns:
        The detector; None if there are too few keypoints, Stage 1 collapses, or its landmarks are not
        confirmed.
    """
    points = turn_keypoints(load_first_keypoints(run, images.store, images.feed.device), images)
    reason = explain_lack_of_keypoints(points, len(images.feed), run.config)
    if not reason:
        try:
            return _train_on_stage1_labels(run, images, points, zero_shot, on_preview)
        except CollapsedTraining as error:
            reason = str(error)
    run.log("note", text=f"landmarks from keypoints are left out: {reason}")
    return None


def _train_on_stage1_labels(
    run: Run, images: UsedImages, points: Keypoints, zero_shot: FoundLandmarks, on_preview: Preview
) -> _PossibleResult | None:
    """Run the paper's Stage 1 and train on its landmarks; return None if they are not confirmed."""
    config, feed = run.config, images.feed

    def build_labels(phi: Phi, rounds_done: int) -> tuple[LandmarkTable, LandmarkPartners]:
        name = "keypoint-landmarks" if rounds_done else "warm-up-landmarks"
        labeled = run.load_or_compute_labels(
            name, feed.device, lambda: cluster_landmarks(run, phi, feed, rounds_done)
        )
        return build_landmark_table(labeled, len(feed))

    def check_warmup(phi: Phi) -> None:
        table, _ = build_labels(phi, 0)
        limit = config.features.max_unexplained_warmup
        if not _is_confirmed(run, images, zero_shot, table, "warm-up", limit):
            raise _Unconfirmed

    try:
        phi = run_stage1(run, build_used_store(images), feed, points, check_warmup, on_preview)
    except _Unconfirmed:
        return None
    table, partners = build_labels(phi, config.rounds.count)
    if not _is_confirmed(run, images, zero_shot, table, "keypoints", config.features.max_unexplained):
        return None

    labels = _FirstLabels(table, config.features.keypoint_label_rounds)
    trained = _train_rounds(run, "keypoints", images, labels, lambda *_: False, on_preview)
    if trained is None:
        return None
    return trained._replace(source="keypoints", partners=partners.select(trained.chosen.tolist()))


class _Unconfirmed(Exception):
    """Raised to end Stage 1 after the warm-up, because its landmarks are not confirmed."""


def _is_confirmed(
    run: Run, images: UsedImages, zero_shot: FoundLandmarks, table: LandmarkTable, stage: str, limit: float
) -> bool:
    """Return True if labels of Stage 1 can be predicted from the zero-shot candidates; log the result.

    Args:
        run: the run.
        images: the used images.
        zero_shot: the zero-shot candidates.
        table: the labels.
        stage: name of the check in the log.
        limit: maximum error of the prediction, relative to guessing the mean.
    """
    unexplained = compare_landmarks(zero_shot.xy, table.xy, images.matrix, table.present)
    is_kept = unexplained <= limit
    run.log("agreement", stage=stage, round=0, unexplained=round(unexplained, 4), is_kept=is_kept)
    return is_kept


class _FirstLabels(NamedTuple):
    """Labels of the first rounds: a table of K landmarks or of more candidates, and the number of rounds."""

    table: LandmarkTable
    rounds: int


def _train_rounds(
    run: Run,
    name: str,
    images: UsedImages,
    first_labels: _FirstLabels,
    is_worse: Callable[[FoundLandmarks, int], bool],
    on_preview: Preview,
) -> _PossibleResult | None:
    """Train a head on the encoder in rounds.

    After the rounds on the first labels, each round learns the landmarks that the round before has found. If
    the first labels belong to more than K candidates, K candidates are chosen after the first round.

    Args:
        run: the run.
        name: name of the training; it begins the names of the checkpoints.
        images: the used images.
        first_labels: labels of the first rounds.
        is_worse: called with the landmarks that a round found and the number of this round; returns True if
            the landmarks are worse than those before the first round. Training then ends.
        on_preview: called after each round.

    Returns:
        The detector of the last round that is not worse; None if there is no such round.
    """
    config, student, feed = run.config, run.config.student, images.feed
    table = first_labels.table
    with seed_weights(config, name):
        psi = FeaturePsi(load_encoder(config.features.name, feed.device), student, table.xy.shape[1])
    if run.start_from() is not None:
        run.log("start_from", stage=name, tensors=start_student(psi, run.path))
    prepare_landmark_network(psi, feed.device, config.runtime)
    settings = RegressionSettings.of_student(config)
    chosen = torch.arange(table.xy.shape[1], device=feed.device)
    best: _PossibleResult | None = None
    best_weights: dict[str, Tensor] = {}
    for number in range(1, student.rounds + 1):
        stage = f"{name}-{number}"
        is_frozen = number <= student.frozen_rounds or student.encoder_lr == 0 or not psi.encoder.is_trainable
        generator = create_generator(config, stage, feed.device)
        state = build_student_state(psi, student, is_frozen, generator, run.group)
        run.restore_checkpoint(stage, partial(load_checkpoint, state))
        phase = Phase(name, number, 0, student.iterations, (), student.warmup_fraction)
        if state.iteration < phase.stop:
            seed = derive_seed(config, stage)
            used, standstill = hold_out_images(run, stage, phase, psi, feed, table)
            task = build_regression_task(psi, feed, used, settings, generator, seed, run.group)
            batch_setting = (settings.batch_setting, settings.batch)
            train_phase(run, stage, state, phase, task, batch_setting, standstill)
        found = FoundLandmarks(
            **run.load_or_compute_tensors(stage, feed.device, partial(_find_landmarks, run, psi, feed))
        )
        partners = _find_partners(found, config)
        if found.xy.shape[1] > config.K:
            chosen = _choose_landmarks(run, stage, found, images)
            psi.keep_landmarks(chosen)
            found, table = found.select(chosen), table.select(chosen)
            partners = partners.select(chosen.tolist())
        on_preview(stage, feed.pixels, found.xy)
        if is_worse(found, number):
            break
        best = _PossibleResult("features", "encoder", psi, found, partners, chosen)
        best_weights = {key: value.detach().clone() for key, value in psi.state_dict().items()}
        if number >= first_labels.rounds:
            table = _build_table(found, config)
    if best is not None:
        psi.load_state_dict(best_weights)
        psi.requires_grad_(True)  # undoes the freezing of the encoder
    return best


@torch.no_grad()
def _find_landmarks(run: Run, psi: FeaturePsi, feed: PixelFeed) -> dict[str, Tensor]:
    """Find the landmarks of all images and of their mirror images with a trained network.

    Returns:
        A mapping from the names of the fields of `FoundLandmarks` to their values.
    """
    config = run.config
    psi.eval()
    batch = images_per_pass(
        config.runtime.predict_batch, bytes_per_feature_image(config.images.size), feed.device
    )
    on_progress = run.progress("finding landmarks")

    def find(rows: slice) -> list[Tensor]:
        parts: list[tuple[Tensor, ...]] = []
        done = 0
        for pixels in feed.sequential_batches(batch, rows):
            images = pixels.float() / 255
            placed = _read_landmarks(psi(images))
            mirrored = _read_landmarks(psi(images.flip(-1)).flip(-1))  # heatmaps are mirrored back
            parts.append((*placed, *mirrored))
            done += len(images)
            on_progress(done, rows.stop - rows.start)
        return [torch.cat(column) for column in zip(*parts, strict=True)]

    with report_out_of_memory(run, "runtime.predict_batch", config.runtime.predict_batch):
        found = FoundLandmarks(*run.group.compute_shared(len(feed), batch, find))
    return found._asdict()


def _read_landmarks(maps: Tensor) -> PlacedLandmarks:
    """Read the positions and scores of landmarks from heatmaps [B, K, h, w]."""
    peaks = heat_centroids(maps)
    return PlacedLandmarks(to_pixels(peaks.cells), peaks.score)


# --- labels ------------------------------------------------------------------------------------------------


def _build_table(found: FoundLandmarks, config: Config) -> LandmarkTable:
    """Build labels from the positions of each landmark that have the highest scores."""
    quantile = 1 - config.student.confident_fraction
    present = found.score >= found.score.quantile(quantile, dim=0)
    if config.flip.partner == "itself":
        identity = LandmarkPartners.identity(found.xy.shape[1])
        return LandmarkTable.from_partners(found.xy, present, identity)
    mirrored_present = found.mirrored_score >= found.mirrored_score.quantile(quantile, dim=0)
    usable = torch.nonzero((present & mirrored_present).any(dim=1)).flatten()
    return LandmarkTable(found.xy, present, found.mirrored_xy, mirrored_present, usable)


def _store_landmarks(run: Run, result: _PossibleResult, centroids: Tensor, images: UsedImages) -> None:
    """Store the landmarks of the used images as labeled points, for the report and the evaluation."""

    def compute() -> LabeledPoints:
        if result.source == "keypoints":
            candidates = run.load_or_compute_labels("keypoint-landmarks", centroids.device, _raise_missing)
            labeled = candidates
            if len(result.chosen) < candidates.clusters:
                labeled = keep_clusters(candidates, result.chosen.cpu().numpy())
            return replace(labeled, points=turn_keypoints_back(labeled.points, images))
        num_images, K = result.found.score.shape
        index = torch.arange(num_images, device=centroids.device).repeat_interleave(K)
        label = torch.arange(K, device=centroids.device).repeat(num_images)
        points = Keypoints(result.found.xy.reshape(-1, 2), index, result.found.score.flatten())
        mirror = torch.tensor(result.partners.mirror, device=centroids.device)
        mirror[list(result.partners.unpaired)] = -1
        return LabeledPoints(turn_keypoints_back(points, images), label, mirror[label], K, centroids)

    run.load_or_compute_labels("landmarks", centroids.device, compute)


def _raise_missing() -> LabeledPoints:
    raise ValueError("the labels of the keypoints are missing, although an earlier step stores them")
