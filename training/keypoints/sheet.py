"""What a trained network finds in images it has not seen: figures and a picture to look at."""

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
from training.keypoints.data import Labeled
from training.keypoints.drawing import Image
from training.keypoints.measure import Found, Score, compare, euclidean, mean, random_homography
from training.keypoints.network import plain
from training.keypoints.settings import Settings

POINTS = 60  # per image
REACH = 3.0  # pixels
ACROSS = 8  # images in a row of the sheet
HELD_OUT = 1 << 20  # added to the seed: no image of training has such a number


def detector(state: dict[str, Tensor], device: torch.device) -> LearnedDetector:
    """The trained network as selfmark runs it, with all points however weak."""
    return LearnedDetector("selfmark", plain(state, device), CELL, CELL, 0.0, 4, POINTS, device)


def _fresh(kind: str, index: int, settings: Settings, sources: list[Image]) -> Image:
    """An image that training did not use; of photographs a new crop."""
    rng = np.random.default_rng([settings.seed + HELD_OUT, index])
    side = settings.data.side
    if kind == "shapes":
        return shapes.draw(rng, side)[0]
    if kind == "scenes":
        return scenes.draw(rng, side)[0]
    if kind == "animal":
        return scenes.animal(rng, side)[0]
    return photographs.crop(rng, sources, side, settings.data.photograph_side)[0]


def _pixels(images: list[Image]) -> Tensor:
    gray = torch.from_numpy(np.round(np.stack(images) * 255).astype(np.uint8))
    return gray[:, None].expand(-1, 3, -1, -1)


def _of_image(points: Keypoints, index: int) -> Found:
    assert points.descriptor is not None
    mine = points.image_index == index
    return Found(points.xy[mine].cpu().numpy(), points.descriptor[mine].cpu().numpy())


def held_out_score(state: dict[str, Tensor], settings: Settings, folder: Path, device: torch.device) -> Score:
    """Repeatability and matching on fresh scenes and fresh crops of the photographs, at the best points."""
    sources, side = photographs.load(folder), settings.data.side
    before, after, matrices = [], [], []
    for index in range(settings.data.held_out):
        kind = ("scenes", "animal", "photographs", "photographs")[index % 4]
        image = _fresh(kind, index, settings, sources)
        rng = np.random.default_rng([settings.seed, index])
        matrix = random_homography(rng, side, rotation=25, zoom=1.25, perspective=0.08, shift=0.05)
        changed = cv2.warpPerspective(image, matrix, (side, side), borderMode=cv2.BORDER_REFLECT_101)
        changed = cv2.GaussianBlur(changed, (0, 0), 1.0) * 0.7 + 0.1
        changed += rng.normal(0, 0.02, changed.shape).astype(np.float32)
        before.append(image)
        after.append(np.clip(changed, 0, 1))
        matrices.append(matrix)
    finder = detector(state, device)
    one, two = finder.detect(_pixels(before)), finder.detect(_pixels(after))
    return mean(
        compare(_of_image(one, i), _of_image(two, i), matrix, side, REACH, euclidean)
        for i, matrix in enumerate(matrices)
    )


def contact_sheet(
    state: dict[str, Tensor],
    settings: Settings,
    folder: Path,
    labeled: Labeled,
    device: torch.device,
    path: Path,
) -> None:
    """Rows of fresh images with the points found in them, the last row with labels that adaptation made."""
    sources = photographs.load(folder)
    finder = detector(state, device)
    rows = []
    for number, kind in enumerate(("shapes", "scenes", "animal", "photographs", "photographs")):
        images = [_fresh(kind, 1000 + number * ACROSS + i, settings, sources) for i in range(ACROSS)]
        points = finder.detect(_pixels(images)).to("cpu")
        mine = [points.select(points.image_index == i) for i in range(ACROSS)]
        rows += [_marked(image, p.xy, p.score) for image, p in zip(images, mine, strict=True)]
    for index in np.linspace(0, len(labeled) - 1, ACROSS).astype(int):
        image, xy = labeled.images[index].cpu().numpy(), labeled.points[index].cpu()
        xy = xy[~xy[:, 0].isnan()]
        rows.append(_marked(image.astype(np.float32) / np.float32(255), xy, torch.ones(len(xy))))
    cv2.imwrite(str(path), np.vstack([np.hstack(rows[i : i + ACROSS]) for i in range(0, len(rows), ACROSS)]))


def _marked(image: Image, xy: Tensor, score: Tensor) -> npt.NDArray[np.uint8]:
    """The image in color with a ring at each point: green where sure, red where not."""
    picture = cv2.cvtColor(np.round(image * 255).astype(np.uint8), cv2.COLOR_GRAY2BGR)
    for (x, y), sure in zip(xy.tolist(), score.tolist(), strict=True):
        share = float(np.clip(np.log(max(sure, 1e-4) / 0.005) / np.log(0.5 / 0.005), 0, 1))
        cv2.circle(
            picture, (round(x), round(y)), 3, (0, int(255 * share), int(255 * (1 - share))), 1, cv2.LINE_AA
        )
    return picture.astype(np.uint8)
