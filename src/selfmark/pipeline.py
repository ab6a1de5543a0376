"""The method, top to bottom: unlabeled images in, a landmark detector out.

    images -> generic keypoints -> outliers removed
           -> warm-up: train Phi on an image and its deformation            (Sec. 3.5)
           -> where K is left open: choose it by what holds under resampling
           -> rounds:  apply Phi to every image, recover correspondence,    (Sec. 3.3)
                       train Phi on it                                      (Sec. 3.4, Algorithm 1)
           -> last clustering with K, mirror partners                       (Sec. 3.6, 3.7)
           -> Stage 2: train Psi, K heatmaps                                (Sec. 3.6)
           -> a detector

Every step stores its result in the run folder, so a run that was stopped resumes from there.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selfmark.config import Config
from selfmark.correspondence.describe import describe_images
from selfmark.correspondence.landmark_count import count_landmarks, explain_count, sample_images
from selfmark.correspondence.mirror import find_mirror_partners, mirror_cooccurrence
from selfmark.correspondence.recovery import (
    DescribedPoints,
    gather_labels,
    label_keypoints,
    recover_correspondence,
)
from selfmark.detector import Detector
from selfmark.errors import DiskError, InputError, NotEnoughData, TrainingError
from selfmark.images.feed import PixelFeed
from selfmark.images.flow import PropagatedPoints, has_nearby_frames, propagate_points, sample_nearby_frames
from selfmark.images.store import ImageStore, load_store
from selfmark.keypoints.first_keypoints import detect_first_keypoints, mix_in_random_points
from selfmark.keypoints.outliers import remove_outliers
from selfmark.keypoints.points_file import read_points_file
from selfmark.model.card import ModelCard, read_card
from selfmark.model.network import Phi, Psi, prepare_network
from selfmark.points import Keypoints, LabeledPoints
from selfmark.run.folder import Run
from selfmark.run.interrupts import defer_interrupts
from selfmark.run.tensor_files import read_tensors
from selfmark.train.checkpoints import load_checkpoint, save_checkpoint
from selfmark.train.engine import Phase, TrainingTask, TrainState, build_train_state, run_phase
from selfmark.train.guards import check_labels, check_points
from selfmark.train.objectives import (
    LandmarkTable,
    build_stage1_task,
    build_stage2_task,
    round_pair_settings,
    warmup_pair_settings,
)
from selfmark.train.pairs import PairSource
from selfmark.train.point_table import PointTable, build_point_table, label_by_index


def train_detector(run: Run, device: torch.device, is_new: bool) -> tuple[Detector, ImageStore]:
    """Run both stages and return the detector and the training images; arguments as in `train_phi`."""
    store, feed, phi, landmarks = train_phi(run, device, is_new)
    table = _landmark_table(landmarks, len(store), run.config.K)
    psi = _stage2(run, phi, feed, table)
    card = _build_card(run, table.mirror.tolist(), len(store))
    return Detector(psi, _keep_edits(run, psi, card), device, run.config.runtime), store


def train_phi(
    run: Run, device: torch.device, is_new: bool
) -> tuple[ImageStore, PixelFeed, Phi, LabeledPoints]:
    """Run Stage 1: from images to the labeled landmarks that Stage 2 learns from.

    Args:
        run: the run folder, locked.
        device: where to compute.
        is_new: whether to remove the run folder if its images turn out to be unusable.

    Returns:
        The training images, the same on the device, Phi, and the landmarks of the last clustering.
    """
    config = run.config
    _, rounds = stage1_phases(config)
    run.log("plan", rounds=len(rounds), stage1=rounds[-1].stop, stage2=config.stage2.iterations)
    try:
        store = _load_images(run)
        with report_out_of_memory(run, "runtime.predict_batch", config.runtime.predict_batch):
            points = run.load_or_compute_keypoints("first", lambda: _first_keypoints(run, store, device))
    except DiskError:
        raise
    except InputError:
        if is_new and run.group.is_leader:
            run.discard()  # Bad input leaves nothing behind.
        raise
    feed = PixelFeed(store.pixels, device, config.runtime.device_fraction)

    phi = _stage1(run, store, feed, points.to(device))

    landmarks = run.load_or_compute_labels("landmarks", device, lambda: _last_clustering(run, phi, feed))
    return store, feed, phi, landmarks


# --- images and first keypoints --------------------------------------------------------------------


def _load_images(run: Run) -> ImageStore:
    config = run.config
    store = load_store(
        run.refs(), config.images, config.runtime.store_gigabytes, run.path, run.progress("reading images")
    )
    for skipped in store.skipped:
        run.log("skipped", name=skipped.name, reason=skipped.reason)
    run.log("images", used=len(store), skipped=len(store.skipped))
    if len(store) < config.images.minimum:
        raise NotEnoughData(
            f"{len(store)} usable images are too few to cluster; at least {config.images.minimum} are needed"
        )
    if config.temporal.enabled and not has_nearby_frames(store.video, store.frame, store.track):
        raise InputError(
            "temporal pairs (temporal.enabled) are made of frames of one video, and none of these images has "
            "another frame of its own: give videos, or a COCO file whose images have video_id and frame_id"
        )
    return store


def _first_keypoints(run: Run, store: ImageStore, device: torch.device) -> Keypoints:
    """Generic keypoints of every image, those without company in the data set removed."""
    config, settings = run.config, run.config.keypoints
    generator = _generator(config, "first keypoints", torch.device("cpu"))
    if settings.detector == "file":
        names = [ref.name for ref in store.refs]
        points = read_points_file(Path(settings.points_file), names, store.regions, config.images.size)
    else:
        found = detect_first_keypoints(
            store.pixels,
            store.bounds,
            settings,
            device,
            config.runtime.predict_batch,
            run.progress("first keypoints"),
        )
        points = remove_outliers(found, settings, _generator(config, "outliers", found.xy.device)).to("cpu")
    if settings.random_fraction > 0:
        points = mix_in_random_points(
            points, settings.random_fraction, len(store), config.images.size, generator
        )
    most = int(points.counts(len(store)).max()) if len(points) else 0
    run.log("keypoints", detector=config.keypoints.detector, points=len(points), most_per_image=most)
    least = config.K or min(config.auto_k.candidates)
    if most < least:
        raise NotEnoughData(
            f"K={least} is more than the {most} points that '{settings.detector}' found in any image: "
            "lower K, or raise keypoints.max_points"
        )
    if len(points) < config.M:
        raise NotEnoughData(
            f"the {len(points)} keypoints of {len(store)} images are too few for M={config.M} clusters: "
            "give more images or lower M"
        )
    if config.warmup.bootstrap == "equivariance":
        points = replace(points, descriptor=None)  # no longer needed, and by far the largest part
    return points


# --- Stage 1 -------------------------------------------------------------------------------------------


def _stage1(run: Run, store: ImageStore, feed: PixelFeed, points: Keypoints) -> Phi:
    """Warm-up, then rounds of correspondence recovery and self-training (Algorithm 1)."""
    config = run.config
    warmup, rounds = stage1_phases(config)
    with _seeded(config, "Phi"):
        phi = Phi(config.network)
    prepare_network(phi, feed.device, config.runtime)
    generator = _generator(config, "stage 1", feed.device)
    state = build_train_state(phi, [(phi, 1.0)], config.optimizer, generator, run.group)
    seed = _seed(config, "stage 1 pairs")
    run.restore_checkpoint("stage1", partial(load_checkpoint, state))

    if state.iteration < warmup.stop:
        table = _tabulate(label_by_index(points, len(store)), store, config, feed.device)
        source = PairSource(table, warmup_pair_settings(config))
        task = build_stage1_task(phi, feed, source, config, generator, seed, run.group)
        _advance(run, "stage1", state, warmup, task)

    for phase in rounds:
        if state.iteration < phase.stop:
            labeled = run.load_or_compute_labels(
                f"round-{phase.round:02d}",
                feed.device,
                lambda number=phase.round: _correspondence(run, phi, feed, points, number),  # type: ignore[misc]
                repeatable=state.iteration == phase.start,
            )
            table = _tabulate(labeled, store, config, feed.device)
            propagated = (
                _propagate_to_nearby_frames(store, table, config, phase.round, feed.device)
                if config.temporal.enabled
                else None
            )
            mirrored = bool((labeled.mirrored_label >= 0).any())
            source = PairSource(table, round_pair_settings(config, mirrored), propagated)
            task = build_stage1_task(phi, feed, source, config, generator, seed, run.group)
            _advance(run, "stage1", state, phase, task)
        # Here, not after training: a run killed between the two has the round's weights in its checkpoint.
        if config.rounds.keep_weights and state.iteration == phase.stop:
            run.write_round_weights(phase.round, phi)
    return phi


def _correspondence(run: Run, phi: Phi, feed: PixelFeed, first: Keypoints, number: int) -> LabeledPoints:
    """Correspondence recovery before round `number`: filter with K, label with M."""
    if number == 1 and run.config.warmup.bootstrap == "detector-descriptors":
        # The earlier method: generic descriptors, no warm-up.
        rows = run.group.shard(len(feed))
        mine = (first.image_index >= rows.start) & (first.image_index < rows.stop)
        described = DescribedPoints(first.select(mine), mirrored=None)
    else:
        described = _described(run, phi, feed, number)
    if run.config.K == 0:
        _settle_landmarks(run, described, feed)
    config = run.config
    labeled = recover_correspondence(
        described,
        config.K,
        config.M,
        config.correspondence,
        _generator(config, f"round {number}", feed.device),
        run.group,
    )
    return _gathered(run, number, described, labeled, len(feed))


def _settle_landmarks(run: Run, described: DescribedPoints, feed: PixelFeed) -> None:
    """Choose K from the first descriptors that Phi has learned; nothing before them depends on it."""
    config = run.config
    some, images = sample_images(described, len(feed), config.auto_k.max_images, feed.device, run.group)

    def compute() -> dict[str, Any]:
        generator = _generator(config, "landmark count", feed.device)
        progress = run.progress("how many landmarks")
        count = count_landmarks(some, images, config.auto_k, config.correspondence, generator, progress)
        return {"why": explain_count(count, config.auto_k), **asdict(count)}

    run.choose_landmark_count(compute)


def _described(run: Run, phi: Phi, feed: PixelFeed, number: int) -> DescribedPoints:
    """Phi's keypoints and descriptors of every image, before round `number`."""
    with report_out_of_memory(run, "runtime.predict_batch", run.config.runtime.predict_batch):
        described = describe_images(phi, feed, run.config, run.progress("applying Phi", number), run.group)
    check_points(described, len(feed), run.config.images.size, run.config.guards, run.group)
    return described


def _gathered(
    run: Run, number: int, described: DescribedPoints, labeled: LabeledPoints, images: int
) -> LabeledPoints:
    """The labels of all processes together, and a line in the log on how the recovery went."""
    found = sum(run.group.gather_counts(len(described.points)))
    kept = gather_labels(labeled, run.group)
    check_labels(kept, run.config.guards)
    if run.config.flip.partner == "itself":
        kept = replace(kept, mirrored_label=kept.label.clone())
    run.log(
        "recovery",
        round=number,
        found_per_image=round(found / images, 2),
        kept_per_image=round(len(kept.points) / images, 2),
        labeled_share=round(float((kept.label >= 0).float().mean()), 4),
    )
    return kept


def _propagate_to_nearby_frames(
    store: ImageStore, table: PointTable, config: Config, number: int, device: torch.device
) -> PropagatedPoints:
    rng = np.random.default_rng(_seed(config, f"nearby frames {number}"))
    center = store.regions[:, :2] + store.regions[:, 2:] / 2
    near = sample_nearby_frames(store.video, store.frame, store.track, center, config.temporal, rng)
    return propagate_points(store.pixels, table.xy, table.valid, near, config.temporal).to(device)


def stage1_phases(config: Config) -> tuple[Phase, list[Phase]]:
    """The warm-up and the rounds, counted in iterations from the start of Stage 1."""
    warmup = config.warmup.iterations if config.warmup.bootstrap == "equivariance" else 0
    length = config.rounds.iterations
    total = warmup + config.rounds.count * length
    drops = tuple(round(share * total) for share in config.rounds.lr_drops)
    starts = [warmup + index * length for index in range(config.rounds.count)]
    rounds = [Phase("round", i + 1, start, start + length, drops) for i, start in enumerate(starts)]
    return Phase("warm-up", 0, 0, warmup, drops), rounds


# --- Stage 2 -------------------------------------------------------------------------------------------


def _last_clustering(run: Run, phi: Phi, feed: PixelFeed) -> LabeledPoints:
    """Populate the training set with K clusters only (Sec. 3.6)."""
    config = run.config
    number = config.rounds.count + 1
    described = _described(run, phi, feed, number)
    generator = _generator(config, "last clustering", feed.device)
    labeled = label_keypoints(described, config.K, config.correspondence, generator, run.group)
    return _gathered(run, number, described, labeled, len(feed))


def _landmark_table(labeled: LabeledPoints, images: int, K: int) -> LandmarkTable:
    """Stage 2's pseudo ground truth: landmark k of image j where cluster k was detected there."""
    chosen = labeled.label >= 0
    image, landmark = labeled.points.image_index[chosen], labeled.label[chosen]
    xy = torch.zeros(images, K, 2, device=image.device)
    present = torch.zeros(images, K, dtype=torch.bool, device=image.device)
    xy[image, landmark] = labeled.points.xy[chosen]
    present[image, landmark] = True
    table = mirror_cooccurrence(labeled.label.cpu().numpy(), labeled.mirrored_label.cpu().numpy(), K)
    return LandmarkTable(
        xy=xy,
        present=present,
        usable=torch.nonzero(present.any(dim=1)).flatten(),
        mirror=torch.tensor(find_mirror_partners(table), device=image.device),
    )


def _stage2(run: Run, phi: Phi, feed: PixelFeed, table: LandmarkTable) -> Psi:
    """Plain heatmap regression from Stage 1's weights, on the landmarks that are there (Sec. 3.6)."""
    config = run.config
    with _seeded(config, "Psi"):
        psi = Psi.from_phi(phi, config.network, config.K)
    prepare_network(psi, feed.device, config.runtime)
    shares = [(psi.backbone, config.stage2.backbone_lr), (psi.head, 1.0)]
    generator = _generator(config, "stage 2", feed.device)
    state = build_train_state(psi, shares, config.optimizer, generator, run.group)
    run.restore_checkpoint("stage2", partial(load_checkpoint, state))
    length = config.stage2.iterations
    drops = tuple(round(share * length) for share in config.stage2.lr_drops)
    phase = Phase("stage 2", 0, 0, length, drops)
    if state.iteration < phase.stop:
        seed = _seed(config, "stage 2 images")
        task = build_stage2_task(psi, feed, table, config, generator, seed, run.group)
        _advance(run, "stage2", state, phase, task)
    return psi


def _build_card(run: Run, mirror: Sequence[int], images: int) -> ModelCard:
    config = run.config
    return ModelCard(
        names=tuple(f"landmark_{index}" for index in range(config.K)),
        mirror=tuple(mirror),
        skeleton=(),
        images=config.images,
        network=config.network,
        refine=config.stage2.refine,
        flip_test=config.flip.test,
        provenance={
            "preset": config.preset,
            "seed": config.seed,
            "M": config.M,
            "keypoints": config.keypoints.detector,
            "images": images,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    )


def _keep_edits(run: Run, psi: Psi, card: ModelCard) -> ModelCard:
    """A run resumed after its end has the same landmarks as before, and keeps what was said of them."""
    if not (run.model_folder / "model.json").exists():
        return card
    before, (weights, _) = read_card(run.model_folder), read_tensors(run.model_folder / "weights.safetensors")
    now = psi.state_dict()
    if weights.keys() != now.keys() or any(not torch.equal(weights[name], now[name].cpu()) for name in now):
        return card
    said = ("names", "mirror", "skeleton", "colors", "hidden", "confirmed")
    return replace(card, **{field: getattr(before, field) for field in said})


# --- shared by both stages ----------------------------------------------------------------------------


def _advance(run: Run, stage: str, state: TrainState, phase: Phase, task: TrainingTask) -> None:
    def on_log(phase: Phase, iteration: int, means: dict[str, float], seconds: float) -> None:
        run.log(
            "train",
            stage=phase.stage,
            round=phase.round,
            iteration=iteration,
            start=phase.start,
            stop=phase.stop,
            seconds=round(seconds, 2),
            loss={name: round(value, 6) for name, value in means.items()},
        )

    config = run.config
    setting, batch = ("runtime.batch", config.runtime.batch)
    if stage == "stage2":
        setting, batch = ("stage2.batch", config.stage2.batch)
    with defer_interrupts() as stop_requested, report_out_of_memory(run, setting, batch):
        run_phase(
            state,
            phase,
            task,
            config.runtime,
            on_log,
            lambda: run.write_checkpoint(stage, state.iteration, partial(save_checkpoint, state)),
            stop_requested,
        )


@contextmanager
def report_out_of_memory(run: Run, setting: str, value: int) -> Iterator[None]:
    """A GPU that is too small ends in a sentence on how to go on from the last checkpoint."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        smaller = (
            f"go on with 'selfmark discover -o {run.path} --resume --set {setting}={value // 2}'"
            if value > 1
            else "take a smaller images.size or another GPU"
        )
        raise TrainingError(
            f"the GPU has too little memory for {setting}={value}; what was reached is kept: {smaller}"
        ) from error


def _tabulate(labeled: LabeledPoints, store: ImageStore, config: Config, device: torch.device) -> PointTable:
    return build_point_table(labeled, len(store), config.correspondence.min_points, device)


def _seed(config: Config, purpose: str) -> int:
    """A seed of its own for each purpose, so that resuming anywhere draws the same numbers."""
    digest = hashlib.sha256(f"{config.seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def _generator(config: Config, purpose: str, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(_seed(config, purpose))


@contextmanager
def _seeded(config: Config, purpose: str) -> Iterator[None]:
    """Initialize weights from a seed of their own, leaving the global random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_seed(config, purpose))
        yield
