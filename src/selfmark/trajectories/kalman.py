"""Smooth the positions of a landmark with a Kalman smoother of constant velocity.

In this model, the acceleration is white noise, and positions are measured with Gaussian noise. The smoother
of Rauch, Tung and Striebel computes the most likely positions and velocities in one pass forward and one pass
back. Here, they are computed as the solution of a linear system with a banded matrix. Both ways take time
linear in the number of frames, but scipy solves the system without a loop in Python.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.linalg import solveh_banded

Floats = npt.NDArray[np.float64]

_BANDS = 4  # the main diagonal and three above it, which couple position and velocity of adjacent frames
_PRIOR = 1e-9  # weak prior on the first velocity, so that a single measurement makes the system solvable
_MIN_STEPS = 1e-3  # shortest time constant, in median steps; a shorter one makes numbers underflow
_MIN_STEP = 1e-4  # shortest step, in median steps; a shorter one makes the matrix singular in gaps
_MAX_STIFFNESS = 1e11  # largest entry allowed in the matrix; a measurement of weight 1 adds 1


def smooth_kalman(xy: Floats, weight: Floats, seconds: Floats, time_constant: float) -> Floats:
    """Return the most likely positions of the constant-velocity model, given all measurements.

    Args:
        xy: [T, 2] measured positions.
        weight: [T] precision of each measurement, relative to that of a measurement with the noise r (see
            `time_constant`); 0 if there is no measurement.
        seconds: [T] times, strictly ascending.
        time_constant: movements much shorter than this many seconds are treated as noise. This time sets the
            ratio of acceleration noise q to measurement noise r: q / r = step / time_constant^4, where
            `step` is the median time between two rows. The time constant is limited to
            between 0.001 and about 300 steps.

    Returns:
        [T, 2] positions, including rows without a measurement.
    """
    steps = np.diff(seconds)
    if len(steps):
        steps, time_constant = _limit_stiffness(steps, time_constant)
    ratio = float(np.median(steps)) / time_constant**4 if len(steps) else 1.0  # q / r
    # The unknowns are position 0, velocity 0, position 1, velocity 1, ...
    bands, right = np.zeros((_BANDS, 2 * len(xy))), np.zeros((2 * len(xy), 2))
    bands[-1, ::2] = weight
    bands[-1, 1] += _PRIOR * time_constant**2
    right[::2] = np.where(weight[:, None] > 0, xy, 0) * weight[:, None]
    # The state s_i is the position and velocity in frame i. The step from frame i to i + 1 adds the term
    # d' (Q^-1 / ratio) d to the sum of squares, with d = F s_i - s_(i+1). Here, F moves the position by
    # step * velocity, and Q^-1 = [[12 / step^3, -6 / step^2], [-6 / step^2, 4 / step]].
    # In the comments below, "p with q" means that the entries couple the unknowns p and q.
    a, b, c = (12 / steps**3 / ratio, 6 / steps**2 / ratio, 4 / steps / ratio)
    bands[-1, :-2:2] += a  # position i with itself
    bands[-1, 2::2] += a
    bands[-1, 1:-2:2] += c  # velocity i with itself
    bands[-1, 3::2] += c
    bands[-2, 1:-2:2] += b  # position i with velocity i
    bands[-2, 3::2] -= b
    bands[-2, 2::2] -= b  # velocity i with position i + 1
    bands[-3, 2::2] -= a  # position i with position i + 1
    bands[-3, 3::2] += c / 2  # velocity i with velocity i + 1
    bands[-4, 3::2] += b  # position i with velocity i + 1
    return np.asarray(solveh_banded(bands, right)[::2], dtype=np.float64)


def _limit_stiffness(steps: Floats, time_constant: float) -> tuple[Floats, float]:
    """Lengthen very short steps and limit the time constant, so that float64 is precise enough.

    The largest entries of the matrix are close to a = 12 / step^3 / ratio. If two frames are less than a
    microsecond apart, or the time constant is thousands of steps long, rounding errors of `a` would exceed
    the weights of the measurements.
    """
    step = float(np.median(steps))
    time_constant = float(np.clip(time_constant, step * _MIN_STEPS, step * (_MAX_STIFFNESS / 12) ** 0.25))
    shortest_step = (12 * (time_constant / step) ** 4 / _MAX_STIFFNESS) ** (1 / 3)
    return np.maximum(steps, step * max(_MIN_STEP, shortest_step)), time_constant
