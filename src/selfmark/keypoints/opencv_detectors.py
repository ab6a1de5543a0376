"""SIFT and ORB, each followed by adaptive non-maximal suppression (the paper's SIFT+ANMS and ORB+ANMS).

Nothing to download and no license to mind, which is why SIFT is the default of the presets `fast` and `tiny`.

The suppression spreads whatever it is given: fed with every faint candidate it would pave the background.
So only the strongest few candidates per wanted point reach it. How many was measured on faces with 68 known
landmarks: the number at which the chosen points come near most landmarks (docs/keypoints.md).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt
import torch

from selfmark.config import FirstKeypoints
from selfmark.keypoints.anms import suppress_non_maxima
from selfmark.points import FloatArray, Keypoints

Bytes = npt.NDArray[np.uint8]

THREADS = min(16, os.cpu_count() or 1)


@dataclass(frozen=True)
class OpenCVDetector:
    """A detector of OpenCV's and what turns its many crowded candidates into a few spread points.

    make:       builds the OpenCV object; called once per image, because such objects are not thread-safe
    describe:   OpenCV's descriptors [P, *] -> [P, length] float32 for Euclidean distance
    length:     of a descriptor
    candidates: strongest points handed to the suppression, per point wanted
    """

    name: str
    make: Callable[[], cv2.Feature2D]
    describe: Callable[[npt.NDArray[np.generic]], FloatArray]
    length: int
    candidates: int
    max_points: int
    device: torch.device

    def detect(self, images: torch.Tensor) -> Keypoints:
        """Points of a batch of images (uint8 [B, 3, H, W]), on the detector's device."""
        pixels = images.permute(0, 2, 3, 1).contiguous().cpu().numpy()
        with ThreadPoolExecutor(max_workers=THREADS) as pool:  # OpenCV lets go of Python's lock
            found = list(pool.map(self._detect_one, pixels))
        counts = [len(score) for _, score, _ in found]
        xy, score, descriptor = (
            np.concatenate(arrays).astype(np.float32) for arrays in zip(*found, strict=True)
        )
        image_index = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        return Keypoints(
            torch.from_numpy(xy), image_index, torch.from_numpy(score), torch.from_numpy(descriptor)
        ).to(self.device)

    def _detect_one(self, rgb: Bytes) -> tuple[FloatArray, FloatArray, FloatArray]:
        """xy [P, 2], score [P] and descriptor [P, length] of one image [H, W, 3], strongest first."""
        gray = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
        points, raw = self.make().detectAndCompute(gray, None)
        if len(points) == 0:
            return np.zeros((0, 2)), np.zeros(0), np.zeros((0, self.length))
        xy = np.array([point.pt for point in points])
        score = np.array([point.response for point in points])
        order = merge_duplicates(xy, score)[: self.candidates * self.max_points]
        height, width = gray.shape
        chosen = order[suppress_non_maxima(xy[order], self.max_points, width, height)]
        return xy[chosen], score[chosen], self.describe(raw[chosen])


def merge_duplicates(xy: FloatArray, score: FloatArray) -> npt.NDArray[np.int64]:
    """Indices of the strongest point of every pixel, strongest first.

    SIFT reports a place once per dominant gradient direction, ORB once per pyramid level; for a landmark
    they are one point.

    >>> merge_duplicates(np.array([[5.0, 5.0], [9.0, 9.0], [5.2, 4.9]]), np.array([1.0, 2.0, 3.0])).tolist()
    [2, 1]
    """
    order = np.lexsort((xy[:, 0], xy[:, 1], -score))  # ties go by place, whatever order OpenCV found them in
    _, first = np.unique(np.rint(xy[order]), axis=0, return_index=True)
    result: npt.NDArray[np.int64] = order[np.sort(first)]
    return result


def root_sift(raw: npt.NDArray[np.generic]) -> FloatArray:
    """RootSIFT (Arandjelovic and Zisserman 2012): unit vectors [P, 128].

    SIFT is a histogram, and Euclidean distance between histograms is ruled by their few large bins. Between
    the square roots of L1-normalized histograms it is the Hellinger distance, which matches better.
    """
    histogram = raw.astype(np.float32)
    total = histogram.sum(axis=1, keepdims=True)
    result: FloatArray = np.sqrt(histogram / np.maximum(total, 1e-12))
    return result


def signed_bits(raw: npt.NDArray[np.generic]) -> FloatArray:
    """ORB's 256 bits as vectors [P, 256] of +-1/32: squared distance = share of bits that differ.

    Signs rather than 0 and 1, because then all vectors are equally long and normalizing them changes nothing.
    """
    bits = np.unpackbits(raw.astype(np.uint8), axis=1).astype(np.float32)
    result: FloatArray = (bits - 0.5) / np.float32(math.sqrt(bits.shape[1]))
    return result


def sift(settings: FirstKeypoints, device: torch.device) -> OpenCVDetector:
    """SIFT with a contrast threshold an eighth of OpenCV's, so that soft images have candidates too."""

    def make() -> cv2.Feature2D:
        # Without the precise upscaling every point lies a quarter of a pixel off, and mirror images differ.
        return cv2.SIFT.create(contrastThreshold=0.005, enable_precise_upscale=True)

    return OpenCVDetector("sift", make, root_sift, 128, 2, settings.max_points, device)


def orb(settings: FirstKeypoints, device: torch.device) -> OpenCVDetector:
    """ORB with a FAST threshold a quarter of OpenCV's, and half its blind border."""

    def make() -> cv2.Feature2D:
        # Crops fit the object closely: OpenCV's border of 31 pixels would hide paws and wing tips.
        return cv2.ORB.create(nfeatures=2000, fastThreshold=5, edgeThreshold=15)

    return OpenCVDetector("orb", make, signed_bits, 256, 10, settings.max_points, device)
