"""Photographs in the public domain that come inside Python packages.

    PYTHONPATH=src python -m training.keypoints.photographs --out photos

copies those of the packages installed here into one folder, in gray, from which training cuts its crops.
Only works whose makers gave up all rights are used, so that nothing hangs on the weights.
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

LONGEST = 768  # larger photographs are shrunk to this side, pixels


@dataclass(frozen=True)
class Photograph:
    """Where a photograph lies, who made it, and why it may be used for anything."""

    package: str
    path: str
    maker: str
    terms: str


# Terms as the packages' own documentation states them (scikit-image 0.26, skimage/data/_fetchers.py).
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
    """Copy the photographs of the packages installed here into `folder` as gray PNG files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for photograph in PHOTOGRAPHS:
        spec = importlib.util.find_spec(photograph.package)
        if spec is None or spec.origin is None:
            print(f"{photograph.package} is not installed: {photograph.path} is left out", file=sys.stderr)
            continue
        gray = cv2.imread(str(Path(spec.origin).parent / photograph.path), cv2.IMREAD_GRAYSCALE)
        if gray is None:
            print(f"{photograph.package} comes without {photograph.path}", file=sys.stderr)
            continue
        factor = min(1.0, LONGEST / max(gray.shape))
        small = cv2.resize(gray, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
        written.append(folder / f"{Path(photograph.path).stem}.png")
        cv2.imwrite(str(written[-1]), small)
    return written


def load(folder: Path) -> list[Image]:
    """All photographs of a folder, gray in 0..1, in the order of their names."""
    paths = sorted(folder.glob("*.png"))
    if not paths:
        raise InputError(
            f"there are no photographs in {folder}: "
            f"run 'python -m training.keypoints.photographs --out {folder}' where scikit-image is installed"
        )
    loaded = [cv2.imread(str(path), cv2.IMREAD_GRAYSCALE) for path in paths]
    return [gray.astype(np.float32) / np.float32(255) for gray in loaded if gray is not None]


def crop(
    rng: np.random.Generator, photographs: list[Image], side: int, lengths: tuple[int, int]
) -> tuple[Image, Array]:
    """A random square of a random photograph, `side` pixels wide, perhaps mirrored or turned."""
    source = photographs[rng.integers(len(photographs))]
    longest = min(*source.shape, lengths[1])
    length = int(np.exp(rng.uniform(np.log(lengths[0]), np.log(longest))))
    top, left = (int(rng.integers(extent - length + 1)) for extent in source.shape)
    square = np.rot90(source[top : top + length, left : left + length], int(rng.choice([0, 0, 0, 1, 2, 3])))
    if rng.random() < 0.5:
        square = square[:, ::-1]
    shrinks = length > side
    mode = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    resized = cv2.resize(np.ascontiguousarray(square), (side, side), interpolation=mode)
    return np.clip(resized, 0, 1), NO_POINTS


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the photographs")
    for path in collect(parser.parse_args().out):
        print(path)
