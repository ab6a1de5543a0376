"""Provide steps that all discovery methods share: load images, derive seeds, train, build the model card."""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from selfmark.config import Config
from selfmark.correspondence.mirror import LandmarkPartners
from selfmark.errors import DiskError, InputError, NotEnoughData, TrainingError
from selfmark.image_ref import ImageRef
from selfmark.images.decode import compute_earlier_digest
from selfmark.images.feed import PixelFeed
from selfmark.images.flow import has_nearby_frames
from selfmark.images.run_images import compute_content_digests, describe_size_change
from selfmark.images.shared_reading import load_shared_store
from selfmark.images.store import ImageStore
from selfmark.images.survey import describe_survey, survey_images
from selfmark.model.card import ModelCard, read_card
from selfmark.model.feature_network import FeaturePsi
from selfmark.model.heatmaps import heat_centroids
from selfmark.model.landmark_network import LandmarkNetwork, select_stored_weights
from selfmark.model.network import Psi
from selfmark.run.folder import Run
from selfmark.run.interrupts import defer_interrupts
from selfmark.run.tensor_files import read_tensors
from selfmark.train.checkpoints import save_checkpoint
from selfmark.train.engine import Phase, TrainingTask, TrainState, run_phase
from selfmark.train.objectives import LandmarkTable
from selfmark.train.standstill import Standstill
from selfmark.wording import choose_form, describe_count

# Fields of the model card that people edit on the naming page.
_EDITABLE_FIELDS = ("names", "mirror", "skeleton", "colors", "hidden", "confirmed")


Preview = Callable[[str, torch.Tensor, torch.Tensor], None]
"""Called with the name of a finished step, the images [N, 3, S, S] uint8, and their landmarks [N, K, 2] in
network pixels; NaN where a landmark was not found."""


def show_nothing(step: str, pixels: torch.Tensor, xy: torch.Tensor) -> None:
    """Ignore a preview."""


def do_nothing() -> None:
    """Ignore a call."""


def load_training_images(run: Run, is_canceled: Callable[[], bool] = lambda: False) -> ImageStore:
    """Load the images of a run, and log the images that cannot be read.

    Args:
        run: the run.
        is_canceled: called while images are read; returns True if another thread needs them no longer.

    Raises:
        CancelledError: if `is_canceled` returned True.
        InputError: if there are too few images, or if `temporal.enabled` is set but there are no videos.
    """
    config, report_progress = run.config, run.progress("reading images")

    def on_progress(done: int, total: int) -> None:
        if is_canceled():
            raise CancelledError
        report_progress(done, total)

    store = load_shared_store(
        run.refs(), config.images, config.runtime.store_gigabytes, run.path, on_progress
    )
    for skipped in store.skipped:
        run.log("skipped", name=skipped.name, reason=skipped.reason)
    run.log("images", used=len(store), skipped=len(store.skipped))
    if run.group.is_leader:  # The survey reads all images, so the other processes skip it.
        run.log("survey", sentences=describe_survey(survey_images(store)))
    if len(store) < config.images.minimum:
        raise NotEnoughData(
            f"{describe_count(len(store), 'usable image')} {choose_form(len(store), 'is', 'are')} too few to "
            f"cluster; at least {config.images.minimum} are needed"
        )
    if config.temporal.enabled and not has_nearby_frames(store.video, store.frame, store.track):
        raise InputError(
            "temporal.enabled needs several frames of a video, but no two of these images are frames of the "
            "same video: give videos, or a COCO file whose images have video_id and frame_id"
        )
    require_same_images(run, store)
    return store


def require_same_images(run: Run, store: ImageStore) -> None:
    """Raise if a resumed run reads other images than before.

    Stored points refer to images by their row in the store, and to places in these images. When a run starts,
    points/images.safetensors records which images are skipped, and the size and a digest of all others.
    Earlier versions stored `content`, a digest of the ends of each file, and the first ones no digest.

    Args:
        run: the run.
        store: the images that can be read now.

    Raises:
        InputError: if an image has another size or content than before, can no longer be read, or can be
            read only now.
    """
    refs = run.refs()
    rows = _find_rows(refs, store.refs)
    sizes = torch.zeros(len(refs), 2, dtype=torch.int64)  # zeros for images that cannot be read
    sizes[rows] = torch.from_numpy(store.sizes)
    digests = torch.zeros(len(refs), dtype=torch.int64)
    digests[rows] = compute_content_digests(store.refs)
    now = {"size": sizes, "digest": digests}
    before = run.load_or_compute_tensors("images", torch.device("cpu"), lambda: now)
    if "digest" not in before and "content" in before:
        digests[rows] = compute_content_digests(store.refs, compute_earlier_digest)
    size_before = before["size"]
    digests_before = before.get("digest", before.get("content", digests))
    if size_before.shape != sizes.shape or digests_before.shape != digests.shape:
        raise InputError(
            f"{run.path / 'points' / 'images.safetensors'} does not belong to this run: delete it"
        )
    changed = (size_before != sizes).any(dim=1).nonzero()
    if len(changed):
        row = int(changed[0])
        change = describe_size_change(size_before[row].tolist(), sizes[row].tolist())
        raise InputError(f"{refs[row].name} {change}: restore the images of the run, or start a new run")
    is_known = (digests_before != 0) & (digests != 0)
    replaced = (is_known & (digests_before != digests)).nonzero()
    if len(replaced):
        raise InputError(
            f"the content of {refs[int(replaced[0])].path} has changed since the run started: restore the "
            "images of the run, or start a new run"
        )


def _find_rows(refs: Sequence[ImageRef], used: Sequence[ImageRef]) -> list[int]:
    """Return the index of each used image among all images; both are in the same order."""
    rows, start = [], 0
    for ref in used:
        start = refs.index(ref, start) + 1
        rows.append(start - 1)
    return rows


@contextmanager
def discard_if_unusable(run: Run, is_new: bool) -> Iterator[None]:
    """Delete the folder of a new run if the code in the context raises an InputError.

    A DiskError keeps the folder, because the user can free space and resume the run.
    """
    try:
        yield
    except DiskError:
        raise
    except InputError:
        if is_new and run.group.is_leader:
            run.discard()
        raise


def train_phase(
    run: Run,
    stage: str,
    state: TrainState,
    phase: Phase,
    task: TrainingTask,
    batch_setting: tuple[str, int],
    standstill: Standstill | None = None,
) -> None:
    """Run one phase of the training, with log entries, checkpoints and deferred interrupts.

    Args:
        run: the run.
        stage: name of the checkpoints, e.g. `stage1`; log entries contain `phase.stage` instead.
        state: network, optimizer and iteration; the training changes them.
        phase: iterations and learning rate.
        task: loss and batches.
        batch_setting: dotted name and value of the batch size, for the advice if GPU memory is too small.
        standstill: when to skip iterations because the landmarks stand still; None to skip none.
    """

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

    with defer_interrupts() as stop_requested, report_out_of_memory(run, *batch_setting):
        run_phase(
            state,
            phase,
            task,
            run.config.runtime,
            on_log,
            lambda: run.write_checkpoint(stage, state.iteration, partial(save_checkpoint, state)),
            stop_requested,
            standstill,
        )


def hold_out_images(
    run: Run, stage: str, phase: Phase, psi: Psi | FeaturePsi, feed: PixelFeed, table: LandmarkTable
) -> tuple[LandmarkTable, Standstill | None]:
    """Hold out images that show when landmarks stand still, so that a phase can end early.

    Args:
        run: the run.
        stage: name of the checkpoints; it decides which images are held out.
        phase: the phase.
        psi: the network that the phase trains.
        feed: the training images.
        table: labels of the training images.

    Returns:
        The labels without the held-out images, and when to measure the landmarks of the held-out images. If
        `schedule.stop_when_still` is not set or there are too few images, all labels and None.
    """
    settings, length = run.config.schedule, phase.stop - phase.start
    count = min(settings.held_out_images, int(settings.held_out_fraction * len(table.usable)))
    if not settings.stop_when_still or count == 0:
        return table, None
    table, rows = table.hold_out(count, derive_seed(run.config, f"{stage} held-out images"))
    (pixels,) = feed.batches([rows])

    @torch.no_grad()
    def locate() -> torch.Tensor:
        psi.eval()
        maps: torch.Tensor = psi(pixels.float() / 255)
        psi.train()
        return 100 * heat_centroids(maps).cells / maps.shape[-1]

    def on_measured(iteration: int, percent: float, following: int) -> None:
        run.log(
            "movement",
            stage=phase.stage,
            round=phase.round,
            iteration=iteration,
            percent=round(percent, 4),
            following=following,
            skipped=following - iteration,
        )

    interval = max(1, round(settings.measure_every * length))
    standstill = Standstill(
        first=phase.start + max(interval, math.ceil(phase.warmup_fraction * length)),
        interval=interval,
        final_start=phase.final_start(settings.final_fraction),
        limit=settings.still_movement,
        patience=settings.patience,
        locate=locate,
        on_measured=on_measured,
    )
    return table, standstill


@contextmanager
def report_out_of_memory(run: Run, setting: str, value: int) -> Iterator[None]:
    """Convert a GPU out-of-memory error to a TrainingError that advises a smaller batch.

    Args:
        run: the run.
        setting: dotted name of the setting for the batch size that is used in the context.
        value: value of this setting.

    Raises:
        TrainingError: if the GPU runs out of memory in the context.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        advice = (
            f"resume with 'selfmark discover -o {run.path} --resume --set {setting}={value // 2}'"
            if value > 1
            else "resume it on another GPU, or start a new run with a smaller images.size"
        )
        raise TrainingError(
            f"the GPU has too little memory for {setting}={value}; the run is saved: {advice}"
        ) from error


def build_card(run: Run, partners: LandmarkPartners, num_images: int) -> ModelCard:
    """Build the model card of a run's detector.

    Args:
        run: the run.
        partners: mirror partners of the landmarks.
        num_images: number of training images.
    """
    config, start = run.config, run.start_from()
    return ModelCard(
        names=tuple(f"landmark_{index}" for index in range(config.K)),
        mirror=partners.mirror,
        unpaired=partners.unpaired,
        trained_mirror=partners.mirror,
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
            "images": num_images,
            "torch": torch.__version__,
            "python": platform.python_version(),
            **({} if start is None else {"start_from": start}),
        },
    )


def keep_edits(run: Run, psi: LandmarkNetwork, card: ModelCard) -> ModelCard:
    """Copy the user's edits (names, colors, ...) from the saved card if the saved weights equal those of psi.

    Returns:
        The card with the edits; the card itself if no detector with these weights was saved.
    """
    if not (run.model_folder / "model.json").exists():
        return card
    saved = read_card(run.model_folder)
    saved_weights, _ = read_tensors(run.model_folder / "weights.safetensors")
    weights = select_stored_weights(psi)
    if saved_weights.keys() != weights.keys():
        return card
    if any(not torch.equal(saved_weights[name], weights[name].cpu()) for name in weights):
        return card
    return replace(card, **{field: getattr(saved, field) for field in _EDITABLE_FIELDS})


def derive_seed(config: Config, purpose: str) -> int:
    """Derive the seed for a purpose from the run's seed, so that a resumed run draws the same numbers."""
    digest = hashlib.sha256(f"{config.seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:7], "big")  # 7 bytes fit into the signed 64-bit seed of torch


def create_generator(config: Config, purpose: str, device: torch.device) -> torch.Generator:
    """Return a random generator on a device, seeded for a purpose by `derive_seed`."""
    return torch.Generator(device).manual_seed(derive_seed(config, purpose))


@contextmanager
def seed_weights(config: Config, purpose: str) -> Iterator[None]:
    """Seed torch's global CPU generator inside the context: layers draw their first weights from it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(config, purpose))
        yield
