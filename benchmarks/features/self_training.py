"""Measure zero-shot landmarks from ImageNet features, and self-training of a small head on these features.

    PYTHONPATH=src:benchmarks python benchmarks/features/self_training.py DATA --out features.json

DATA contains birds-cub and flies-dpk, each with images/ and train.json. The script trains on four fifths of
each training set and measures errors on the other fifth, the validation part. It reads no test images. The
steps:

1. Zero-shot: cluster the features of all cells, or of foreground cells only, into K parts. Each landmark is
   the soft-argmax of the similarity to a centroid.
2. Self-training: a head on the same encoder learns these landmarks as heatmaps on deformed images. Its
   predictions are the labels of the next round. The encoder is frozen in the first round. In later rounds,
   some variants fine-tune it.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import provenance
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from selfmark.config import Augment, override, preset
from selfmark.features.encoder import CELL, Encoder
from selfmark.features.loading import load_encoder
from selfmark.images.augment import augment_colors, move_points, points_inside, random_affine, warp_images
from selfmark.model.heatmaps import draw_gaussians
from selfmark.run.files import write_json

SIZE = 256  # pixels, side of the images
GRID = SIZE // CELL  # cells, side of the feature maps and heatmaps
VALIDATION_FRACTION = 0.2
FOREGROUND_CLUSTERS = 100
BORDER = 2  # cells, width of the image border where the background is looked for
CLUSTER_SAMPLE = 150_000  # feature vectors that K-means is fitted on
RIDGE = 0.01
FEATURE_SCALE = 8.0  # the default of the setting `student.feature_scale`
DATASETS = {"birds-cub": (30, 40.0), "flies-dpk": (16, 180.0)}  # K, rotation of the augmentation in degrees


@dataclass(frozen=True)
class Variant:
    """How landmarks are initialized and trained.

    Attributes:
        name: name in the results.
        max_border_ratio: a cluster is foreground if its frequency at the border of the images, divided by its
            frequency inside, is below this; infinite: every cell is foreground.
        sharpness: inverse temperature of the soft-argmax.
        rounds: number of rounds of self-training; 0: zero-shot only.
        encoder_lr: learning rate of the encoder from the second round on; 0: frozen.
        head_depth: number of convolutions before the last one.
    """

    name: str
    max_border_ratio: float = 0.6
    sharpness: float = 30.0
    rounds: int = 3
    encoder_lr: float = 0.0
    head_depth: int = 2


VARIANTS = (
    Variant("zero-shot, all cells", max_border_ratio=math.inf, sharpness=60.0, rounds=0),
    Variant("zero-shot, foreground", rounds=0),
    Variant("head on frozen features, all cells", max_border_ratio=math.inf, sharpness=60.0),
    Variant("head on frozen features, foreground"),
    Variant("fine-tuned encoder, foreground", encoder_lr=1e-4),
    Variant("fine-tuned encoder, foreground, deeper head", encoder_lr=1e-4, head_depth=3),
)


class Data(NamedTuple):
    """Images of a training set with their annotated points.

    Attributes:
        pixels: [N, 3, SIZE, SIZE] uint8.
        xy: [N, L, 2] annotated points in pixels.
        visible: [N, L] bool, whether a point is annotated.
        scale: [N] square root of the area of the object's box, in pixels.
    """

    pixels: Tensor
    xy: np.ndarray
    visible: np.ndarray
    scale: np.ndarray


class Landmarks(NamedTuple):
    """Landmarks of images and of their mirror images: xy [N, K, 2] in pixels, score [N, K]."""

    xy: Tensor
    score: Tensor
    mirrored_xy: Tensor
    mirrored_score: Tensor


def main() -> None:
    """Measure all variants on all data sets and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--iterations", type=int, default=500, help="Iterations per round.")
    parser.add_argument("--max-images", type=int, default=None)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows: list[dict[str, Any]] = []
    for name, (K, rotation) in DATASETS.items():
        data = load_data(arguments.data / name, arguments.max_images, device)
        augment = override(preset("tiny"), {"augment.rotation": rotation}).augment
        for variant in VARIANTS:
            for row in measure(data, K, augment, variant, arguments.iterations):
                rows.append({"data": name, "k": K, **asdict(variant), **row})
                print(json.dumps(rows[-1]), flush=True)
    for row in rows:
        row["max_border_ratio"] = None if math.isinf(row["max_border_ratio"]) else row["max_border_ratio"]
    results = {
        "script": "benchmarks/features/self_training.py",
        "what": "share_of_guessing: forward error on held-out training images (ridge 0.01), divided by that "
        "of the mean shape",
        "features": "EfficientNet-Lite0, trained on labeled ImageNet photographs",
        "seed": 0,
        "iterations": arguments.iterations,
        "hardware": provenance.describe_device(),
        "torch": torch.__version__,
        "commit": provenance.read_commit(),
        "rows": rows,
    }
    if arguments.out:
        write_json(results, arguments.out)


def measure(
    data: Data, K: int, augment: Augment, variant: Variant, iterations: int
) -> Iterator[dict[str, Any]]:
    """Train a variant. Yield a row with the error of the zero-shot landmarks, then a row after each round."""
    device = data.pixels.device
    training, validation = split_rows(len(data.pixels), device)
    start = time.monotonic()
    encoder = load_encoder("efficientnet-lite0", device)
    features = describe(encoder, data.pixels)
    mirrored = describe(encoder, data.pixels.flip(3))
    foreground = find_foreground(features[training], variant.max_border_ratio)
    centroids = cluster(sample_cells(features[training], foreground), K)
    landmarks = Landmarks(
        *locate(features, centroids, variant.sharpness), *locate(mirrored, centroids, variant.sharpness)
    )
    student = Student(encoder, K, variant.head_depth).to(device)
    for number in range(variant.rounds + 1):
        if number:
            encoder_lr = variant.encoder_lr if number > 1 else 0.0
            labels = Landmarks(*(values[training] for values in landmarks))
            train(student, data.pixels[training], labels, augment, iterations, encoder_lr, seed=number)
            landmarks = Landmarks(*predict(student, data.pixels), *predict(student, data.pixels.flip(3)))
        error, mean_shape_error = measure_forward_error(
            data, landmarks.xy.cpu().numpy(), training, validation
        )
        yield {
            "round": number,
            "forward": round(error, 3),
            "guessing_forward": round(mean_shape_error, 3),
            # the forward error, divided by the error of guessing
            "share_of_guessing": round(error / mean_shape_error, 4),
            "foreground_fraction": round(float(foreground.float().mean()), 3),
            "seconds": round(time.monotonic() - start, 1),
        }


# --- data -------------------------------------------------------------------------------------------


def load_data(folder: Path, max_images: int | None, device: torch.device) -> Data:
    """Read the training images of a data set, stretched to squares, and their annotated points."""
    content = json.loads((folder / "train.json").read_text(encoding="utf-8"))
    annotations = {entry["image_id"]: entry for entry in content["annotations"]}

    def read(image: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        pixels = cv2.imread(str(folder / "images" / image["file_name"]))[:, :, ::-1]
        height, width = pixels.shape[:2]
        annotation = annotations[image["id"]]
        points = np.array(annotation["keypoints"], float).reshape(-1, 3)
        xy = (points[:, :2] + 0.5) * [SIZE / width, SIZE / height] - 0.5
        scale = math.sqrt(annotation["bbox"][2] * annotation["bbox"][3] * SIZE**2 / (width * height))
        return cv2.resize(pixels, (SIZE, SIZE)), xy, points[:, 2] > 0, scale

    with ThreadPoolExecutor(8) as threads:
        images, xy, visible, scale = zip(*threads.map(read, content["images"][:max_images]), strict=True)
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).to(device)
    return Data(pixels, np.stack(xy), np.stack(visible), np.array(scale))


def split_rows(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the row numbers of the training part and of the validation part, the same in every run."""
    order = np.random.default_rng(7).permutation(count)
    held_out = int(VALIDATION_FRACTION * count)
    training, validation = np.sort(order[held_out:]), np.sort(order[:held_out])
    return torch.tensor(training, device=device), torch.tensor(validation, device=device)


def measure_forward_error(
    data: Data, landmarks: np.ndarray, training: Tensor, validation: Tensor
) -> tuple[float, float]:
    """Return the forward errors of landmarks [N, K, 2] and of the mean shape, in percent of the scale.

    Errors are measured on the validation rows. Each annotated point has its own ridge regression, fitted on
    the training rows. Points with fewer than 10 training images, or with no validation image, are skipped.
    """
    fit, test = training.cpu().numpy(), validation.cpu().numpy()
    inputs = landmarks.reshape(len(landmarks), -1).astype(np.float64)
    errors, guesses = [], []
    for point in range(data.xy.shape[1]):
        rows, held_out = fit[data.visible[fit, point]], test[data.visible[test, point]]
        if len(rows) < 10 or not len(held_out):
            continue
        x, y = inputs[rows], data.xy[rows, point]
        centered = x - x.mean(0)
        gram = centered.T @ centered
        weights = np.linalg.solve(
            gram + RIDGE * np.abs(gram).max() * np.eye(len(gram)), centered.T @ (y - y.mean(0))
        )
        predicted = (inputs[held_out] - x.mean(0)) @ weights + y.mean(0)
        truth, scale = data.xy[held_out, point], data.scale[held_out]
        errors.append(np.linalg.norm(predicted - truth, axis=1) / scale)
        guesses.append(np.linalg.norm(y.mean(0) - truth, axis=1) / scale)
    return 100 * float(np.concatenate(errors).mean()), 100 * float(np.concatenate(guesses).mean())


# --- features and zero-shot landmarks ---------------------------------------------------------------


@torch.no_grad()
def describe(encoder: Encoder, pixels: Tensor, batch: int = 128) -> Tensor:
    """Return half-precision features [N, D, GRID, GRID] of images [N, 3, SIZE, SIZE]."""
    described = []
    for rows in pixels.split(batch):
        with use_mixed_precision(pixels.device):
            described.append(encoder.describe(rows.float() / 255).half())
    return torch.cat(described)


def use_mixed_precision(device: torch.device) -> torch.autocast:
    """Return a context manager that computes in bf16 on a GPU and changes nothing on the CPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def find_foreground(features: Tensor, max_border_ratio: float) -> Tensor:
    """Return a mask [N, GRID, GRID] of the cells whose cluster is rare at the border of the images."""
    all_cells = torch.ones(len(features), GRID, GRID, dtype=torch.bool, device=features.device)
    if math.isinf(max_border_ratio):
        return all_cells
    centroids = cluster(sample_cells(features, all_cells), FOREGROUND_CLUSTERS)
    labels = torch.cat(
        [torch.einsum("kd,ndhw->nkhw", centroids, rows.float()).argmax(1) for rows in features.split(256)]
    )
    border = torch.ones(GRID, GRID, dtype=torch.bool, device=features.device)
    border[BORDER:-BORDER, BORDER:-BORDER] = False

    def measure_frequencies(cells: Tensor) -> Tensor:
        return labels[:, cells].flatten().bincount(minlength=FOREGROUND_CLUSTERS).float() / cells.sum()

    is_foreground = measure_frequencies(border) / (measure_frequencies(~border) + 1e-9) < max_border_ratio
    return is_foreground[labels]


def sample_cells(features: Tensor, mask: Tensor) -> Tensor:
    """Return feature vectors [P, D] of a random sample of the marked cells."""
    rows = torch.nonzero(mask.flatten()).flatten()
    generator = torch.Generator(features.device).manual_seed(1)
    chosen = rows[torch.randperm(len(rows), generator=generator, device=rows.device)[:CLUSTER_SAMPLE]]
    return features.permute(0, 2, 3, 1).flatten(0, 2)[chosen].float()


def cluster(vectors: Tensor, clusters: int, iterations: int = 40, restarts: int = 3) -> Tensor:
    """Run spherical K-means several times and return the best unit centroids [clusters, D]."""
    best_centroids, best_quality = vectors[:clusters], -math.inf
    for restart in range(restarts):
        generator = torch.Generator(vectors.device).manual_seed(restart)
        order = torch.randperm(len(vectors), generator=generator, device=vectors.device)
        candidates = vectors[order[:20_000]]
        # Seed with k-means++. The squared distance of unit vectors is 2 minus twice their product.
        centroids = candidates[:1]
        distance = 2 - 2 * candidates @ centroids[0]
        for _ in range(clusters - 1):
            row = torch.multinomial(distance.clamp_min(1e-6), 1, generator=generator)
            centroids = torch.cat([centroids, candidates[row]])
            distance = torch.minimum(distance, 2 - 2 * candidates @ candidates[row[0]])
        for _ in range(iterations):
            nearest = (vectors @ centroids.T).argmax(1)
            sums = torch.zeros_like(centroids).index_add_(0, nearest, vectors)
            centroids = F.normalize(sums + 1e-9, dim=1)
        quality = float((vectors @ centroids.T).amax(1).mean())
        if quality > best_quality:
            best_centroids, best_quality = centroids, quality
    return best_centroids


def compute_cell_centers(device: torch.device) -> Tensor:
    """Return the centers [GRID * GRID, 2] of the cells in pixels, row by row."""
    centers = torch.arange(GRID, device=device) * CELL + (CELL - 1) / 2
    return torch.stack(torch.meshgrid(centers, centers, indexing="xy"), -1).reshape(-1, 2)


def locate(features: Tensor, centroids: Tensor, sharpness: float) -> tuple[Tensor, Tensor]:
    """Place each landmark at the soft-argmax of the similarity to its centroid.

    Returns:
        Positions [N, K, 2] in pixels, and the highest similarity of each landmark [N, K].
    """
    xy, score = [], []
    for rows in features.split(512):
        similarity = torch.einsum("kd,ndhw->nkhw", centroids, rows.float()).flatten(2)
        highest = similarity.amax(2)
        xy.append(
            ((similarity - highest[..., None]) * sharpness).softmax(2) @ compute_cell_centers(features.device)
        )
        score.append(highest)
    return torch.cat(xy), torch.cat(score)


# --- self-training ----------------------------------------------------------------------------------


class Student(nn.Module):
    """Encoder with a small head that predicts K heatmaps."""

    def __init__(self, encoder: Encoder, K: int, depth: int, hidden: int = 256) -> None:
        super().__init__()
        self.encoder = encoder
        layers: list[nn.Module] = [nn.Conv2d(encoder.channels, hidden, 1), nn.ReLU()]
        for _ in range(depth - 1):
            layers += [nn.Conv2d(hidden, hidden, 3, padding=1), nn.ReLU()]
        self.head = nn.Sequential(*layers, nn.Conv2d(hidden, K, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return heatmaps [B, K, GRID, GRID] of images [B, 3, SIZE, SIZE] in 0..1."""
        heatmaps: Tensor = self.head(self.encoder(images) * FEATURE_SCALE)
        return heatmaps


@torch.no_grad()
def predict(student: Student, pixels: Tensor, batch: int = 256) -> tuple[Tensor, Tensor]:
    """Predict landmarks.

    Returns:
        Positions [N, K, 2] in pixels (the mean position, weighted by the squared heatmap), and the maxima of
        the heatmaps [N, K].
    """
    xy, score = [], []
    for rows in pixels.split(batch):
        with use_mixed_precision(pixels.device):
            heatmaps = student(rows.float() / 255)
        weights = heatmaps.float().clamp_min(0).square().flatten(2) + 1e-9
        xy.append(weights / weights.sum(2, keepdim=True) @ compute_cell_centers(pixels.device))
        score.append(heatmaps.float().amax((2, 3)))
    return torch.cat(xy), torch.cat(score)


def train(
    student: Student,
    pixels: Tensor,
    labels: Landmarks,
    augment: Augment,
    iterations: int,
    encoder_lr: float,
    seed: int,
) -> None:
    """Train on deformed images and labels. The least confident 30 % of each landmark's labels are ignored."""
    device, batch, sigma = pixels.device, 64, 1.2  # sigma in cells
    student.encoder.requires_grad_(encoder_lr > 0)
    groups = [{"params": list(student.head.parameters()), "lr": 1e-3}]
    if encoder_lr:
        groups.append({"params": list(student.encoder.parameters()), "lr": encoder_lr})
    optimizer = torch.optim.AdamW(groups, weight_decay=1e-4)
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=iterations, pct_start=0.1)
    generator = torch.Generator(device).manual_seed(seed)
    confident = labels.score > labels.score.quantile(0.3, dim=0)
    mirrored_confident = labels.mirrored_score > labels.mirrored_score.quantile(0.3, dim=0)
    for _ in range(iterations):
        rows = torch.randint(len(pixels), (batch,), generator=generator, device=device)
        flip = torch.rand(batch, generator=generator, device=device) < 0.5
        images = pixels[rows].float() / 255
        images = torch.where(flip[:, None, None, None], images.flip(3), images)
        xy = torch.where(flip[:, None, None], labels.mirrored_xy[rows], labels.xy[rows])
        present = torch.where(flip[:, None], mirrored_confident[rows], confident[rows])
        matrix = random_affine(batch, SIZE, augment, generator)
        images = augment_colors(warp_images(images, matrix), augment, generator)
        xy = move_points(xy, matrix)
        weight = (present & points_inside(xy, SIZE)).float()
        target = draw_gaussians((xy - (CELL - 1) / 2) / CELL, GRID, sigma)
        with use_mixed_precision(device):
            heatmaps = student(images)
        error = (heatmaps.float() - target).square().mean((2, 3))
        loss = (error * weight).sum() / weight.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


if __name__ == "__main__":
    main()
