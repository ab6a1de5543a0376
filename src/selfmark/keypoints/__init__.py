"""Where the first points come from: generic detectors behind one small contract, and outlier removal."""

from selfmark.keypoints.first import first_keypoints, mix_random
from selfmark.keypoints.outliers import remove_outliers
from selfmark.keypoints.points_file import read_points_file
from selfmark.keypoints.protocol import KeypointDetector, create

__all__ = [
    "KeypointDetector",
    "create",
    "first_keypoints",
    "mix_random",
    "read_points_file",
    "remove_outliers",
]
