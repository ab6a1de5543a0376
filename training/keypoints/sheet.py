"""Score a trained network on images that training did not use, and draw a contact sheet.

The sheet shows unused images that were not scored, and some training images.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfmark.keypoints.learned_detector import LearnedDetector
from selfmark.keypoints.superpoint import CELL
from selfmark.points import Keypoints
from training.keypoints import photographs, scenes, shapes
from training.keypoints.data import LabeledImages
from training.keypoints.drawing import Image
from training.keypoints.measure import (
    DetectedPoints,
    Score,
    average_scores,
    compare,
    compute_euclidean,
    sample_homography,
)
from training.keypoints.network import build_superpoint
from training.keypoints.settings import Settings

POINTS = 60  # maximum number of points per image
MAX_DISTANCE = 3.0  # maximum distance between corresponding points, pixels
COLUMNS = 8  # columns of the sheet
HELD_OUT = 1 << 20  # added to the seed, so that held-out images differ from all training images


def build_detector(state: dict[str, Tensor], device: torch.device) -> LearnedDetector:
    """Return a detector with the trained network that finds the best `POINTS` points, without a threshold."""
    return LearnedDetector(
        "selfmark",
        build_superpoint(state, device),
        stride=CELL,
        multiple=CELL,
        threshold=0.0,
        nms_radius=4,
        max_points=POINTS,
        device=device,
    )


def _draw_unseen(kind: str, index: int, settings: Settings, sources: list[Image]) -> Image:
    """Return an image that training did not use; for photographs, a new crop."""
    rng = np.random.default_rng([settings.seed + HELD_OUT, index])
    side = settings.data.side
    if kind == "shapes":
        return shapes.draw(rng, side)[0]
    if kind == "scenes":
        return scenes.draw(rng, side)[0]
    if kind == "animal":
        return scenes.draw_animal(rng, side)[0]
    return photographs.crop(rng, sources, side, settings.data.photograph_side)[0]


def _to_pixels(images: list[Image]) -> Tensor:
    gray = torch.from_numpy(np.round(np.stack(images) * 255).astype(np.uint8))
    return gray[:, None].expand(-1, 3, -1, -1)


def _select_image(points: Keypoints, index: int) -> DetectedPoints:
    assert points.descriptor is not None
    in_image = points.image_index == index
    return DetectedPoints(points.xy[in_image].cpu().numpy(), points.descriptor[in_image].cpu().numpy())


def score_held_out(state: dict[str, Tensor], settings: Settings, folder: Path, device: torch.device) -> Score:
    """Measure repeatability and matching on new scenes, toy animals and crops of photographs."""
    sources, side = photographs.load(folder), settings.data.side
    before, after, matrices = [], [], []
    for index in range(settings.data.held_out):
        kind = ("scenes", "animal", "photographs", "photographs")[index % 4]
        image = _draw_unseen(kind, index, settings, sources)
        # benchmarks/quality/keypoints.py makes views and changes light in the same way.
        rng = np.random.default_rng([settings.seed, index])
        matrix = sample_homography(rng, side, rotation=25, zoom=1.25, perspective=0.08, shift=0.05)
        view = cv2.warpPerspective(image, matrix, (side, side), borderMode=cv2.BORDER_REFLECT_101)
        view = cv2.GaussianBlur(view, (0, 0), 1.0) * 0.7 + 0.1
        view += rng.normal(0, 0.02, view.shape).astype(np.float32)
        before.append(image)
        after.append(np.clip(view, 0, 1))
        matrices.append(matrix)
    detector = build_detector(state, device)
    points_before, points_after = detector.detect(_to_pixels(before)), detector.detect(_to_pixels(after))
    pairs = [(_select_image(points_before, i), _select_image(points_after, i)) for i in range(len(matrices))]
    return average_scores(
        compare(*pair, matrix, side, MAX_DISTANCE, compute_euclidean)
        for pair, matrix in zip(pairs, matrices, strict=True)
    )


def write_contact_sheet(
    state: dict[str, Tensor],
    settings: Settings,
    folder: Path,
    labeled: LabeledImages,
    device: torch.device,
    path: Path,
) -> None:
    """Write a picture with rows of new images and their detected points.

    The last row shows training images with their labels from homographic adaptation.

    Args:
        state: State dict of the trained `SuperPoint`.
        settings: Settings of the training.
        folder: Folder of the photographs.
        labeled: Labeled training images.
        device: Device of the network.
        path: Path of the picture.
    """
    sources = photographs.load(folder)
    detector = build_detector(state, device)
    tiles = []
    # Indices from 1000 on give other images than those of `score_held_out`.
    for number, kind in enumerate(("shapes", "scenes", "animal", "photographs", "photographs")):
        images = [_draw_unseen(kind, 1000 + number * COLUMNS + i, settings, sources) for i in range(COLUMNS)]
        points = detector.detect(_to_pixels(images)).to("cpu")
        points_by_image = [points.select(points.image_index == i) for i in range(COLUMNS)]
        tiles += [
            _draw_points(image, detected.xy, detected.score)
            for image, detected in zip(images, points_by_image, strict=True)
        ]
    for index in np.linspace(0, len(labeled) - 1, COLUMNS).astype(int):
        image, xy = labeled.images[index].cpu().numpy(), labeled.points[index].cpu()
        xy = xy[~xy[:, 0].isnan()]
        tiles.append(_draw_points(image.astype(np.float32) / np.float32(255), xy, torch.ones(len(xy))))
    cv2.imwrite(
        str(path), np.vstack([np.hstack(tiles[i : i + COLUMNS]) for i in range(0, len(tiles), COLUMNS)])
    )


def _draw_points(image: Image, xy: Tensor, score: Tensor) -> npt.NDArray[np.uint8]:
    """Return the image in color with a circle at each point: green for a high score, red for a low one."""
    picture = cv2.cvtColor(np.round(image * 255).astype(np.uint8), cv2.COLOR_GRAY2BGR)
    for (x, y), value in zip(xy.tolist(), score.tolist(), strict=True):
        green = float(np.clip(np.log(max(value, 1e-4) / 0.005) / np.log(0.5 / 0.005), 0, 1))
        cv2.circle(
            picture, (round(x), round(y)), 3, (0, int(255 * green), int(255 * (1 - green))), 1, cv2.LINE_AA
        )
    return picture.astype(np.uint8)
