"""Detect keypoints with SIFT or ORB, then apply adaptive non-maximal suppression (SIFT+ANMS, ORB+ANMS).

These detectors need no download and have no license restrictions.

The suppression selects points that are spread over the image. If it were given all candidates, it would
select many weak points in the background. So it gets only the strongest candidates, `candidates_per_point`
for each requested point (docs/keypoints.md). This number was chosen on faces with 68 known landmarks. With
this number, the most landmarks had a selected point nearby.
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
from selfmark.keypoints.memory_limit import limit_images
from selfmark.points import FloatArray, Keypoints

ByteArray = npt.NDArray[np.uint8]

THREADS = min(16, os.cpu_count() or 1)
_PIXEL_BYTES = 240  # memory that SIFT takes per image pixel, measured; SIFT first doubles the image size


@dataclass(frozen=True)
class OpenCVDetector:
    """OpenCV detector, followed by adaptive non-maximal suppression.

    make:                 creates the OpenCV object; called once per image, because these objects are not
                          thread-safe
    describe:             converts OpenCV's descriptors of P points to [P, length] float32 vectors that can be
                          compared by Euclidean distance
    length:               length of a descriptor
    candidates_per_point: the suppression gets this many candidates per requested point
    max_points:           maximum number of points per image
    """

    name: str
    make: Callable[[], cv2.Feature2D]
    describe: Callable[[npt.NDArray[np.generic]], FloatArray]
    length: int
    candidates_per_point: int
    max_points: int
    device: torch.device

    def detect(self, images: torch.Tensor) -> Keypoints:
        """Find keypoints in images [B, 3, H, W] uint8; the result is on the detector's device."""
        pixels = images.permute(0, 2, 3, 1).contiguous().cpu().numpy()
        height, width = images.shape[-2:]
        threads = limit_images(THREADS, height * width * _PIXEL_BYTES, torch.device("cpu"))
        with ThreadPoolExecutor(max_workers=threads) as pool:  # OpenCV releases the GIL
            detections = list(pool.map(self._detect_one, pixels))
        counts = [len(score) for _, score, _ in detections]
        xy, score, descriptor = (
            np.concatenate(arrays).astype(np.float32) for arrays in zip(*detections, strict=True)
        )
        image_index = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        return Keypoints(
            torch.from_numpy(xy), image_index, torch.from_numpy(score), torch.from_numpy(descriptor)
        ).to(self.device)

    def _detect_one(self, rgb: ByteArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return xy [P, 2], score [P] and descriptor [P, length] of one image [H, W, 3], strongest first."""
        gray = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
        points, raw = self.make().detectAndCompute(gray, None)
        if len(points) == 0:
            return np.zeros((0, 2)), np.zeros(0), np.zeros((0, self.length))
        xy = np.array([point.pt for point in points])
        score = np.array([point.response for point in points])
        order = merge_duplicates(xy, score)[: self.candidates_per_point * self.max_points]
        height, width = gray.shape
        chosen = order[suppress_non_maxima(xy[order], self.max_points, width, height)]
        return xy[chosen], score[chosen], self.describe(raw[chosen])


def merge_duplicates(xy: FloatArray, score: FloatArray) -> npt.NDArray[np.int64]:
    """Return the indices of the strongest point of every pixel, strongest first.

    SIFT can report a position several times, once per dominant gradient direction, and ORB once per pyramid
    level. These duplicates count as one point.

    >>> merge_duplicates(np.array([[5.0, 5.0], [9.0, 9.0], [5.2, 4.9]]), np.array([1.0, 2.0, 3.0])).tolist()
    [2, 1]
    """
    # Ties are sorted by position, because the order of OpenCV's points is not guaranteed.
    order = np.lexsort((xy[:, 0], xy[:, 1], -score))
    _, first = np.unique(np.rint(xy[order]), axis=0, return_index=True)
    result: npt.NDArray[np.int64] = order[np.sort(first)]
    return result


def to_root_sift(raw: npt.NDArray[np.generic]) -> FloatArray:
    """Convert SIFT descriptors to RootSIFT (Arandjelovic and Zisserman 2012): unit vectors [P, 128].

    A SIFT descriptor is a histogram, and a few large bins dominate the Euclidean distance between histograms.
    The Euclidean distance between the square roots of L1-normalized histograms is proportional to the
    Hellinger distance, which gives better matches.
    """
    histogram = raw.astype(np.float32)
    total = histogram.sum(axis=1, keepdims=True)
    result: FloatArray = np.sqrt(histogram / np.maximum(total, 1e-12))
    return result


def to_signed_bits(raw: npt.NDArray[np.generic]) -> FloatArray:
    """Convert ORB's 256 bits to vectors [P, 256] of +-1/32.

    The squared distance between two vectors is the fraction of bits that differ. Vectors of signs all have
    the same norm, unlike vectors of 0 and 1, so that normalizing them scales all distances equally.
    """
    bits = np.unpackbits(raw.astype(np.uint8), axis=1).astype(np.float32)
    result: FloatArray = (bits - 0.5) / np.float32(math.sqrt(bits.shape[1]))
    return result


def create_sift(settings: FirstKeypoints, device: torch.device) -> OpenCVDetector:
    """Create SIFT with 1/8 of OpenCV's contrast threshold, to find points in images of low contrast too."""

    def make() -> cv2.Feature2D:
        # Without precise upscaling, every point is shifted by a quarter of a pixel, so that the points of an
        # image and of its mirror image do not match.
        return cv2.SIFT.create(contrastThreshold=0.005, enable_precise_upscale=True)

    return OpenCVDetector("sift", make, to_root_sift, 128, 2, settings.max_points, device)


def create_orb(settings: FirstKeypoints, device: torch.device) -> OpenCVDetector:
    """Create ORB with 1/4 of OpenCV's FAST threshold and half of OpenCV's border."""

    def make() -> cv2.Feature2D:
        # Crops fit the object closely; OpenCV's border of 31 pixels would exclude paws and wing tips.
        # `nfeatures` limits the candidates to 2,000, even if `candidates_per_point` allows more.
        return cv2.ORB.create(nfeatures=2000, fastThreshold=5, edgeThreshold=15)

    return OpenCVDetector("orb", make, to_signed_bits, 256, 10, settings.max_points, device)
