"""Implement the authors' earlier method: Stage 2 merges clusters, and those that remain are landmarks.

Mallis, Sanchez, Bell and Tzimiropoulos: Unsupervised learning of object landmarks via self-training
correspondence (NeurIPS 2020). Stage 1 is the one in `pipeline`, with the settings from `settings_of_method`.
Phi is the network of Stage 1, and Psi is the network of Stage 2. The steps are:

    no warm-up: the first clusters come from the descriptors of the first keypoints
    rounds:     group keypoints into M clusters (Hungarian assignment), remove points far from their centroid,
                and train Phi
    Stage 2:    train Psi with one heatmap per cluster, and merge clusters predicted at the same place
    detector:   keep the heatmaps of the largest remaining clusters, at most K
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from selfmark.config import Config
from selfmark.correspondence.merging import (
    PlaceCounts,
    cluster_sizes,
    count_places,
    find_largest_clusters,
    find_leaders,
    keep_clusters,
    merge_clusters,
)
from selfmark.detector import Detector
from selfmark.errors import CollapsedTraining
from selfmark.images.feed import PixelFeed
from selfmark.images.store import ImageStore
from selfmark.model.heatmaps import find_maxima
from selfmark.model.network import Phi, Psi, prepare_network
from selfmark.pipeline import (
    build_landmark_table,
    plan_stage2_phase,
    prepare_images,
    recover_round,
    run_stage1,
    start_psi,
    train_on_landmarks,
)
from selfmark.pipeline_steps import build_card, keep_edits, report_out_of_memory
from selfmark.points import LabeledPoints
from selfmark.run.folder import Run
from selfmark.train.engine import Phase


def train_with_merging(run: Run, device: torch.device, is_new: bool) -> tuple[Detector, ImageStore]:
    """Run the method from the images to a detector.

    Args:
        run: the run folder, locked.
        device: device to compute on.
        is_new: whether the run was just created. The folder of a new run is deleted if its images are
            unusable.
    """
    store, feed, points = prepare_images(run, device, is_new)
    phi = run_stage1(run, store, feed, points)
    last = run.config.rounds.count + 1

    def find_clusters() -> LabeledPoints:
        return _drop_rare_clusters(run, recover_round(run, phi, feed, points, last), len(feed))

    clusters = run.load_or_compute_labels("clusters", device, find_clusters)
    psi, merged = _train_and_merge(run, phi, feed, clusters)
    kept = find_largest_clusters(merged, run.config.K)
    landmarks = run.load_or_compute_labels("landmarks", device, lambda: keep_clusters(merged, kept))
    run.choose_landmark_count(lambda: _describe_count(run, clusters, merged, len(kept)))
    _, partners = build_landmark_table(landmarks, len(store))
    detector_psi = keep_maps(psi, run.config, torch.from_numpy(kept).to(device))
    prepare_network(detector_psi, device, run.config.runtime)
    card = build_card(run, partners, len(store))
    card.provenance.update(method=run.config.method)
    return Detector(detector_psi, keep_edits(run, detector_psi, card), device, run.config.runtime), store


def merge_phases(config: Config) -> list[Phase]:
    """Return the phases of Stage 2; clusters are merged between phases.

    >>> from selfmark.config import Config, Mallis2020
    >>> [phase.stop for phase in merge_phases(Config(mallis2020=Mallis2020(first_merge=0.5, merges=2)))]
    [100000, 150000, 200000]
    """
    settings, length = config.mallis2020, config.stage2.iterations
    step = (1 - settings.first_merge) / max(settings.merges, 1)
    fractions = [settings.first_merge + index * step for index in range(settings.merges)]
    inner = {round(fraction * length) for fraction in fractions} - {0, length}
    edges = [0, *sorted(inner), length]
    return [
        plan_stage2_phase(config, index, start, stop)
        for index, (start, stop) in enumerate(pairwise(edges), start=1)
    ]


def keep_maps(psi: Psi, config: Config, maps: torch.Tensor) -> Psi:
    """Return a copy of the network that computes only the maps with the indices `maps` [K]."""
    kept = Psi(config.network, len(maps))
    weights = psi.state_dict()
    for name in ("head.last.weight", "head.last.bias"):
        weights[name] = weights[name][maps]
    kept.load_state_dict(weights)
    return kept


def _drop_rare_clusters(run: Run, labeled: LabeledPoints, num_images: int) -> LabeledPoints:
    """Remove the points of clusters that are found in too few images to be learned.

    Raises:
        CollapsedTraining: if no points remain.
    """
    sizes = cluster_sizes(labeled)
    minimum = max(run.config.mallis2020.min_found * num_images, 1)
    is_rare = torch.from_numpy(sizes < minimum).to(labeled.label.device)
    kept = labeled.select(~is_rare[labeled.label])
    if len(kept.points) == 0:
        raise CollapsedTraining(
            f"no cluster is found in {math.ceil(minimum)} images or more. Lower mallis2020.min_found or M, "
            "or add images"
        )
    return kept


def _train_and_merge(
    run: Run, phi: Phi, feed: PixelFeed, clusters: LabeledPoints
) -> tuple[Psi, LabeledPoints]:
    """Train Psi with one heatmap per cluster, and merge clusters between the phases.

    The network keeps all M maps. The maps of merged clusters have no points and are no longer trained.
    """
    psi, state = start_psi(run, phi, clusters.clusters)
    labeled = clusters
    for phase in merge_phases(run.config):
        if phase.round > 1:
            labeled = run.load_or_compute_labels(
                f"merge-{phase.round - 1:02d}",
                feed.device,
                partial(_merge, run, psi, feed, labeled, phase.start),
                repeatable=state.iteration == phase.start,
            )
        table, _ = build_landmark_table(labeled, len(feed))
        train_on_landmarks(run, psi, state, phase, feed, table)
    return psi, labeled


def _merge(run: Run, psi: Psi, feed: PixelFeed, labeled: LabeledPoints, iteration: int) -> LabeledPoints:
    """Merge the clusters that the network predicts at the same place."""
    sizes = cluster_sizes(labeled)
    counts = _predict_places(run, psi, feed)
    merged = merge_clusters(labeled, find_leaders(counts, sizes, run.config.mallis2020.overlap))
    new_sizes = cluster_sizes(merged)
    run.log("merge", iteration=iteration, before=int((sizes > 0).sum()), after=int((new_sizes > 0).sum()))
    return merged


@torch.no_grad()
def _predict_places(run: Run, psi: Psi, feed: PixelFeed) -> PlaceCounts:
    """Count the images in which each cluster, and each pair of clusters at the same place, is predicted.

    Only confident predictions count: those with a score of at least `mallis2020.min_confidence`.
    """
    settings, batch = run.config.mallis2020, run.config.runtime.predict_batch
    psi.eval()
    num_maps = psi.head.last.out_channels
    confident = torch.zeros(num_maps, dtype=torch.int64, device=feed.device)
    together = torch.zeros(num_maps, num_maps, dtype=torch.int64, device=feed.device)
    with report_out_of_memory(run, "runtime.predict_batch", batch):
        for pixels in feed.sequential_batches(batch, run.group.shard(len(feed))):
            peaks = find_maxima(psi(pixels.float() / 255), "cell")
            counts = count_places(
                peaks.cells, peaks.score >= settings.min_confidence, settings.merge_distance
            )
            confident += counts[0]
            together += counts[1]
    run.group.all_sum(confident)
    run.group.all_sum(together)
    return PlaceCounts(confident.cpu().numpy(), together.cpu().numpy())


def _describe_count(run: Run, clusters: LabeledPoints, merged: LabeledPoints, kept: int) -> dict[str, Any]:
    """Return the content of landmark_count.json."""
    before, after = (int((cluster_sizes(labeled) > 0).sum()) for labeled in (clusters, merged))
    reason = f"{before} clusters of keypoints were merged into {after}"
    reason += f"; the {kept} largest ones are the landmarks" if kept < after else " landmarks"
    return {"why": reason, "K": kept}
