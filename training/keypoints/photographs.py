"""Collect public-domain photographs that are included in Python packages, and crop training images from them.

    PYTHONPATH=src python -m training.keypoints.photographs --out photos

This command copies the photographs of the installed packages into one folder, in gray. All photographs are in
the public domain, so no rights restrict the use of the trained weights.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from selfmark.errors import InputError
from training.keypoints.drawing import Array, Image
from training.keypoints.shapes import NO_POINTS

MAX_SIDE = 768  # maximum longer side of a photograph, pixels; larger photographs are reduced to it


@dataclass(frozen=True)
class Photograph:
    """Location, author and license of a photograph. `path` is relative to the folder of the package."""

    package: str
    path: str
    author: str
    license: str


# Licenses according to the packages' own documentation (scikit-image 0.26, skimage/data/_fetchers.py).
PHOTOGRAPHS: tuple[Photograph, ...] = (
    Photograph("skimage", "data/astronaut.png", "NASA", "public domain"),
    Photograph("skimage", "data/camera.png", "Lav Varshney", "CC0"),
    Photograph("skimage", "data/chelsea.png", "Stéfan van der Walt", "CC0"),
    Photograph("skimage", "data/coffee.png", "Rachel Michetti", "CC0"),
    Photograph("skimage", "data/grass.png", "Linolafett (DeviantArt)", "CC0"),
    Photograph("skimage", "data/gravel.png", "CC0Textures", "CC0"),
    Photograph("skimage", "data/hubble_deep_field.jpg", "NASA", "public domain"),
    Photograph("skimage", "data/retina.jpg", "Mikael Häggström", "CC0"),
    Photograph("skimage", "data/rocket.jpg", "SpaceX", "public domain"),
    Photograph(
        "matplotlib", "mpl-data/sample_data/grace_hopper.jpg", "US Navy", "public domain (US government)"
    ),
)


def collect(folder: Path) -> list[Path]:
    """Copy the photographs of the installed packages into `folder` as gray PNG files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for photograph in PHOTOGRAPHS:
        spec = importlib.util.find_spec(photograph.package)
        if spec is None or spec.origin is None:
            print(f"{photograph.package} is not installed; skipping {photograph.path}", file=sys.stderr)
            continue
        gray = cv2.imread(str(Path(spec.origin).parent / photograph.path), cv2.IMREAD_GRAYSCALE)
        if gray is None:
            print(f"{photograph.package} does not include {photograph.path}; skipping it", file=sys.stderr)
            continue
        factor = min(1.0, MAX_SIDE / max(gray.shape))
        small = cv2.resize(gray, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
        written.append(folder / f"{Path(photograph.path).stem}.png")
        cv2.imwrite(str(written[-1]), small)
    return written


def load(folder: Path) -> list[Image]:
    """Load all photographs of a folder, gray in 0..1, sorted by name."""
    paths = sorted(folder.glob("*.png"))
    if not paths:
        raise InputError(
            f"no photographs in {folder}; install scikit-image and run "
            f"'python -m training.keypoints.photographs --out {folder}'"
        )
    loaded = [cv2.imread(str(path), cv2.IMREAD_GRAYSCALE) for path in paths]
    return [gray.astype(np.float32) / np.float32(255) for gray in loaded if gray is not None]


def crop(
    rng: np.random.Generator, photographs: list[Image], side: int, side_range: tuple[int, int]
) -> tuple[Image, Array]:
    """Cut a random square from a random photograph, and mirror or rotate it at random.

    Args:
        rng: Random generator.
        photographs: Gray photographs.
        side: Side of the result in pixels.
        side_range: Range of the side of the square in the photograph, pixels.

    Returns:
        The image [side, side] in 0..1, and an empty array of points.
    """
    source = photographs[rng.integers(len(photographs))]
    max_length = min(*source.shape, side_range[1])
    length = int(np.exp(rng.uniform(np.log(side_range[0]), np.log(max_length))))
    top, left = (int(rng.integers(extent - length + 1)) for extent in source.shape)
    square = np.rot90(source[top : top + length, left : left + length], int(rng.choice([0, 0, 0, 1, 2, 3])))
    if rng.random() < 0.5:
        square = square[:, ::-1]
    method = cv2.INTER_AREA if length > side else cv2.INTER_CUBIC
    resized = cv2.resize(np.ascontiguousarray(square), (side, side), interpolation=method)
    return np.clip(resized, 0, 1), NO_POINTS


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the photographs")
    for path in collect(parser.parse_args().out):
        print(path)
