"""Measure how well `-k auto` chooses the number of landmarks K. Results: docs/results/auto_k.json.

    python benchmarks/auto_k.py mixtures --out mixtures.json
    python benchmarks/auto_k.py toy RUN --out toy.json
    python benchmarks/auto_k.py sweep DATA --folder runs/ --out sweep.json
    python benchmarks/auto_k.py speed --out speed.json

- `mixtures` chooses K for random descriptors around a known number of centers, with clutter.
- `toy` chooses K for the 20 true points of the toy animal. RUN is the run folder of `selfmark demo`, whose
  Stage 1 network describes these points.
- `sweep` runs a short warm-up on an unzipped data set (images/train, images/test, train.json, test.json) and
  chooses K. It then clusters the same descriptors with each candidate K and measures the forward and backward
  errors of the clusters, as `selfmark evaluate` does for Stage 1 (missing clusters are completed). `--folder`
  is the run folder.
- `speed` measures how long choosing K takes for the descriptors of 2,000 images.

Phi is the network that finds and describes keypoints (Stage 1).
"""

from __future__ import annotations

import argparse
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import normalize

from selfmark.annotations import AnnotatedObjects
from selfmark.config import AutoK, Config, preset
from selfmark.correspondence.assignment import assign_clusters
from selfmark.correspondence.describe import describe_images
from selfmark.correspondence.landmark_count import LandmarkCount, count_landmarks, find_plateau, sample_images
from selfmark.correspondence.recovery import DescribedPoints, fit_centroids
from selfmark.demo.demo_run import SIZE, TRAIN_IMAGES, TRAIN_SEED
from selfmark.demo.scene import generate_scene
from selfmark.demo.shape import NAMES
from selfmark.discovery import discover
from selfmark.evaluation.completion import fill_with_mean, mean_landmarks
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.labeled_run import build_examples
from selfmark.evaluation.normalizers import choose_normalizer
from selfmark.evaluation.protocol import Examples, mean_shape_errors, stage1_errors
from selfmark.evaluation.stage1_landmarks import Stage1
from selfmark.images.feed import PixelFeed
from selfmark.images.sources import list_images
from selfmark.images.store import load_store
from selfmark.model.heatmaps import to_cells
from selfmark.model.network import Phi, prepare_network
from selfmark.points import FloatArray, Keypoints
from selfmark.run.devices import select_device
from selfmark.run.files import write_json
from selfmark.run.folder import Event, Run
from selfmark.run.processes import SINGLE_PROCESS
from selfmark.run.tensor_files import read_tensors

MIXTURES = (
    {"K": 8, "spread": 1.0, "clutter": 10},
    {"K": 16, "spread": 1.0, "clutter": 4},
    {"K": 16, "spread": 1.0, "clutter": 10},
    {"K": 24, "spread": 1.5, "clutter": 8},
    {"K": 0, "spread": 1.0, "clutter": 16},
)
SWEEP: dict[str, Any] = {  # the preset tiny with smaller images, so that two CPU cores need only minutes
    "K": 0,  # choose K from the images
    "M": 48,
    "images.size": SIZE,
    "network.depth": 3,
    "heatmaps.nms_radius": 1,
    "loss.negative_distance": 2.5,
    "warmup.iterations": 270,
    "rounds.count": 2,
    "rounds.iterations": 150,
    "stage2.iterations": 250,
    "evaluation.num_samples": 80,
}


def main() -> None:
    """Run one part of the benchmark and write its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("mixtures", "toy", "sweep", "speed"))
    parser.add_argument("input", type=Path, nargs="?", help="run folder for toy, data set for sweep")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folder", type=Path, help="run folder of the sweep; resumed if it exists")
    parser.add_argument(
        "--max-images", type=int, default=400, help="maximum number of training and of test images in a sweep"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    device = select_device(arguments.device)
    result = {
        "mixtures": lambda: choose_for_mixtures(arguments.seeds, device),
        "toy": lambda: choose_for_toy(arguments.input, arguments.seeds, device),
        "sweep": lambda: sweep(arguments.input, arguments.folder, arguments.max_images, device),
        "speed": lambda: measure_speed(device),
    }[arguments.part]()
    hardware = (
        torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    )
    versions = {"hardware": hardware, "torch": torch.__version__, "python": platform.python_version()}
    write_json({"part": arguments.part, **versions, **result}, arguments.out)


# --- data with a known K -------------------------------------------------------------------------------


def generate_mixture(
    K: int, spread: float, clutter: int, seed: int, images: int = 300, D: int = 64
) -> DescribedPoints:
    """Generate points of K landmarks, each visible in 60 to 100 percent of the images, plus clutter.

    Args:
        K: Number of landmarks. The descriptors of a landmark lie around a random direction.
        spread: Expected length of the noise vector that is added to the unit vector of a direction.
        clutter: Number of points in every image that belong to no landmark.
        seed: Seed of the random generator.
        images: Number of images.
        D: Length of a descriptor.
    """
    generator = torch.Generator().manual_seed(seed)
    centers = normalize(torch.randn(K, D, generator=generator), dim=1)
    is_visible = torch.rand(images, K, generator=generator) < 0.6 + 0.4 * torch.rand(K, generator=generator)
    image_index, landmark = torch.nonzero(is_visible, as_tuple=True)
    noise = torch.randn(len(image_index), D, generator=generator) / D**0.5
    vectors = torch.cat(
        [centers[landmark] + spread * noise, torch.randn(images * clutter, D, generator=generator)]
    )
    image_index = torch.cat([image_index, torch.arange(images).repeat_interleave(clutter)])
    order = torch.argsort(image_index, stable=True)
    points = Keypoints(
        torch.zeros(len(image_index), 2),
        image_index[order],
        torch.ones(len(image_index)),
        normalize(vectors[order], dim=1),
    )
    return DescribedPoints(points, None)


def choose_for_mixtures(seeds: int, device: torch.device) -> dict[str, Any]:
    """Choose K for all mixtures with several seeds."""
    rows = []
    for settings in MIXTURES:
        counts = [
            _choose_k(generate_mixture(**settings, seed=seed), 300, seed, device) for seed in range(seeds)
        ]
        best_scores = [round(max(trial.score for trial in count.trials), 3) for count in counts]
        rows.append({**settings, "chosen": [count.K for count in counts], "best_score": best_scores})
        print(rows[-1], flush=True)
    return {"candidates": AutoK().candidates, "rows": rows}


def choose_for_toy(run: Path, seeds: int, device: torch.device) -> dict[str, Any]:
    """Choose K for the true points of the toy animal."""
    scene = generate_scene(TRAIN_IMAGES, SIZE, TRAIN_SEED)
    stage1 = Stage1.load(Run.open(run), device)
    last_column = stage1.config.map_size - 1
    descriptors: list[torch.Tensor] = []  # descriptors in the images, [batch, 20, D] each
    mirrored: list[torch.Tensor] = []  # descriptors in the mirror images
    with torch.no_grad():
        for start in range(0, len(scene.images), 50):
            pixels = torch.from_numpy(scene.images[start : start + 50]).permute(0, 3, 1, 2).to(device)
            maps, mirrored_features = stage1.phi.forward_with_mirror(pixels.float() / 255)
            xy = torch.from_numpy(scene.xy[start : start + 50]).float().clamp(0, SIZE - 1).to(device)
            cells = to_cells(xy)
            descriptors.append(stage1.phi.describe(maps.features, cells))
            flipped = torch.stack([last_column - cells[..., 0], cells[..., 1]], dim=-1)
            mirrored.append(stage1.phi.describe(mirrored_features, flipped))
    visible = torch.from_numpy(scene.visible).to(device)
    image = torch.nonzero(visible)[:, 0]
    points = Keypoints(  # counting landmarks uses neither positions nor scores
        torch.zeros(len(image), 2, device=device),
        image,
        torch.ones(len(image), device=device),
        torch.cat(descriptors)[visible],
    )
    described = DescribedPoints(points, torch.cat(mirrored)[visible])
    counts = [_choose_k(described, len(scene.images), seed, device) for seed in range(seeds)]
    return {"true_points": len(NAMES), "chosen": [count.K for count in counts], "first": _to_dict(counts[0])}


def _choose_k(described: DescribedPoints, images: int, seed: int, device: torch.device) -> LandmarkCount:
    sample, images = sample_images(described, images, AutoK().max_images, device, SINGLE_PROCESS)
    generator = torch.Generator(device).manual_seed(seed)
    return count_landmarks(sample, images, AutoK(), preset("tiny").correspondence, generator)


def _to_dict(count: LandmarkCount) -> dict[str, Any]:
    trials = [{name: round(value, 4) for name, value in asdict(trial).items()} for trial in count.trials]
    return {
        "chosen": count.K,
        "plateau": find_plateau(count.trials),
        "points_per_image": count.points,
        "trials": trials,
    }


# --- errors with other K -------------------------------------------------------------------------------


class Split(NamedTuple):
    """Detected and annotated points of the training or the test images."""

    described: DescribedPoints
    truth: AnnotatedObjects
    regions: FloatArray  # [N, 4] x, y, w, h of the crops in pixels of the original images

    def to_examples(self, landmarks: FloatArray, size: int) -> Examples:
        """Combine landmarks [N, K, 2] in network pixels with the annotated points.

        Args:
            landmarks: Positions in network images.
            size: Side of a network image in pixels.
        """
        return build_examples(self.truth, landmarks, self.regions, choose_normalizer(self.truth), size)


def sweep(data: Path, folder: Path, max_images: int, device: torch.device) -> dict[str, Any]:
    """Choose K on a data set and evaluate the clusters of every candidate K."""
    chosen = _run_until_choice(data, folder, max_images, device)
    run = Run.open(folder)
    tensors, _ = read_tensors(folder / "checkpoints" / "stage1.safetensors")
    phi = Phi(run.config.network).eval()
    prepare_network(phi, device, run.config.runtime)
    phi.load_state_dict(
        {
            name.removeprefix("network."): value
            for name, value in tensors.items()
            if name.startswith("network.")
        }
    )
    train, test = (_load_split(data, name, max_images, phi, run.config, device) for name in ("train", "test"))
    rows = []
    for K in [trial["K"] for trial in chosen["trials"]]:
        generator = torch.Generator(device).manual_seed(0)
        centroids = fit_centroids(train.described, K, run.config.correspondence, generator)
        train_xy, test_xy = _locate_clusters(train, centroids), _locate_clusters(test, centroids)
        size, mean_positions = run.config.images.size, mean_landmarks(train_xy)
        measured = stage1_errors(
            train.to_examples(train_xy, size), test.to_examples(test_xy, size), run.config.evaluation
        )
        headline = next(row for row in measured["errors"] if row["regressor"] == "ridge 0.01")
        mean_shape = {
            name: float(value)
            for name, value in mean_shape_errors(
                train.to_examples(fill_with_mean(train_xy, mean_positions), size),
                test.to_examples(fill_with_mean(test_xy, mean_positions), size),
            ).items()
        }
        rows.append(
            {
                "K": K,
                "forward": round(headline["forward"], 2),
                "backward": round(headline["backward"], 2),
                "guessing_forward": round(mean_shape["forward"], 2),
                "guessing_backward": round(mean_shape["backward"], 2),
                "found_per_image": round(measured["points_per_image"], 2),
            }
        )
        print(rows[-1], flush=True)
    return {"data": data.name, "settings": SWEEP, "images": max_images, "choice": chosen, "rows": rows}


def _load_split(
    data: Path, name: str, max_images: int, phi: Phi, config: Config, device: torch.device
) -> Split:
    folder = data / "images" / name
    truth = read_ground_truth(data / f"{name}.json", list_images([folder]))
    selected_paths = set(_sample_paths(folder, max_images))
    truth = truth.select(np.flatnonzero([ref.path in selected_paths for ref in truth.refs]))
    store = load_store(truth.refs, config.images, float("inf"), None)
    described = describe_images(phi, PixelFeed(store.pixels, device), config)
    return Split(described, truth, store.regions)


def _locate_clusters(split: Split, centroids: torch.Tensor) -> FloatArray:
    """Return the position of each cluster in each image, [N, K, 2] in network pixels, NaN where missing."""
    points = split.described.points
    assert points.descriptor is not None
    label = assign_clusters(points.descriptor, points.image_index, centroids, "nearest")
    has_cluster = label >= 0
    xy = np.full((len(split.truth), len(centroids), 2), np.nan)
    image_index, label = points.image_index[has_cluster].cpu(), label[has_cluster].cpu()
    xy[image_index, label] = points.xy[has_cluster].cpu()
    return xy


def _run_until_choice(data: Path, output: Path, max_images: int, device: torch.device) -> dict[str, Any]:
    """Run or resume the warm-up, which does not depend on K, and return the choice of K after it."""
    choices: list[Event] = []

    def listener(event: Event) -> None:
        if event["event"] == "landmark_count":
            choices.append(event)
            raise KeyboardInterrupt  # stop before the choice is saved, so that the next call makes it again

    paths = [] if output.exists() else _sample_paths(data / "images" / "train", max_images)
    try:
        discover(
            [str(path) for path in paths],
            landmarks="auto",
            output=output,
            preset="tiny",
            settings=SWEEP,
            resume=output.exists(),
            device=str(device),
            listener=listener,
        )
    except KeyboardInterrupt:
        print(choices[0]["why"], flush=True)
    return {name: choices[0][name] for name in ("K", "why", "images", "points", "trials")}


def _sample_paths(folder: Path, max_images: int) -> list[Path]:
    paths = sorted(folder.iterdir())
    return paths[:: max(1, len(paths) // max_images)][:max_images]


# --- speed ---------------------------------------------------------------------------------------------


def measure_speed(device: torch.device) -> dict[str, Any]:
    """Measure how long choosing K takes."""
    described = generate_mixture(16, 1.5, 8, seed=0, images=2000)
    # A real run also has descriptors of the mirror images. Their values do not change the time.
    mirrored = DescribedPoints(described.points, described.points.descriptor)
    started, cpu = time.perf_counter(), time.process_time()
    count = _choose_k(mirrored, 2000, 0, device)
    return {
        "images": 2000,
        "looked_at": count.images,
        "points_per_image": round(count.points, 1),
        "dimensions": 64,
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }


if __name__ == "__main__":
    main()
