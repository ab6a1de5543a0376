"""Measure how unfamiliar the test images of each data set look, compared with the training images of each.

    python benchmarks/features/unfamiliar_images.py DATA [DATA ...] --out docs/results/unfamiliar_images.json

Each DATA is a folder with images/train and images/test. The unfamiliarity is the median squared
distance of the features of test images from the mean features of training images. Its unit is the squared
distance that 95 % of the training images do not exceed. The unfamiliarity is less than 1 for images that look
like the training images. `selfmark predict` warns if it exceeds `guards.max_unfamiliarity`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import provenance

from selfmark.config import Guards, Images
from selfmark.config.presets import DEFAULT_FEATURES
from selfmark.evaluation.familiarity import compute_mean_features, fit_familiarity, measure_unfamiliarity
from selfmark.features.encoder import Encoder
from selfmark.features.loading import load_encoder
from selfmark.images.sources import list_images
from selfmark.images.store import iterate_crops
from selfmark.run.files import write_json
from selfmark.sampling import evenly_spaced

SIZE = 128  # side of the network images, pixels


def describe_folder(encoder: Encoder, folder: Path, count: int) -> Tensor:
    """Return the descriptions [N, C] of at most `count` evenly spaced images of a folder."""
    refs = list_images([folder])
    sample = [refs[row] for row in evenly_spaced(len(refs), count).tolist()]
    stores = iterate_crops(sample, Images(size=SIZE), 16)
    return compute_mean_features(encoder, torch.cat([store.pixels for store in stores if len(store)]))


def main() -> None:
    """Compare all data sets with each other and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="+", help="folders with images/train and images/test")
    parser.add_argument("--out", type=Path, help="result file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    guards, encoder = Guards(), load_encoder(DEFAULT_FEATURES, torch.device("cpu")).eval()
    folders: list[Path] = arguments.data
    tests = {
        folder.name: describe_folder(encoder, folder / "images" / "test", guards.compared_images)
        for folder in folders
    }
    rows = []
    for folder in folders:
        training = describe_folder(encoder, folder / "images" / "train", guards.familiar_images)
        familiarity = fit_familiarity(training)
        distances = {name: round(measure_unfamiliarity(familiarity, test), 3) for name, test in tests.items()}
        rows.append({"trained_on": folder.name, "images": len(training), "distance": distances})
    result = {
        "script": "benchmarks/features/unfamiliar_images.py",
        "commit": provenance.read_commit(),
        "hardware": provenance.describe_processor(),
        "features": DEFAULT_FEATURES,
        "max_unfamiliarity": guards.max_unfamiliarity,
        "rows": rows,
    }
    print(json.dumps(result, indent=1))
    if arguments.out is not None:
        write_json(result, arguments.out)


if __name__ == "__main__":
    main()
