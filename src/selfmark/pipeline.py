"""Run the paper's method from top to bottom, from unlabeled images to a landmark detector.

Section numbers are those of the paper.

    images
      -> first keypoints: run a generic detector, remove outliers             (Sec. 3.1, 4.2)
      -> Stage 1
           warm-up: train Phi on pairs of an image and its deformation        (Sec. 3.5)
           rounds (Algorithm 1):
             detect and describe keypoints with Phi                           (Sec. 3.2)
             in the first round, if K is "auto": choose K
             recover correspondence: filter the keypoints with K clusters,
               then label them with M clusters                                (Sec. 3.3)
             train Phi on these pseudo-labels                                 (Sec. 3.4)
           last clustering, with K clusters: the landmarks                    (Sec. 3.6)
      -> Stage 2: find mirror partners, train Psi with K heatmaps             (Sec. 3.6, 3.7)
      -> detector

Every step stores its result in the run folder, so that an interrupted run can be resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from selfmark.config import DEFAULT_FEATURES, Config
from selfmark.config.schedule import stage_iterations
from selfmark.correspondence.describe import describe_images
from selfmark.correspondence.landmark_count import count_landmarks, explain_count, sample_images
from selfmark.correspondence.mirror import LandmarkPartners, find_mirror_partners, mirror_cooccurrence
from selfmark.correspondence.recovery import (
    DescribedPoints,
    gather_labels,
    label_keypoints,
    recover_correspondence,
)
from selfmark.detector import Detector
from selfmark.errors import NotEnoughData
from selfmark.images.feed import PixelFeed
from selfmark.images.flow import PropagatedPoints, propagate_points, sample_nearby_frames
from selfmark.images.store import ImageStore
from selfmark.keypoints.first_keypoints import detect_first_keypoints, mix_in_random_points
from selfmark.keypoints.outliers import remove_outliers
from selfmark.keypoints.points_file import read_points_file
from selfmark.model.network import Phi, Psi, prepare_network
from selfmark.pipeline_steps import (
    Preview,
    build_card,
    create_generator,
    derive_seed,
    discard_if_unusable,
    hold_out_images,
    keep_edits,
    load_training_images,
    report_out_of_memory,
    seed_weights,
    show_nothing,
    train_phase,
)
from selfmark.points import Keypoints, LabeledPoints
from selfmark.run.folder import Run
from selfmark.train.checkpoints import load_checkpoint
from selfmark.train.engine import Phase, TrainState, build_train_state
from selfmark.train.guards import check_labels, check_points
from selfmark.train.objectives import (
    LandmarkTable,
    RegressionSettings,
    build_regression_task,
    build_stage1_task,
    round_pair_settings,
    tabulate_landmarks,
    warmup_pair_settings,
)
from selfmark.train.pairs import PairSource
from selfmark.train.point_table import PointTable, build_point_table, label_by_index
from selfmark.train.standstill import Standstill
from selfmark.train.starting_weights import start_phi
from selfmark.wording import choose_form, describe_count


class Stage1Result(NamedTuple):
    """Results of Stage 1 that Stage 2 builds on.

    store:     the training images
    feed:      the same images as batches on the device
    phi:       the trained network of Stage 1
    landmarks: keypoints of all images, labeled by the last clustering with K clusters
    """

    store: ImageStore
    feed: PixelFeed
    phi: Phi
    landmarks: LabeledPoints


def train_detector(
    run: Run, device: torch.device, is_new: bool, on_preview: Preview = show_nothing
) -> tuple[Detector, ImageStore]:
    """Run Stage 1 and Stage 2; see `train_phi` for the arguments.

    Returns:
        The detector and the training images.
    """
    store, feed, phi, landmarks = train_phi(run, device, is_new, on_preview)
    table, partners = build_landmark_table(landmarks, len(store))
    psi = train_psi(run, phi, feed, table)
    card = keep_edits(run, psi, build_card(run, partners, len(store)))
    return Detector(psi, card, device, run.config.runtime), store


def plan_iterations(config: Config) -> dict[str, int]:
    """Return the number of rounds and the iterations of each stage, for progress displays."""
    _, rounds = plan_stage1_phases(config)
    return {"rounds": len(rounds), "stage1": rounds[-1].stop, "stage2": config.stage2.iterations}


def train_phi(
    run: Run, device: torch.device, is_new: bool, on_preview: Preview = show_nothing
) -> Stage1Result:
    """Run Stage 1: from images to the labeled landmarks that Stage 2 learns from.

    Args:
        run: the run folder, locked.
        device: device to compute on.
        is_new: whether the run was just created. The folder of a new run is deleted if its images are
            unusable.
        on_preview: called with the labels of each round, then with the landmarks.
    """
    store, feed, points = prepare_images(run, device, is_new)
    phi = run_stage1(run, store, feed, points, on_preview=on_preview)
    rounds = run.config.rounds.count
    landmarks = run.load_or_compute_labels(
        "landmarks", device, lambda: cluster_landmarks(run, phi, feed, rounds)
    )
    _preview_labels("stage-1", landmarks, feed, on_preview)
    return Stage1Result(store, feed, phi, landmarks)


def prepare_images(run: Run, device: torch.device, is_new: bool) -> tuple[ImageStore, PixelFeed, Keypoints]:
    """Load the images and their first keypoints; see `train_phi` for the arguments."""
    run.log("plan", **plan_iterations(run.config), stages=stage_iterations(run.config))
    with discard_if_unusable(run, is_new):
        store = load_training_images(run)
        points = find_first_keypoints(run, store, device)
    return store, PixelFeed(store.pixels, device, run.config.runtime.device_fraction), points


# --- images and first keypoints (Sec. 3.1) ---------------------------------------------------------


def find_first_keypoints(run: Run, store: ImageStore, device: torch.device) -> Keypoints:
    """Load or compute the first keypoints of a run, and check that there are enough of them.

    Raises:
        NotEnoughData: if there are too few keypoints for K landmarks or M clusters.
    """
    points = load_first_keypoints(run, store, device)

    def require_enough() -> None:
        if lack := explain_lack_of_keypoints(points, len(store), run.config):
            raise NotEnoughData(lack)

    run.group.run_on_leader(require_enough)
    return points


def load_first_keypoints(run: Run, store: ImageStore, device: torch.device) -> Keypoints:
    """Load the first keypoints of a run, or compute and store them; see `_compute_first_keypoints`."""
    with report_out_of_memory(run, "runtime.predict_batch", run.config.runtime.predict_batch):
        points = run.load_or_compute_keypoints("first", lambda: _compute_first_keypoints(run, store, device))
    return points.to(device)


def explain_lack_of_keypoints(points: Keypoints, num_images: int, config: Config) -> str:
    """Explain why the first keypoints are too few for K or M; return an empty string if they are enough."""
    detector, min_landmarks = config.keypoints.detector, config.K or min(config.auto_k.candidates)
    max_per_image = int(points.counts(num_images).max()) if len(points) else 0
    if max_per_image < min_landmarks and not config.merges_clusters:
        smallest = "" if config.K else ", the smallest number that is tried,"
        return (
            f"K={min_landmarks}{smallest} is more than the {describe_count(max_per_image, 'point')} that the "
            f"detector '{detector}' found in any image: {_advise_on_few_keypoints(max_per_image, config)}"
        )
    if len(points) < config.M:
        return (
            f"the {describe_count(len(points), 'keypoint')} of {describe_count(num_images, 'image')} "
            f"{choose_form(len(points), 'is', 'are')} too few for M={config.M} clusters: "
            "give more images or lower M"
        )
    return ""


def _advise_on_few_keypoints(max_per_image: int, config: Config) -> str:
    """Return advice for the case that every image has fewer keypoints than the requested landmarks."""
    settings = config.keypoints
    advice = [f"use -k {max_per_image} or less"] if config.K and max_per_image else []
    # The limit max_points applies before outliers are removed. An image with max_points keypoints has
    # therefore lost about outlier_fraction of them.
    if max_per_image >= round((1 - settings.outlier_fraction) * settings.max_points):
        advice.append(f"raise keypoints.max_points, now {settings.max_points}")
    elif settings.detector == "file":
        advice.append("give more points in the file")
    else:
        advice.append("try another --detector")
    if not config.uses_features and not config.is_from_another_paper:
        advice.append(f"use pretrained features, which need no keypoints (--features {DEFAULT_FEATURES})")
    return ", or ".join(advice)


def _compute_first_keypoints(run: Run, store: ImageStore, device: torch.device) -> Keypoints:
    """Detect generic keypoints in every image and remove outliers, or read keypoints from a file."""
    config, settings = run.config, run.config.keypoints
    generator = create_generator(config, "first keypoints", torch.device("cpu"))
    if settings.detector == "file":
        names = [ref.name for ref in store.refs]
        points = run.group.run_on_all(
            lambda: read_points_file(Path(settings.points_file), names, store.regions, config.images.size)
        )
    else:
        detected = detect_first_keypoints(
            store.pixels,
            store.bounds,
            settings,
            device,
            config.runtime.predict_batch,
            run.progress("first keypoints"),
            run.group,
        )
        outlier_generator = create_generator(config, "outliers", detected.xy.device)
        points = remove_outliers(detected, settings, outlier_generator, run.group).to("cpu")
    if settings.random_fraction > 0:
        points = mix_in_random_points(
            points, settings.random_fraction, len(store), config.images.size, generator
        )
    max_per_image = int(points.counts(len(store)).max()) if len(points) else 0
    run.log("keypoints", detector=settings.detector, points=len(points), most_per_image=max_per_image)
    if config.warmup.bootstrap == "equivariance":
        # No later step needs the generic descriptors, and they take far more memory than the points.
        points = replace(points, descriptor=None)
    return points


# --- Stage 1 (Sec. 3.2 to 3.5) -------------------------------------------------------------------------


def run_stage1(
    run: Run,
    store: ImageStore,
    feed: PixelFeed,
    points: Keypoints,
    check_warmup: Callable[[Phi], None] = lambda phi: None,
    on_preview: Preview = show_nothing,
) -> Phi:
    """Warm up, then alternate correspondence recovery and training (Algorithm 1).

    Args:
        run: the run.
        store: the training images.
        feed: the same images as batches on the device.
        points: first keypoints.
        check_warmup: called with Phi after the warm-up; raises an exception to end Stage 1 there.
        on_preview: called with the labels of each round.

    Returns:
        The trained network Phi.
    """
    config = run.config
    warmup, rounds = plan_stage1_phases(config)
    with seed_weights(config, "Phi"):
        phi = Phi(config.network)
    if run.start_from() is not None:
        run.log("start_from", stage="stage1", tensors=start_phi(phi, run.path))
    prepare_network(phi, feed.device, config.runtime)
    generator = create_generator(config, "stage 1", feed.device)
    state = build_train_state(phi, [(phi, 1.0)], config.optimizer, generator, run.group)
    seed = derive_seed(config, "stage 1 pairs")
    batch_setting = ("runtime.batch", config.runtime.batch)
    run.restore_checkpoint("stage1", partial(load_checkpoint, state))

    if state.iteration < warmup.stop:
        # There are no pseudo-labels yet: a keypoint corresponds only to itself in the deformed image.
        table = _build_table(label_by_index(points, len(store)), store, config, feed.device)
        source = PairSource(table, warmup_pair_settings(config))
        task = build_stage1_task(phi, feed, source, config, generator, seed, run.group)
        train_phase(run, "stage1", state, warmup, task, batch_setting)
    if state.iteration == warmup.stop:
        check_warmup(phi)

    for phase in rounds:
        if state.iteration < phase.stop:
            labeled = run.load_or_compute_labels(
                f"round-{phase.round:02d}",
                feed.device,
                partial(recover_round, run, phi, feed, points, phase.round),
                # Until the round's first iteration, Phi has the weights that the labels are computed with.
                repeatable=state.iteration == phase.start,
            )
            _preview_labels(f"round-{phase.round:02d}", labeled, feed, on_preview)
            table = _build_table(labeled, store, config, feed.device)
            propagated = (
                _propagate_to_nearby_frames(store, table, config, phase.round, feed.device)
                if config.temporal.enabled
                else None
            )
            has_mirrored_labels = bool((labeled.mirrored_label >= 0).any())
            source = PairSource(table, round_pair_settings(config, has_mirrored_labels), propagated)
            task = build_stage1_task(phi, feed, source, config, generator, seed, run.group)
            train_phase(run, "stage1", state, phase, task, batch_setting)
        # A run may be killed after the last checkpoint of a round and before this line. The resumed run skips
        # the training above, but its network has the weights of the round, so they are written here.
        if config.rounds.keep_weights and state.iteration == phase.stop:
            run.write_round_weights(phase.round, phi)
    return phi


def _preview_labels(step: str, labeled: LabeledPoints, feed: PixelFeed, on_preview: Preview) -> None:
    """Show a preview of labeled points, in which each cluster is a landmark."""
    xy, present = tabulate_landmarks(labeled.points, labeled.label, len(feed), labeled.clusters)
    on_preview(step, feed.pixels, xy.masked_fill(~present[..., None], float("nan")))


def recover_round(
    run: Run, phi: Phi, feed: PixelFeed, first_keypoints: Keypoints, number: int
) -> LabeledPoints:
    """Compute the pseudo-labels of round `number`: filter keypoints, label them by M clusters (Sec. 3.3)."""
    if number == 1 and run.config.warmup.bootstrap == "detector-descriptors":
        # The authors' earlier method has no warm-up. It clusters the descriptors of the generic detector.
        rows = run.group.shard(len(feed))
        index = first_keypoints.image_index
        in_shard = (index >= rows.start) & (index < rows.stop)
        described = DescribedPoints(first_keypoints.select(in_shard), mirrored=None)
    else:
        described = _describe_keypoints(run, phi, feed, number)
    if run.config.K == 0 and not run.config.merges_clusters:
        choose_landmark_count(run, described, len(feed), feed.device)
    config = run.config
    num_landmarks = config.stage1_landmarks
    labeled = recover_correspondence(
        described,
        num_landmarks,
        max(config.M, num_landmarks),
        config.correspondence,
        create_generator(config, f"round {number}", feed.device),
        run.group,
    )
    return _gather_labels(run, number, described, labeled, len(feed))


def choose_landmark_count(
    run: Run, described: DescribedPoints, num_images: int, device: torch.device
) -> None:
    """Choose K from described keypoints, and store it in the run.

    This works only before the first round, because the keypoints of later rounds depend on K.

    Args:
        run: the run.
        described: keypoints and descriptors of this process's images.
        num_images: number of images of all processes.
        device: device to compute on.
    """
    config = run.config
    sample, num_sampled = sample_images(described, num_images, config.auto_k.max_images, device, run.group)

    def compute() -> dict[str, Any]:
        generator = create_generator(config, "landmark count", device)
        progress = run.progress("how many landmarks")
        count = count_landmarks(
            sample, num_sampled, config.auto_k, config.correspondence, generator, progress
        )
        return {"why": explain_count(count, config.auto_k), **asdict(count)}

    run.choose_landmark_count(compute)


def _describe_keypoints(run: Run, phi: Phi, feed: PixelFeed, number: int) -> DescribedPoints:
    """Detect and describe the keypoints of every image with Phi, before round `number` (Sec. 3.2)."""
    with report_out_of_memory(run, "runtime.predict_batch", run.config.runtime.predict_batch):
        progress = run.progress("describing keypoints", number)
        described = run.group.run_on_all(lambda: describe_images(phi, feed, run.config, progress, run.group))
    check_points(described, len(feed), run.config.images.size, run.config.guards, run.group)
    return described


def _gather_labels(
    run: Run, number: int, described: DescribedPoints, labeled: LabeledPoints, num_images: int
) -> LabeledPoints:
    """Gather the labels of all processes, check them, and log how many keypoints were found and kept."""
    num_found = sum(run.group.gather_counts(len(described.points)))
    gathered = gather_labels(labeled, run.group)
    check_labels(gathered, run.config.guards)
    if run.config.flip.partner == "itself":  # A part keeps its label when the image is mirrored.
        gathered = replace(gathered, mirrored_label=gathered.label.clone())
    run.log(
        "recovery",
        round=number,
        found_per_image=round(num_found / num_images, 2),
        kept_per_image=round(len(gathered.points) / num_images, 2),
        labelled_share=round(float((gathered.label >= 0).float().mean()), 4),
    )
    return gathered


def _propagate_to_nearby_frames(
    store: ImageStore, table: PointTable, config: Config, number: int, device: torch.device
) -> PropagatedPoints:
    """Propagate keypoints to random nearby video frames by optical flow (Sec. 4.2, Training)."""
    rng = np.random.default_rng(derive_seed(config, f"nearby frames {number}"))
    center = store.regions[:, :2] + store.regions[:, 2:] / 2
    neighbor = sample_nearby_frames(store.video, store.frame, store.track, center, config.temporal, rng)
    propagated = propagate_points(store.pixels, table.xy, table.valid, store.video, neighbor, config.temporal)
    return propagated.to(device)


def plan_stage1_phases(config: Config) -> tuple[Phase, list[Phase]]:
    """Return the warm-up and the rounds, with iterations counted from the start of Stage 1."""
    warmup_length = config.warmup.iterations if config.warmup.bootstrap == "equivariance" else 0
    round_length = config.rounds.iterations
    total = warmup_length + config.rounds.count * round_length
    lr_drops = tuple(round(fraction * total) for fraction in config.rounds.lr_drops)
    rounds = []
    for number in range(1, config.rounds.count + 1):
        start = warmup_length + (number - 1) * round_length
        rounds.append(Phase("round", number, start, start + round_length, lr_drops))
    return Phase("warm-up", 0, 0, warmup_length, lr_drops), rounds


# --- Stage 2 (Sec. 3.6, 3.7) ---------------------------------------------------------------------------


def cluster_landmarks(run: Run, phi: Phi, feed: PixelFeed, rounds_done: int) -> LabeledPoints:
    """Detect keypoints with Phi and cluster them a last time: each cluster is a landmark (Sec. 3.6)."""
    config = run.config
    number = rounds_done + 1
    described = _describe_keypoints(run, phi, feed, number)
    generator = create_generator(config, "last clustering", feed.device)
    labeled = label_keypoints(described, config.stage1_landmarks, config.correspondence, generator, run.group)
    return _gather_labels(run, number, described, labeled, len(feed))


def build_landmark_table(labeled: LabeledPoints, num_images: int) -> tuple[LandmarkTable, LandmarkPartners]:
    """Build the pseudo ground truth of Stage 2: landmark k of image j is the keypoint of j with label k.

    Returns:
        The table, and the mirror partners of the landmarks.
    """
    xy, present = tabulate_landmarks(labeled.points, labeled.label, num_images, labeled.clusters)
    # Landmarks k and l are mirror partners if they mostly exchange places in mirrored images (Sec. 3.7).
    counts = mirror_cooccurrence(
        labeled.label.cpu().numpy(), labeled.mirrored_label.cpu().numpy(), labeled.clusters
    )
    partners = find_mirror_partners(counts)
    return LandmarkTable.from_partners(xy, present, partners), partners


def train_psi(run: Run, phi: Phi, feed: PixelFeed, table: LandmarkTable) -> Psi:
    """Train Psi, which starts from Phi, by heatmap regression on the landmarks of Stage 1 (Sec. 3.6)."""
    psi, state = start_psi(run, phi, run.config.K)
    phase = plan_stage2_phase(run.config, 0, 0, run.config.stage2.iterations)
    used, standstill = hold_out_images(run, "stage2", phase, psi, feed, table)
    train_on_landmarks(run, psi, state, phase, feed, used, standstill)
    return psi


def start_psi(run: Run, phi: Phi, maps: int) -> tuple[Psi, TrainState]:
    """Create Psi with `maps` heatmaps from the weights of Phi; restore its last checkpoint if there is one.

    Returns:
        Psi and its training state.
    """
    config, device = run.config, next(phi.parameters()).device
    with seed_weights(config, "Psi"):
        psi = Psi.from_phi(phi, config.network, maps, config.stage2.head)
    prepare_network(psi, device, config.runtime)
    lr_scales = [(psi.backbone, config.stage2.backbone_lr), (psi.head, 1.0)]
    generator = create_generator(config, "stage 2", device)
    state = build_train_state(psi, lr_scales, config.optimizer, generator, run.group)
    run.restore_checkpoint("stage2", partial(load_checkpoint, state))
    return psi, state


def plan_stage2_phase(config: Config, number: int, start: int, stop: int) -> Phase:
    """Return iterations start..stop-1 of Stage 2 as phase `number`."""
    lr_drops = tuple(round(fraction * config.stage2.iterations) for fraction in config.stage2.lr_drops)
    return Phase("stage 2", number, start, stop, lr_drops)


def train_on_landmarks(
    run: Run,
    psi: Psi,
    state: TrainState,
    phase: Phase,
    feed: PixelFeed,
    table: LandmarkTable,
    standstill: Standstill | None = None,
) -> None:
    """Train Psi for one phase on a table of landmarks; do nothing if the phase is already complete."""
    if state.iteration >= phase.stop:
        return
    seed = derive_seed(run.config, "stage 2 images")
    settings = RegressionSettings.of_stage2(run.config)
    task = build_regression_task(psi, feed, table, settings, state.generator, seed, run.group)
    batch_setting = (settings.batch_setting, settings.batch)
    train_phase(run, "stage2", state, phase, task, batch_setting, standstill)


def _build_table(
    labeled: LabeledPoints, store: ImageStore, config: Config, device: torch.device
) -> PointTable:
    """Arrange labeled points in one row per image, padded to equal length; see `build_point_table`."""
    return build_point_table(labeled, len(store), config.correspondence.min_points, device)
