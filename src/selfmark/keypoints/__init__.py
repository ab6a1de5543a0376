"""Find first keypoints: generic keypoint detectors with one interface, and outlier removal."""

from selfmark.keypoints.detectors import KeypointDetector, create_detector
from selfmark.keypoints.first_keypoints import detect_first_keypoints, mix_in_random_points
from selfmark.keypoints.outliers import remove_outliers
from selfmark.keypoints.points_file import read_points_file

__all__ = [
    "KeypointDetector",
    "create_detector",
    "detect_first_keypoints",
    "mix_in_random_points",
    "read_points_file",
    "remove_outliers",
]
