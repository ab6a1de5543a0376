"""Implement `selfmark refine`: train a detector with corrected landmarks, and save it if its error is lower.

The errors are measured on images that are left out in turn. With only one labeled image, no error can be
measured, and the refined detector is always saved. The refined detector replaces the detector in the model
folder MODEL. The original detector is kept beside it, in the folder MODEL-original. Every refinement starts
from the original detector.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from selfmark.annotations import AnnotatedObjects
from selfmark.config import Config, Refinement, override
from selfmark.detector import Detector
from selfmark.errors import DiskError, InputError, describe_os_error
from selfmark.evaluation.annotated_refs import list_labeled_images
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.nme import nan_mean
from selfmark.image_ref import ImageRef
from selfmark.images.crop import to_network
from selfmark.images.run_images import load_run_images
from selfmark.images.sources import list_images
from selfmark.images.store import ImageStore, load_store
from selfmark.model.card import (
    REFINED,
    is_packaged,
    landmarks_without_partner,
    model_folder,
    read_card,
    serialize_card,
    write_card,
)
from selfmark.model.landmark_network import select_stored_weights
from selfmark.points import FloatArray
from selfmark.refinement.head_training import (
    HeadExamples,
    LabeledPixels,
    SplitNetwork,
    describe_views,
    leave_out,
    measure_bytes_per_view,
    split_network,
    train_head,
)
from selfmark.run.devices import select_device
from selfmark.run.files import atomic_folder, atomic_open, whole_run
from selfmark.run.folder import Run
from selfmark.run.guarded_files import (
    compute_sha256,
    copy_file,
    remove_empty_folder,
    remove_file,
    remove_folder,
)
from selfmark.run.locks import exclusive
from selfmark.run.tensor_files import write_tensors
from selfmark.sampling import evenly_spaced
from selfmark.wording import choose_form, describe_count

_MIN_MOVE = 0.5  # network pixels; if a label is farther from the detector's landmark, the user moved it

Progress = Callable[[str], None]


@dataclass(frozen=True)
class RefinementErrors:
    """Mean distances of landmarks from their corrected places, in percent of the side of the network image.

    The errors after the refinement are measured by leave-one-out: the tested images are never among the
    images that the detector was refined with.

    Attributes:
        moved: number of labels that the user moved away from the landmark of the original detector.
        moved_before: mean error of the original detector on these labels.
        moved_after: mean error of the refined detector on these labels.
        confirmed: number of labels that the user left where the original detector found the landmark.
        confirmed_after: mean error of the refined detector on these labels; the error of the original
            detector on them counts as 0.
        landmarks: [K, 2] mean error of each landmark before and after; NaN for landmarks without labels.
    """

    moved: int
    moved_before: float
    moved_after: float
    confirmed: int
    confirmed_after: float
    landmarks: FloatArray

    @property
    def mean_before(self) -> float:
        """Mean error over all labels before the refinement."""
        return self.moved * self.moved_before / (self.moved + self.confirmed)

    @property
    def mean_after(self) -> float:
        """Mean error over all labels after the refinement."""
        total = 0.0
        if self.moved:
            total += self.moved * self.moved_after
        if self.confirmed:
            total += self.confirmed * self.confirmed_after
        return float(total / (self.moved + self.confirmed))


@dataclass(frozen=True)
class RefinementResult:
    """Result of `refine_run`.

    Attributes:
        names: names of the K landmarks.
        images: number of labeled images.
        points: number of labels in these images.
        errors: leave-one-out errors; None if there is only one image.
        is_saved: whether the refined detector was saved in the model folder.
        original: folder of the original detector.
        notes: messages for the user.
    """

    names: tuple[str, ...]
    images: int
    points: int
    errors: RefinementErrors | None
    is_saved: bool
    original: Path
    notes: tuple[str, ...]


def refine_run(
    folder: Path,
    labels: Path,
    images: Sequence[str] = (),
    device: str = "auto",
    force: bool = False,
    settings: Mapping[str, Any] | None = None,
    on_progress: Progress = lambda text: None,
) -> RefinementResult:
    """Train the head of a detector with corrected landmarks, and save the detector if its error is lower.

    With only one labeled image, the error cannot be measured, and the detector is always saved.

    Args:
        folder: run folder or model folder.
        labels: file with the corrected places of landmarks, under the names of the landmarks: COCO keypoints,
            a DeepLabCut table or a Label Studio export.
        images: the labeled images; if empty, the images that a COCO file names.
        device: `auto`, `cpu`, `cuda`, ...
        force: save the refined detector even if its error is not lower.
        settings: mapping from dotted names to values, for settings that differ from those of the run, e.g.
            `{"refinement.folds": 10}`.
        on_progress: called with a description of each step.

    Raises:
        InputError: if there are no usable labels, or the detector cannot be refined.
    """
    if is_packaged(folder):
        raise InputError(
            "the demo model inside selfmark cannot be refined: save it to a folder of your own first"
        )
    target = model_folder(folder)
    with _lock_run(target):
        return _refine(folder, target, labels, images, device, force, settings or {}, on_progress)


def _refine(
    folder: Path,
    target: Path,
    labels: Path,
    images: Sequence[str],
    device: str,
    force: bool,
    settings: Mapping[str, Any],
    on_progress: Progress,
) -> RefinementResult:
    """Do the work of `refine_run`; `target` is the model folder, whose run is locked."""
    start = _find_start(target)
    digest = compute_sha256(start / "weights.safetensors")
    detector = Detector.load(start, select_device(device))
    # The user may have edited the card in the model folder, so it is newer than the original detector's card.
    card = read_card(target)
    detector = Detector(
        detector.psi,
        replace(detector.card, mirror=card.mirror, confirmed=card.confirmed),
        detector.device,
        detector.runtime,
    )
    network = split_network(detector.psi)
    _require_free_original(target)
    config = Run.open(folder).config if (folder / "run.json").exists() else Config()
    config = override(config, settings)
    image_notes: list[str] = []
    refs = list_images(images, on_note=image_notes.append) if images else list_labeled_images(labels, folder)
    truth = read_ground_truth(labels, refs)
    truth = _order_points(truth, card.names)
    on_progress("reading images")
    # The images fit into memory: people have labeled them, so there are few.
    store = load_store(truth.refs, detector.card.images, float("inf"), None)
    readable = set(store.refs)
    truth = truth.select([row for row, ref in enumerate(truth.refs) if ref in readable])
    labeled = LabeledPixels(
        store.pixels,
        torch.from_numpy(
            to_network(np.nan_to_num(truth.xy), store.regions[:, None], detector.card.images.size)
        ).float(),
        torch.from_numpy(truth.visible),
    )
    kept = _load_kept_images(folder, truth.refs, config, detector)
    trainer = _Trainer(detector, network, config, labeled, kept)
    groups = _group_by_image(truth.refs)
    num_images, num_labels = int(groups.max()) + 1, int(truth.visible.sum())
    errors = _leave_one_out(trainer, groups, on_progress) if num_images > 1 else None
    notes = [*image_notes, *_collect_notes(truth, store, errors)]
    is_saved = force or errors is None or errors.mean_after < errors.mean_before
    if is_saved:
        on_progress("training on all images")
        head = trainer.train(())
        network.head.load_state_dict(head.state_dict())
        _save(detector, target, labels, errors, num_images, num_labels, digest)
        notes += _list_outdated_files(folder, target)
    return RefinementResult(
        card.names,
        num_images,
        num_labels,
        errors,
        is_saved,
        original_folder(target),
        tuple(notes),
    )


def _order_points(truth: AnnotatedObjects, names: Sequence[str]) -> AnnotatedObjects:
    """Return the labels with one point for each of the K landmarks, in the order of the landmarks.

    Objects without any labeled landmark are left out. A note lists labeled points that are not landmarks.

    Raises:
        InputError: if the file has no label of any landmark.
    """
    known = [name for name in truth.names if name in names]
    if not known:
        raise InputError(
            f"no point of {truth.source} has the name of a landmark: its first point is '{truth.names[0]}', "
            f"and the first landmark is '{names[0]}'. Correct landmarks with 'selfmark correct', or learn "
            "your own points with 'selfmark map'"
        )
    xy = np.full((len(truth), len(names), 2), np.nan)
    hidden = np.zeros((len(truth), len(names)), dtype=bool)
    for column, name in enumerate(truth.names):
        if name in names:
            xy[:, names.index(name)] = truth.xy[:, column]
            hidden[:, names.index(name)] = truth.hidden[:, column]
    notes = (*truth.notes, *_note_unknown_points(truth, names))
    ordered_truth = replace(truth, names=tuple(names), xy=xy, hidden=hidden, mirror=(), notes=notes)
    rows = np.flatnonzero(ordered_truth.visible.any(axis=1)).tolist()
    if not rows:
        raise InputError(f"{truth.source} labels no landmark of this detector: correct some points first")
    return ordered_truth.select(rows)


def _note_unknown_points(truth: AnnotatedObjects, names: Sequence[str]) -> tuple[str, ...]:
    """Return a note about labeled points that no landmark has the name of; empty if there are none."""
    labeled = np.flatnonzero(truth.visible.any(axis=0)).tolist()
    unknown_names = [truth.names[column] for column in labeled if truth.names[column] not in names]
    if not unknown_names:
        return ()
    count = len(unknown_names)
    return (
        f"{truth.source}: {describe_count(count, 'point')} {choose_form(count, 'was', 'were')} left out, "
        f"because no landmark has the name: {', '.join(unknown_names)}. If you renamed landmarks since, "
        "rename the points in this file, too",
    )


def _group_by_image(refs: Sequence[ImageRef]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Number the images, and return the number of each object's image."""
    number = {image: index for index, image in enumerate(dict.fromkeys((r.path, r.frame) for r in refs))}
    return np.array([number[ref.path, ref.frame] for ref in refs], dtype=np.int64)


def _load_kept_images(
    folder: Path, labeled: Sequence[ImageRef], config: Config, detector: Detector
) -> ImageStore | None:
    """Load unlabeled images of the run, on which heatmaps should not change; None if all are labeled."""
    if not (folder / "run.json").exists():
        return None
    known = {(ref.path.resolve(), ref.frame) for ref in labeled}
    other_refs = [ref for ref in Run.open(folder).refs() if (ref.path.resolve(), ref.frame) not in known]
    other_refs = [ref for ref in other_refs if ref.path.exists()]
    chosen = [other_refs[row] for row in evenly_spaced(len(other_refs), config.refinement.kept_images)]
    if not chosen:
        return None
    return load_run_images(Run.open(folder), chosen, detector.card.images)


# --- training ----------------------------------------------------------------------------------------


class _Trainer:
    """Trains heads on all corrected images, or on all but some of them."""

    def __init__(
        self,
        detector: Detector,
        network: SplitNetwork,
        config: Config,
        labeled: LabeledPixels,
        kept: ImageStore | None,
    ) -> None:
        self.detector, self.network, self.labeled = detector, network, labeled
        self.settings: Refinement = config.refinement
        card = detector.card
        self.sigma = config.stage2.sigma if card.architecture == "hourglass" else card.student.sigma
        can_mirror = config.flip.train and not landmarks_without_partner(card)
        mirror = card.mirror if can_mirror else None
        generator = torch.Generator(detector.device).manual_seed(config.seed)
        size = card.images.size
        limit = int(
            self.settings.max_gigabytes * 1e9 / measure_bytes_per_view(network, size, detector.device)
        )
        views = max(1, min(self.settings.views, limit // (2 * len(labeled.pixels))))
        self.corrected = describe_views(network, labeled, views, config.augment, mirror, generator)
        self.kept: HeadExamples | None = None
        if kept is not None and len(kept):
            no_labels = LabeledPixels(
                kept.pixels,
                torch.zeros(len(kept), len(card.names), 2),
                torch.zeros(len(kept), len(card.names), dtype=torch.bool),
            )
            views = max(1, min(self.settings.kept_views, limit // (2 * len(kept))))
            self.kept = describe_views(network, no_labels, views, config.augment, mirror, generator)
        self.seed = config.seed

    def train(self, left_out: Sequence[int]) -> nn.Module:
        """Train a head on all corrected objects except for these rows."""
        examples = leave_out(self.corrected, torch.tensor(list(left_out), dtype=torch.int64))
        generator = torch.Generator(self.detector.device).manual_seed(self.seed + 1)
        return train_head(self.network, examples, self.kept, self.settings, self.sigma, generator)

    def measure_distances(self, rows: Sequence[int], head: nn.Module) -> FloatArray:
        """Measure the distances between labels and the landmarks that the detector finds with a head.

        Args:
            rows: R objects.
            head: the head.

        Returns:
            [R, K] distances in percent of the image's side; NaN for landmarks without a label.
        """
        before = {name: value.clone() for name, value in self.network.head.state_dict().items()}
        self.network.head.load_state_dict(head.state_dict())
        try:
            found = self.detector.locate(self.labeled.pixels[list(rows)]).xy.cpu().double().numpy()
        finally:
            self.network.head.load_state_dict(before)
        offset = found - self.labeled.xy[list(rows)].double().numpy()
        distance = np.hypot(offset[..., 0], offset[..., 1]) * (100 / self.labeled.pixels.shape[-1])
        return np.where(self.labeled.present[list(rows)].numpy(), distance, np.nan)


def _leave_one_out(
    trainer: _Trainer, groups: np.ndarray[tuple[int], np.dtype[np.int64]], on_progress: Progress
) -> RefinementErrors:
    """Measure errors before and after training, with each image left out in turn.

    If there are more images than `refinement.folds`, the images are divided into this many folds, and each
    fold is left out in turn.

    Args:
        trainer: trains heads.
        groups: number of each object's image. All objects of an image are left out together.
        on_progress: called with a description of each step.
    """
    folds = min(int(groups.max()) + 1, trainer.settings.folds)
    before = trainer.measure_distances(range(len(groups)), trainer.network.head)
    after = np.full_like(before, np.nan)
    for fold in range(folds):
        on_progress(f"measuring the error: images left out, {fold + 1} of {folds}")
        rows = np.flatnonzero(groups % folds == fold).tolist()
        after[rows] = trainer.measure_distances(rows, trainer.train(rows))
    is_labeled = np.isfinite(before)
    is_moved = is_labeled & (before > 100 * _MIN_MOVE / trainer.labeled.pixels.shape[-1])
    is_confirmed = is_labeled & ~is_moved

    def mean(values: FloatArray, chosen: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> float:
        return float(values[chosen].mean()) if chosen.any() else 0.0

    return RefinementErrors(
        moved=int(is_moved.sum()),
        moved_before=mean(before, is_moved),
        moved_after=mean(after, is_moved),
        confirmed=int(is_confirmed.sum()),
        confirmed_after=mean(after, is_confirmed),
        landmarks=np.stack([nan_mean(before, axis=0), nan_mean(after, axis=0)], axis=1),
    )


# --- files -------------------------------------------------------------------------------------------


def original_folder(target: Path) -> Path:
    """Return the folder that keeps the original detector of a refined model folder."""
    return target.with_name(f"{target.name}-original")


def is_refined(target: Path) -> bool:
    """Return True if the detector of a model folder was refined and its original is kept."""
    return REFINED in read_card(target).provenance and (original_folder(target) / "model.json").exists()


def _require_free_original(target: Path) -> None:
    """Raise if the original detector would replace a folder that `refine` did not write.

    A folder of `refine` is left over if a refined run was trained again, or if the process was killed.
    """
    folder = original_folder(target)
    if os.path.lexists(folder) and not is_refined(target) and not _is_left_over(folder, target):
        raise InputError(
            f"the original detector would replace {folder}, which 'selfmark refine' did not write: move it "
            "elsewhere or rename it"
        )


def _is_left_over(folder: Path, target: Path) -> bool:
    """Return True if a folder has only files of a detector, and they are a copy or belong to the same run."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    weights = [path for path in folder.iterdir() if path.name != "model.json"]
    if any(path.suffix != ".safetensors" for path in weights):
        return False
    return target.with_name("run.json").exists() or all(
        (target / path.name).exists() and compute_sha256(path) == compute_sha256(target / path.name)
        for path in weights
    )


def _find_start(target: Path) -> Path:
    """Return the folder of the detector that a refinement starts from."""
    return original_folder(target) if is_refined(target) else target


@contextmanager
def _lock_run(target: Path) -> Iterator[None]:
    """Lock the run that a model folder belongs to, if any, so that `discover` does not resume it meanwhile.

    Raises:
        FolderLocked: if another process is working on the run.
    """
    with ExitStack() as lock:
        if target.with_name("run.json").exists():
            with _report_disk_errors(target):
                lock.enter_context(exclusive(target.parent))
        yield


def _save(
    detector: Detector,
    target: Path,
    labels: Path,
    errors: RefinementErrors | None,
    images: int,
    points: int,
    digest: str,
) -> None:
    """Keep a copy of the original detector, then write the refined detector with the current names.

    When both files are on the disk under temporary names, the card is renamed, then the weights. So if the
    disk is full, the original detector stays unchanged. If the process is killed after the first
    renaming, the detector counts as refined, so the copy of the original is kept.

    Raises:
        InputError: if the weights that the refinement started from do not have this digest any more.
    """
    record = {
        "labels": str(labels),
        "images": images,
        "points": points,
        "original": original_folder(target).name,
        "error_before": None if errors is None else round(errors.mean_before, 3),
        "error_after": None if errors is None else round(errors.mean_after, 3),
    }
    # The user may edit names at the same time, and another process may refine the same detector.
    with _report_disk_errors(target), exclusive(target, wait=True, lock_file=False):
        if compute_sha256(_find_start(target) / "weights.safetensors") != digest:
            raise InputError(
                f"another detector was put into {target} while this one was refined: nothing was saved, so "
                "run the command again"
            )
        if not is_refined(target):
            _require_free_original(target)
            remove_folder(original_folder(target))
            with atomic_folder(original_folder(target)) as temporary:
                for path in target.glob("*.safetensors"):
                    copy_file(path, temporary / path.name)
                copy_file(target / "model.json", temporary / "model.json")
        card = read_card(target)
        card = replace(card, provenance={**card.provenance, REFINED: record})
        try:
            _write_weights(detector, target, verify=lambda _: write_card(card, target))
        except OSError:
            if not is_refined(target):  # The card was not written, so the weights are still the original.
                remove_folder(original_folder(target))
            raise


@contextmanager
def _report_disk_errors(target: Path) -> Iterator[None]:
    """Raise errors of the disk as `DiskError`, with the folder that cannot be written."""
    try:
        yield
    except OSError as error:
        raise DiskError(f"cannot write to {target.parent}: {describe_os_error(error)}") from error


def _write_weights(detector: Detector, target: Path, verify: Callable[[Path], None] | None = None) -> None:
    """Write the weights to the model folder.

    If the features come from an ONNX model (`onnx:FILE`), its file stays, because a refinement changes only
    the head.
    """
    weights = select_stored_weights(detector.psi)
    write_tensors(weights, {}, target / "weights.safetensors", verify=verify)


def restore_original(folder: Path) -> Path:
    """Restore the original detector, but keep the current names; return the model folder.

    When both files are on the disk, the weights are renamed, then the card. Until the card is renamed, the
    detector counts as refined, and its original is kept.

    Raises:
        InputError: if the detector was not refined, or the folder cannot be written.
    """
    target = model_folder(folder)
    with _lock_run(target), _report_disk_errors(target), exclusive(target, wait=True, lock_file=False):
        if not is_refined(target):
            raise InputError(f"the detector of {folder} was not refined, so there is nothing to undo")
        original = original_folder(target)
        detector = Detector.load(original)
        card = read_card(target)
        provenance = {name: value for name, value in card.provenance.items() if name != REFINED}
        content = serialize_card(replace(card, provenance=provenance))
        with atomic_open(target / "model.json", verify=lambda _: _write_weights(detector, target)) as handle:
            handle.write(content)
        # The user may have put other files into the folder. The card goes first: weights alone are left over.
        for path in (original / "model.json", *original.glob("*.safetensors")):
            remove_file(path)
        remove_empty_folder(original)
    return target


def _collect_notes(truth: AnnotatedObjects, store: ImageStore, errors: RefinementErrors | None) -> list[str]:
    """Return notes for the user about labels and errors."""
    notes = list(truth.notes)
    if store.skipped:
        first = store.skipped[0]
        notes.append(
            f"{describe_count(len(store.skipped), 'labeled image')} could not be read; the first is "
            f"{first.name}: {first.reason}"
        )
    if errors is None:
        notes.append("with one labeled image, no image can be left out to measure the error")
    elif errors.moved == 0:
        notes.append("no landmark was moved, so the detector only learns where landmarks should stay")
    return notes


def _list_outdated_files(folder: Path, target: Path) -> list[str]:
    """Return a note for each file that the refinement has made outdated, with the command that renews it."""
    commands = {
        target / "model.onnx": f"selfmark export {folder} --onnx",
        target / "model-int8.onnx": f"selfmark export {folder} --onnx --int8",
        target / "map.json": f"selfmark map {folder} --labels FILE",
        folder / "metrics.json": f"selfmark evaluate {whole_run(folder)} IMAGES",
    }
    return [
        f"{path.name} is outdated; redo it with: {command}"
        for path, command in commands.items()
        if path.exists()
    ]
