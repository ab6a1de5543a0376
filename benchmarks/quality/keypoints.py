r"""Compare first-keypoint detectors: repeatability, matching, and precision on annotated points.

    PYTHONPATH=src:. python benchmarks/quality/keypoints.py --data-folder D --weights-folder W \
        --out docs/results/keypoints.json

D contains the data sets, zipped or not, and W the weights of the learned detectors. Missing data sets and
weights are reported and skipped. The script also writes a page with tables next to the JSON file.

Repeatability and matching compare every image with a view of it under a known homography, which is the same
for all detectors. They use the best 60 points of each detector, without a score threshold. They are measured
twice: with unchanged pixels, and with blur, lower contrast and noise in the view ("relit"). The second
measurement favors detectors that were trained with such changes, like selfmark's own.

Precision is the paper's measure. It uses the points that `selfmark discover` would detect, with its threshold
and maximum number of points, before outlier removal. Random points give the chance level.
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
from experiments import DETECTORS
from quality_data import DATASETS, is_available, prepare_working_copy
from single_run import describe_hardware
from summaries import format_table

from run import read_commit
from selfmark.annotations import AnnotatedObjects
from selfmark.config import Config, FirstKeypoints, override
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.normalizers import choose_normalizer, measure_unchecked_lengths
from selfmark.evaluation.precision import keypoint_precision
from selfmark.images.crop import to_network
from selfmark.images.sources import list_images
from selfmark.images.store import ImageStore, load_store
from selfmark.keypoints import create_detector
from selfmark.keypoints.selfmark_detector import WEIGHTS
from selfmark.points import Keypoints
from selfmark.run.files import write_json
from selfmark.weights_cache import PUBLISHED_WEIGHTS
from training.keypoints.measure import (
    DetectedPoints,
    Floats,
    average_scores,
    compare,
    compute_euclidean,
    sample_homography,
)

CONFIG = Config()
DATA = ("faces-yt68", "birds-cub")
POINTS = 60  # per image, for repeatability and matching
MAX_DISTANCE = 3.0  # maximum distance between matching points, pixels of a 256 px image
VIEW = {"rotation": 25.0, "zoom": 1.25, "perspective": 0.08, "shift": 0.05}  # see `sample_homography`
# Changes of the pixels in relit views: sigma of the blur in pixels; the others are for pixel values in 0..1.
LIGHT = {"blur": 1.0, "contrast": 0.7, "brightness": 0.1, "noise": 0.02}
SEED = 0
CHANCE = "random"  # name of the rows with random points
SHEET_COLUMNS = 6  # images per data set in the contact sheet
COLUMNS = {
    "repeatability": "repeatability",
    "matching": "matching",
    "repeatability_relit": "repeatability, relit",
    "matching_relit": "matching, relit",
    "precision": "precision %",
    "landmarks_reached": "landmarks reached %",
    "keypoints_per_image": "points per image",
}
INTRODUCTION = """\
`{script}` wrote this page ({hardware}, commit {commit}, seed {seed}, own weights {own_weights}).

- **Repeatability and matching** use the best {points} points under a homography, within {reach} pixels.
- **Relit** means that the view also has blur, lower contrast and noise. selfmark's own detector was trained
  with such changes.
- **Precision and landmarks reached** use the points that discovery would detect, before outlier removal. For
  the precision after outlier removal and the paper's numbers, see
  [Ablations](ablations.md#precision-of-first-keypoints)."""

Detect = Callable[[torch.Tensor], Keypoints]
Row = dict[str, Any]


@dataclass(frozen=True)
class TestImages:
    """Labeled images of one data set and a transformed view of each.

    Attributes:
        store: N images, cropped as for the network.
        truth: Their annotated points; `xy` [N, L, 2] is in network pixels here.
        radius: Distance [N] in network pixels within which a keypoint counts as correct.
        views: Transformed views, [N, 3, S, S] uint8.
        relit: The same views with blur, lower contrast and noise.
        matrices: Homographies [N, 3, 3] from image pixels to view pixels.
    """

    store: ImageStore
    truth: AnnotatedObjects
    radius: Floats
    views: torch.Tensor
    relit: torch.Tensor
    matrices: Floats


def main() -> None:
    """Measure all detectors on all data sets and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--weights-folder", type=Path, required=True)
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON file; a page with tables is written next to it"
    )
    parser.add_argument(
        "--own-weights", default="", help="weights file of `selfmark`; default: the packaged one"
    )
    parser.add_argument("--images", type=int, default=150, help="images per data set")
    parser.add_argument("--detectors", nargs="+", choices=DETECTORS, default=DETECTORS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sheet", type=Path, help="PNG file to write, with the points drawn in some images")
    options = parser.parse_args()
    device = torch.device(options.device)
    settings = _find_available_detectors(options.detectors, options.weights_folder, options.own_weights)
    rows: list[Row] = []
    sheets = []
    with tempfile.TemporaryDirectory() as work:
        for data in DATA:
            if not is_available(data, options.data_folder, Path(work)):
                print(f"{data} is not in {options.data_folder}; skipping it", flush=True)
                continue
            test_images = load_test_images(
                data, prepare_working_copy(data, options.data_folder, Path(work)), options.images
            )
            for name, keypoints in settings.items():
                rows.append({"data": data, "detector": name, **measure(test_images, keypoints, device)})
                print(rows[-1], flush=True)
            rows.append({"data": data, "detector": CHANCE, **measure_chance(test_images)})
            if options.sheet:
                sheets.append(draw_sheet(test_images, settings, device))
    record = {
        "script": "benchmarks/quality/keypoints.py",
        "hardware": describe_hardware(),
        "versions": {
            "torch": torch.__version__,
            "opencv": cv2.__version__,
            "python": platform.python_version(),
        },
        "commit": read_commit(),
        "seed": SEED,
        "own_weights": _compute_digest(options.own_weights),
        "points": POINTS,
        "reach": MAX_DISTANCE,
        "view": VIEW,
        "light": LIGHT,
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(record, options.out)
    options.out.with_suffix(".md").write_text(build_page(record), encoding="utf-8")
    if sheets:
        cv2.imwrite(str(options.sheet), np.hstack(sheets))
    print(build_page(record))


def _compute_digest(own_weights: str) -> str:
    """Return the first digits of the SHA-256 of the weights of selfmark's own detector."""
    content = Path(own_weights).read_bytes() if own_weights else WEIGHTS.read_bytes()
    return hashlib.sha256(content).hexdigest()[:12]


def _find_available_detectors(
    names: Sequence[str], folder: Path, own_weights: str
) -> dict[str, FirstKeypoints]:
    """Return the settings of the detectors whose weights are available."""
    settings = {}
    for name in names:
        published = PUBLISHED_WEIGHTS.get(name)
        if published is not None and not (folder / published.file).is_file():
            print(f"{published.file} is not in {folder}; skipping {name}", flush=True)
            continue
        weights = "" if published is None else str(folder / published.file)
        if name == "selfmark":
            weights = own_weights
        changes = {"keypoints.detector": name, "keypoints.weights": weights}
        settings[name] = override(CONFIG, changes).keypoints
    return settings


# --- images ----------------------------------------------------------------------------------------------


def load_test_images(data: str, folder: Path, count: int) -> TestImages:
    """Load `count` evenly spaced test images and create their views."""
    dataset = DATASETS[data]
    labeled = read_ground_truth(
        folder / dataset.labels, list_images([folder / name for name in dataset.images])
    )
    truth = labeled.select(np.unique(np.linspace(0, len(labeled) - 1, count).astype(int)))
    store = load_store(truth.refs, CONFIG.images, float("inf"), None)
    if store.skipped:
        raise SystemExit(f"{store.skipped[0].name} cannot be read: {store.skipped[0].reason}")
    size = CONFIG.images.size
    normalizer = "inter_ocular" if data.startswith("faces") else choose_normalizer(truth)
    length = measure_unchecked_lengths(truth, normalizer, store.regions) * size / store.regions[:, 2]
    in_network = replace(truth, xy=to_network(truth.xy, store.regions[:, None], size))
    views, relit, matrices = zip(
        *(transform_image(image, i) for i, image in enumerate(store.pixels)), strict=True
    )
    radius = CONFIG.evaluation.precision_fraction * length
    return TestImages(store, in_network, radius, torch.stack(views), torch.stack(relit), np.stack(matrices))


def transform_image(image: torch.Tensor, index: int) -> tuple[torch.Tensor, torch.Tensor, Floats]:
    """Return a transformed view of an image [3, S, S] uint8, the same view relit, and the homography."""
    rng, side = np.random.default_rng([SEED, index]), image.shape[-1]
    matrix = sample_homography(rng, side, **VIEW)
    pixels = image.permute(1, 2, 0).numpy().astype(np.float32) / np.float32(255)
    view = cv2.warpPerspective(pixels, matrix, (side, side), borderMode=cv2.BORDER_REFLECT_101)
    blurred = cv2.GaussianBlur(view, (0, 0), LIGHT["blur"])
    relit = blurred * LIGHT["contrast"] + LIGHT["brightness"] + rng.normal(0, LIGHT["noise"], view.shape)
    return _to_bytes(view), _to_bytes(relit), matrix


def _to_bytes(picture: npt.NDArray[Any]) -> torch.Tensor:
    """Convert an image [S, S, 3] in 0..1 to the format of the store, [3, S, S] uint8."""
    return torch.from_numpy(np.round(picture.clip(0, 1) * 255).astype(np.uint8)).permute(2, 0, 1)


# --- measurements ----------------------------------------------------------------------------------------


def measure(test_images: TestImages, settings: FirstKeypoints, device: torch.device) -> Row:
    """Measure one detector on one data set."""
    detect_best = create_detector(replace(settings, threshold=0.0, max_points=POINTS), device).detect
    return measure_repeatability(test_images, detect_best) | measure_precision(
        test_images, create_detector(settings, device).detect
    )


def measure_chance(test_images: TestImages) -> Row:
    """Measure the precision of random points, as many per image as a detector may return."""
    images, count, size = len(test_images.truth), CONFIG.keypoints.max_points, CONFIG.images.size
    xy = np.random.default_rng(SEED).uniform(0, size - 1, (images * count, 2))
    index = torch.arange(images).repeat_interleave(count)
    points = Keypoints(torch.from_numpy(xy).float(), index, torch.ones(len(index)))
    return measure_precision(test_images, lambda _: points)


def measure_repeatability(test_images: TestImages, detect: Detect) -> Row:
    """Measure the repeatability of points and the matching of descriptors between images and their views."""
    before, side = detect(test_images.store.pixels).to("cpu"), test_images.views.shape[-1]
    result: Row = {}
    for ending, views in (("", test_images.views), ("_relit", test_images.relit)):
        after = detect(views).to("cpu")
        score = average_scores(
            compare(
                _select_image(before, i),
                _select_image(after, i),
                matrix,
                side,
                MAX_DISTANCE,
                compute_euclidean,
            )
            for i, matrix in enumerate(test_images.matrices)
        )
        result[f"repeatability{ending}"] = round(score.repeatability, 4)
        result[f"matching{ending}"] = round(score.matching, 4)
    return result


def measure_precision(test_images: TestImages, detect: Detect) -> Row:
    """Measure the precision in percent, and the percentage of annotated points with a keypoint nearby."""
    points = detect(test_images.store.pixels).to("cpu")
    # Drop points in the margin that the crop adds around the image.
    low, high = torch.from_numpy(test_images.store.bounds)[points.image_index].chunk(2, dim=1)
    points = points.select(((points.xy >= low) & (points.xy <= high)).all(dim=1))
    truth = test_images.truth
    xy, index = points.xy.numpy(), points.image_index.numpy()
    precision = keypoint_precision(xy, index, truth.xy, truth.visible, test_images.radius)
    hits = 0
    for i, (annotated, seen, radius) in enumerate(
        zip(truth.xy, truth.visible, test_images.radius, strict=True)
    ):
        distances = np.linalg.norm(annotated[seen][:, None] - xy[index == i][None], axis=-1)
        hits += int((distances.min(axis=1, initial=np.inf) <= radius).sum())
    return {
        "images": len(truth),
        "keypoints_per_image": round(len(xy) / len(truth), 1),
        "precision": round(100 * precision, 2),
        "landmarks_reached": round(100 * hits / int(truth.visible.sum()), 2),
    }


def _select_image(points: Keypoints, index: int) -> DetectedPoints:
    assert points.descriptor is not None
    in_image = points.image_index == index
    return DetectedPoints(points.xy[in_image].numpy(), points.descriptor[in_image].numpy())


# --- output ----------------------------------------------------------------------------------------------


def build_page(record: dict[str, Any]) -> str:
    """Return a Markdown page with a description of the measurements and one table per data set."""
    rows: list[Row] = record["rows"]
    sections = ["# First keypoints compared", INTRODUCTION.format(**record)]
    for data in dict.fromkeys(row["data"] for row in rows):
        dataset_rows = [row for row in rows if row["data"] == data]
        lines = [[row["detector"], *(str(row.get(column, "")) for column in COLUMNS)] for row in dataset_rows]
        content = format_table(["detector", *COLUMNS.values()], lines)
        sections.append(f"## {data}, {dataset_rows[0]['images']} test images\n\n{content}")
    return "\n\n".join(sections) + "\n"


def draw_sheet(
    test_images: TestImages, settings: dict[str, FirstKeypoints], device: torch.device
) -> npt.NDArray[np.uint8]:
    """Draw a few images, one row per detector, with the points that discovery would detect."""
    rows = np.unique(np.linspace(0, len(test_images.truth) - 1, SHEET_COLUMNS).astype(int))
    images, strips = test_images.store.pixels[rows], []
    for keypoints in settings.values():
        points = create_detector(keypoints, device).detect(images).to("cpu")
        tiles = []
        for i, image in enumerate(images):
            tile = np.ascontiguousarray(image.permute(1, 2, 0).numpy()[..., ::-1])
            for x, y in points.xy[points.image_index == i].round().int().tolist():
                cv2.circle(tile, (x, y), 3, (0, 255, 0), 1, cv2.LINE_AA)
            tiles.append(tile)
        strips.append(np.hstack(tiles))
    return np.vstack(strips)


if __name__ == "__main__":
    main()
