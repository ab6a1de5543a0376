"""First keypoints beside each other: are they found again, known again, and do they lie on landmarks?

    PYTHONPATH=src:. python benchmarks/quality/keypoints.py --data-folder D --weights-folder W \\
        --out docs/results/keypoints.json

D holds the data sets, zipped or not, W the weights of the learned detectors. What is absent is left out and
said so.

Repeatability and matching: every image and a view of it under a known homography, the same for all detectors;
the best 60 points of each, with no threshold. Once with the pixels as they are and once blurred, fainter and
noisy, which is kinder to detectors that have met such changes in training, as selfmark's own has. Precision
(the paper's measure): the points that `selfmark discover` would find, that is with its threshold and most
points, before it removes outliers among them. Points thrown at random say what chance gives.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
from figures import table
from one import hardware
from rows import DETECTORS
from sets import SETS, is_there, working_copy

from run import commit
from selfmark.config import Config, FirstKeypoints, override
from selfmark.evaluate.label_files import GroundTruth, read_ground_truth
from selfmark.evaluate.normalizers import default_normalizer, measurable_lengths
from selfmark.evaluate.precision import keypoint_precision
from selfmark.images.crop import to_network
from selfmark.images.sources import list_images
from selfmark.images.store import ImageStore, load_store
from selfmark.keypoints import create
from selfmark.keypoints.selfmark_detector import WEIGHTS
from selfmark.keypoints.weights_cache import KNOWN
from selfmark.points import Keypoints
from selfmark.run.files import write_json
from training.keypoints.measure import Floats, Found, compare, euclidean, mean, random_homography

CONFIG = Config()
DATA = ("faces-yt68", "birds-cub")
POINTS = 60  # per image, for repeatability and matching
REACH = 3.0  # pixels of a 256 px image within which a point is the same
VIEW = {"rotation": 25.0, "zoom": 1.25, "perspective": 0.08, "shift": 0.05}
LIGHT = {"blur": 1.0, "contrast": 0.7, "brightness": 0.1, "noise": 0.02}  # of a 0..1 image; blur in pixels
SEED = 0
CHANCE = "random"
ACROSS = 6  # images of each set in the picture
COLUMNS = {
    "repeatability": "repeatability",
    "matching": "matching",
    "repeatability_relit": "repeatability, relit",
    "matching_relit": "matching, relit",
    "precision": "precision %",
    "landmarks_reached": "landmarks reached %",
    "keypoints_per_image": "points per image",
}
WORDS = """Made by `{script}` ({hardware}, commit {commit}, seed {seed}, own weights {own_weights}).
Repeatability and matching: the best {points} points, within {reach} pixels, under a homography; *relit*:
blurred, fainter and noisy as well, which selfmark's own keypoints have met in training. Precision and
landmarks reached: the points that discovery would find, before it removes outliers; what is left of them
then is in [Ablations](ablations.md#precision-of-first-keypoints), beside the paper's figures."""

Detect = Callable[[torch.Tensor], Keypoints]
Row = dict[str, Any]


@dataclass(frozen=True)
class Pictures:
    """Labeled images of one data set and a changed view of each.

    store:    N images as the network sees them
    truth:    their annotated points; `xy` [N, L, 2] here in pixels of the network
    radius:   [N] within which a keypoint is right
    views:    [N, 3, S, S] uint8, what the changed views show
    relit:    the same under other light
    matrices: [N, 3, 3] from pixels of the images to pixels of the views
    """

    store: ImageStore
    truth: GroundTruth
    radius: Floats
    views: torch.Tensor
    relit: torch.Tensor
    matrices: Floats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--weights-folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="JSON file; a page of tables goes beside it")
    parser.add_argument("--own-weights", default="", help="instead of the packaged ones, for `selfmark`")
    parser.add_argument("--images", type=int, default=150, help="per data set")
    parser.add_argument("--detectors", nargs="+", choices=DETECTORS, default=DETECTORS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sheet", type=Path, help="also a picture of the points, PNG")
    options = parser.parse_args()
    device = torch.device(options.device)
    settings = _present(options.detectors, options.weights_folder, options.own_weights)
    rows: list[Row] = []
    bands = []
    with tempfile.TemporaryDirectory() as work:
        for data in DATA:
            if not is_there(data, options.data_folder, Path(work)):
                print(f"{data} is not in {options.data_folder} and is left out", flush=True)
                continue
            pictures = load(data, working_copy(data, options.data_folder, Path(work)), options.images)
            for name, chosen in settings.items():
                rows.append({"data": data, "detector": name, **measure(pictures, chosen, device)})
                print(rows[-1], flush=True)
            rows.append({"data": data, "detector": CHANCE, **by_chance(pictures)})
            if options.sheet:
                bands.append(band(pictures, settings, device))
    record = {
        "script": "benchmarks/quality/keypoints.py",
        "hardware": hardware(),
        "versions": {
            "torch": torch.__version__,
            "opencv": cv2.__version__,
            "python": platform.python_version(),
        },
        "commit": commit(),
        "seed": SEED,
        "own_weights": _digest(options.own_weights),
        "points": POINTS,
        "reach": REACH,
        "view": VIEW,
        "light": LIGHT,
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(record, options.out)
    options.out.with_suffix(".md").write_text(page(record), encoding="utf-8")
    if bands:
        cv2.imwrite(str(options.sheet), np.hstack(bands))
    print(page(record))


def _digest(own: str) -> str:
    """The first digits of the checksum of selfmark's own weights."""
    content = Path(own).read_bytes() if own else WEIGHTS.read_bytes()
    return hashlib.sha256(content).hexdigest()[:12]


def _present(names: Sequence[str], folder: Path, own: str) -> dict[str, FirstKeypoints]:
    """Settings of the detectors whose weights are here."""
    settings = {}
    for name in names:
        known = KNOWN.get(name)
        if known is not None and not (folder / known.file).is_file():
            print(f"{known.file} is not in {folder}, so {name} is left out", flush=True)
            continue
        weights = own if name == "selfmark" else "" if known is None else str(folder / known.file)
        named = {"keypoints.detector": name, "keypoints.weights": weights}
        settings[name] = override(CONFIG, named).keypoints
    return settings


# --- images ----------------------------------------------------------------------------------------------


def load(data: str, folder: Path, count: int) -> Pictures:
    """`count` test images spread over the set, and what is made of them."""
    chosen = SETS[data]
    labeled = read_ground_truth(
        folder / chosen.labels, list_images([folder / name for name in chosen.images])
    )
    truth = labeled.select(np.unique(np.linspace(0, len(labeled) - 1, count).astype(int)))
    store = load_store(truth.refs, CONFIG.images, float("inf"), None)
    if store.skipped:
        raise SystemExit(f"{store.skipped[0].name} cannot be read: {store.skipped[0].reason}")
    size = CONFIG.images.size
    spec = "inter_ocular" if data.startswith("faces") else default_normalizer(truth)
    length = measurable_lengths(truth, spec, store.regions) * size / store.regions[:, 2]
    placed = replace(truth, xy=to_network(truth.xy, store.regions[:, None], size))
    views, relit, matrices = zip(*(changed(image, i) for i, image in enumerate(store.pixels)), strict=True)
    radius = CONFIG.evaluation.precision_fraction * length
    return Pictures(store, placed, radius, torch.stack(views), torch.stack(relit), np.stack(matrices))


def changed(image: torch.Tensor, index: int) -> tuple[torch.Tensor, torch.Tensor, Floats]:
    """Another view of an image [3, S, S] uint8, the same under other light, and the homography there."""
    rng, side = np.random.default_rng([SEED, index]), image.shape[-1]
    matrix = random_homography(rng, side, **VIEW)
    pixels = image.permute(1, 2, 0).numpy().astype(np.float32) / np.float32(255)
    view = cv2.warpPerspective(pixels, matrix, (side, side), borderMode=cv2.BORDER_REFLECT_101)
    soft = cv2.GaussianBlur(view, (0, 0), LIGHT["blur"])
    relit = soft * LIGHT["contrast"] + LIGHT["brightness"] + rng.normal(0, LIGHT["noise"], view.shape)
    return _bytes(view), _bytes(relit), matrix


def _bytes(picture: npt.NDArray[Any]) -> torch.Tensor:
    """A picture [S, S, 3] in 0..1 as the store holds it."""
    return torch.from_numpy(np.round(picture.clip(0, 1) * 255).astype(np.uint8)).permute(2, 0, 1)


# --- figures ---------------------------------------------------------------------------------------------


def measure(pictures: Pictures, settings: FirstKeypoints, device: torch.device) -> Row:
    """All figures of one detector on one set."""
    best = create(replace(settings, threshold=0.0, max_points=POINTS), device).detect
    return again(pictures, best) | on_landmarks(pictures, create(settings, device).detect)


def by_chance(pictures: Pictures) -> Row:
    """Precision of points thrown at random, as many as a detector may give."""
    images, most, size = len(pictures.truth), CONFIG.keypoints.max_points, CONFIG.images.size
    xy = np.random.default_rng(SEED).uniform(0, size - 1, (images * most, 2))
    index = torch.arange(images).repeat_interleave(most)
    points = Keypoints(torch.from_numpy(xy).float(), index, torch.ones(len(index)))
    return on_landmarks(pictures, lambda _: points)


def again(pictures: Pictures, detect: Detect) -> Row:
    """Points found, and known by their descriptors, in both views."""
    before, side = detect(pictures.store.pixels).to("cpu"), pictures.views.shape[-1]
    figures: Row = {}
    for ending, views in (("", pictures.views), ("_relit", pictures.relit)):
        after = detect(views).to("cpu")
        score = mean(
            compare(_of(before, i), _of(after, i), matrix, side, REACH, euclidean)
            for i, matrix in enumerate(pictures.matrices)
        )
        figures[f"repeatability{ending}"] = round(score.repeatability, 4)
        figures[f"matching{ending}"] = round(score.matching, 4)
    return figures


def on_landmarks(pictures: Pictures, detect: Detect) -> Row:
    """Precision in percent, and its counterpart: annotated points that some keypoint is near."""
    found = detect(pictures.store.pixels).to("cpu")
    low, high = torch.from_numpy(pictures.store.bounds)[found.image_index].chunk(2, dim=1)
    found = found.select(((found.xy >= low) & (found.xy <= high)).all(dim=1))
    truth = pictures.truth
    xy, index = found.xy.numpy(), found.image_index.numpy()
    precision = keypoint_precision(xy, index, truth.xy, truth.visible, pictures.radius)
    hits = 0
    for i, (places, seen, radius) in enumerate(zip(truth.xy, truth.visible, pictures.radius, strict=True)):
        gaps = np.linalg.norm(places[seen][:, None] - xy[index == i][None], axis=-1)
        hits += int((gaps.min(axis=1, initial=np.inf) <= radius).sum())
    return {
        "images": len(truth),
        "keypoints_per_image": round(len(xy) / len(truth), 1),
        "precision": round(100 * precision, 2),
        "landmarks_reached": round(100 * hits / int(truth.visible.sum()), 2),
    }


def _of(points: Keypoints, index: int) -> Found:
    assert points.descriptor is not None
    mine = points.image_index == index
    return Found(points.xy[mine].numpy(), points.descriptor[mine].numpy())


# --- what it looks like ----------------------------------------------------------------------------------


def page(record: dict[str, Any]) -> str:
    """Markdown: how it was measured, and a table for each data set."""
    rows: list[Row] = record["rows"]
    parts = ["# First keypoints compared", WORDS.format(**record)]
    for data in dict.fromkeys(row["data"] for row in rows):
        of_set = [row for row in rows if row["data"] == data]
        lines = [[row["detector"], *(str(row.get(column, "")) for column in COLUMNS)] for row in of_set]
        content = table(["detector", *COLUMNS.values()], lines)
        parts.append(f"## {data}, {of_set[0]['images']} test images\n\n{content}")
    return "\n\n".join(parts) + "\n"


def band(
    pictures: Pictures, settings: dict[str, FirstKeypoints], device: torch.device
) -> npt.NDArray[np.uint8]:
    """A few images, a row for each detector, with the points that discovery would find."""
    rows = np.unique(np.linspace(0, len(pictures.truth) - 1, ACROSS).astype(int))
    images, lines = pictures.store.pixels[rows], []
    for chosen in settings.values():
        points = create(chosen, device).detect(images).to("cpu")
        tiles = []
        for i, image in enumerate(images):
            tile = np.ascontiguousarray(image.permute(1, 2, 0).numpy()[..., ::-1])
            for x, y in points.xy[points.image_index == i].round().int().tolist():
                cv2.circle(tile, (x, y), 3, (0, 255, 0), 1, cv2.LINE_AA)
            tiles.append(tile)
        lines.append(np.hstack(tiles))
    return np.vstack(lines)


if __name__ == "__main__":
    main()
