"""Estimate the yaw of a head from nine of the 68 facial points of an image."""

from __future__ import annotations

import numpy as np

from selfmark.points import FloatArray

# Points of an average adult face in millimeters; the keys are their indices in the 300-W scheme. x points to
# the right in the image, y down, and z toward the camera; the origin is between the eyes. In the comments,
# left and right are the person's. The values are rounded and symmetric. The outline of the face is left out,
# because some annotations follow its visible edge instead of a fixed place on the head.
FACE = {
    36: (-45.0, 0.0, -5.0),  # outer corner of the right eye
    39: (-17.0, 0.0, 0.0),  # inner corner
    42: (17.0, 0.0, 0.0),  # inner corner of the left eye
    45: (45.0, 0.0, -5.0),  # outer corner
    27: (0.0, -5.0, 12.0),  # bridge of the nose
    30: (0.0, 38.0, 35.0),  # tip of the nose
    33: (0.0, 46.0, 22.0),  # base of the nose
    48: (-25.0, 68.0, 15.0),  # right corner of the mouth
    54: (25.0, 68.0, 15.0),  # left corner
}
YAW_RANGES = ("0-30", "30-60", "60-90")  # degrees; the last range also includes angles beyond 90


def estimate_yaw(xy: FloatArray) -> FloatArray:
    """Estimate the yaw of heads in degrees, [N]; positive if the nose points to the right in the image.

    First, fit an affine camera (a 2 x 3 matrix) to the nine points of `FACE` by least squares. Then replace
    this matrix by the nearest matrix with orthonormal rows. These two rows and their cross product are the
    rows of a rotation matrix. The rotation turns the head by yaw (about its vertical axis), then by pitch,
    then by roll. The third row is therefore (-sin(yaw) cos(pitch), sin(pitch), cos(yaw) cos(pitch)). In the
    ratio of its first and last entries, cos(pitch) cancels. So this ratio and the signs of the two entries
    determine yaw independently of pitch, roll, position and size.

    Args:
        xy: [N, 68, 2] points of the 300-W scheme in pixels.
    """
    shape = np.array(list(FACE.values()))
    shape -= shape.mean(axis=0)
    points = xy[:, list(FACE)].astype(np.float64)
    points -= points.mean(axis=1, keepdims=True)
    cameras = np.swapaxes(np.linalg.pinv(shape) @ points, 1, 2)  # [N, 2, 3]
    left, _, right = np.linalg.svd(cameras, full_matrices=False)
    rows = left @ right  # orthonormal
    third_row = np.cross(rows[:, 0], rows[:, 1])
    yaw: FloatArray = np.degrees(np.arctan2(-third_row[:, 0], third_row[:, 2]))
    return yaw


def classify_yaw(yaw: FloatArray) -> tuple[str, ...]:
    """Return the entry of `YAW_RANGES` that contains the absolute yaw of each head.

    >>> classify_yaw(np.array([0.0, -29.9, 30.0, -59.9, 60.0, 120.0]))
    ('0-30', '0-30', '30-60', '30-60', '60-90', '60-90')
    """
    return tuple(YAW_RANGES[min(int(abs(angle) // 30), 2)] for angle in yaw.tolist())
