"""The demo animal: a seated, jointed toy built of ellipsoids, and where its landmarks lie on them.

Axes, of the object and of the camera alike: x to the right of the picture, y down, z away from the viewer.
The animal faces the viewer (-z), so its own left is +x. Angles are in radians.

Everything is symmetric under x -> -x: limbs are described once, for the left, and mirrored for the right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

LEFT, MIDDLE, RIGHT = 1, 0, -1
FLIP = np.array([-1.0, 1.0, 1.0])  # the mirror, as a factor on coordinates

# Anchors: the places that carry both a painted mark and a landmark, as (part, direction in the part's unit
# sphere). Paired ones are given for the left. One table, so that paint and landmarks cannot drift apart.
PAIRED: dict[str, tuple[str, tuple[float, float, float]]] = {
    "eye": ("head", (0.42, -0.06, -0.90)),
    "cheek": ("head", (0.80, 0.38, -0.47)),
    "ear_tip": ("ear", (0.0, -0.86, -0.51)),
    "ear_base": ("ear", (0.0, 0.30, -0.95)),
    "mouth": ("muzzle", (0.62, 0.36, -0.70)),
    "shoulder": ("upper_arm", (0.35, -0.45, -0.82)),
    "paw": ("paw", (0.0, 0.20, -0.98)),
    "foot": ("foot", (0.0, 0.10, -0.99)),
}
SINGLE: dict[str, tuple[str, tuple[float, float, float]]] = {
    "forehead": ("head", (0.0, -0.70, -0.71)),
    "nose": ("nose", (0.0, -0.20, -0.98)),
    "chest": ("torso", (0.0, -0.22, -0.97)),
    "belly": ("torso", (0.0, 0.42, -0.91)),
}


def landmark_anchor(name: str) -> Array:
    """Where a mark sits on its part, as a unit vector [3]."""
    direction = np.array({**PAIRED, **SINGLE}[name][1])
    unit: Array = direction / np.linalg.norm(direction)
    return unit


NAMES: tuple[str, ...] = (*(f"{side}_{name}" for name in PAIRED for side in ("left", "right")), *SINGLE)
FLIP_IDX: tuple[int, ...] = (
    *(index ^ 1 for index in range(2 * len(PAIRED))),
    *range(2 * len(PAIRED), len(NAMES)),
)


@dataclass(frozen=True)
class Pose:
    """Joint angles. Rows of the paired joints are left, right, each in its own side's terms.

    view: [3]    yaw, pitch, roll of the whole animal before the camera
    head: [3]    yaw, pitch, roll against the body
    ears: [2, 2] lean outwards, turn about the ear's length
    arms: [2, 3] lift sideways, swing forwards, bend of the elbow
    legs: [2, 2] spread, tilt of the sole
    tail: [2]    swing to the left, rise
    """

    view: Array
    head: Array
    ears: Array
    arms: Array
    legs: Array
    tail: Array

    def mirrored(self) -> Pose:
        """The pose seen in a mirror: sides exchanged, turns about y and z reversed."""
        turn = np.array([-1.0, 1.0, -1.0])
        return Pose(
            self.view * turn,
            self.head * turn,
            self.ears[::-1],
            self.arms[::-1],
            self.legs[::-1],
            self.tail * np.array([-1.0, 1.0]),
        )


@dataclass(frozen=True)
class Proportions:
    """Factors around 1 that make one animal differ from the next."""

    head: Array  # [3] width, height, depth
    torso: Array  # [3]
    muzzle: float
    ear: float
    arm: float
    leg: float


@dataclass(frozen=True)
class Body:
    """P ellipsoids before the camera: the points center + axes @ u over the unit sphere.

    kinds:   P part names, e.g. "ear"
    sides:   [P] LEFT, MIDDLE or RIGHT
    centers: [P, 3]
    axes:    [P, 3, 3], a semi-axis in each column
    """

    kinds: tuple[str, ...]
    sides: npt.NDArray[np.int64]
    centers: Array
    axes: Array

    def landmarks(self) -> tuple[npt.NDArray[np.int64], Array]:
        """The part each landmark lies on ([L] rows of this body) and its place ([L, 3] camera frame)."""
        parts = zip(self.kinds, self.sides.tolist(), strict=True)
        where = {part: row for row, part in enumerate(parts)}
        rows, places = [], []
        for name in NAMES:
            side_name, _, rest = name.partition("_")
            base = rest if rest in PAIRED else name
            side = {"left": LEFT, "right": RIGHT}.get(side_name, MIDDLE)
            part = {**PAIRED, **SINGLE}[base][0]
            # A pair on a middle part (the eyes) shares that part, one mirrored; on limbs each has its own.
            row = where[part, side] if (part, side) in where else where[part, MIDDLE]
            direction = landmark_anchor(base) * (FLIP if side == RIGHT else 1.0)
            rows.append(row)
            places.append(self.centers[row] + self.axes[row] @ direction)
        return np.array(rows), np.array(places)


def rotation(yaw: float = 0.0, pitch: float = 0.0, roll: float = 0.0) -> Array:
    """Turn by roll about z, then pitch about x, then yaw about y."""
    (cy, sy), (cp, sp), (cr, sr) = ((np.cos(a), np.sin(a)) for a in (yaw, pitch, roll))
    about_y = np.array([[cy, 0.0, -sy], [0.0, 1.0, 0.0], [sy, 0.0, cy]])
    about_x = np.array([[1.0, 0.0, 0.0], [0.0, cp, -sp], [0.0, sp, cp]])
    about_z = np.array([[cr, -sr, 0.0], [sr, cr, 0.0], [0.0, 0.0, 1.0]])
    turned: Array = about_y @ about_x @ about_z
    return turned


@dataclass(frozen=True)
class _Frame:
    """A place parts hang on: x -> turn @ x + origin."""

    turn: Array
    origin: Array

    def then(self, turn: Array, origin: tuple[float, float, float] | Array) -> _Frame:
        return _Frame(self.turn @ turn, self.origin + self.turn @ np.asarray(origin, dtype=float))

    def mirrored(self) -> _Frame:
        return _Frame(FLIP[:, None] * self.turn * FLIP, FLIP * self.origin)


# One ellipsoid in its joint's frame: its kind, the frame of its center, its radii.
_Part = tuple[str, _Frame, tuple[float, float, float]]
_ROOT = _Frame(np.eye(3), np.zeros(3))
_STILL = np.eye(3)


def _face(radii: Array, snout: float) -> list[_Part]:
    wide, high, deep = radii
    muzzle = _ROOT.then(_STILL, (0.0, 0.36 * high, -0.74 * deep))
    return [
        ("head", _ROOT, (wide, high, deep)),
        ("muzzle", muzzle, (0.46 * snout, 0.34, 0.36 * snout)),
        ("nose", muzzle.then(_STILL, (0.0, -0.16 * high, -0.29 * snout)), (0.16, 0.115, 0.11)),
    ]


def _ear(angles: Array, size: float) -> list[_Part]:
    lean, turn = angles
    root = _ROOT.then(rotation(yaw=turn, pitch=0.10, roll=lean), (0.62, -0.62, 0.08))
    return [("ear", root.then(_STILL, (0.0, -0.40 * size, 0.0)), (0.36, 0.56 * size, 0.17))]


def _arm(angles: Array, length: float) -> list[_Part]:
    lift, swing, bend = angles
    shoulder = _ROOT.then(rotation(pitch=swing, roll=-lift), (0.55, -0.50, -0.10))
    elbow = shoulder.then(rotation(pitch=bend), (0.0, 0.62 * length, 0.0))
    return [
        ("upper_arm", shoulder.then(_STILL, (0.0, 0.28 * length, 0.0)), (0.25, 0.46 * length, 0.25)),
        ("forearm", elbow.then(_STILL, (0.0, 0.18 * length, 0.0)), (0.22, 0.38 * length, 0.22)),
        ("paw", elbow.then(rotation(pitch=-0.6 * bend), (0.0, 0.50 * length, 0.0)), (0.25, 0.25, 0.22)),
    ]


def _leg(angles: Array, length: float) -> list[_Part]:
    spread, tilt = angles
    hip = _ROOT.then(rotation(yaw=spread), (0.40, 0.62, -0.10))
    ankle = hip.then(rotation(pitch=tilt), (0.0, 0.05, -0.80 * length))
    return [
        ("thigh", hip.then(_STILL, (0.0, 0.0, -0.36 * length)), (0.31, 0.29, 0.52 * length)),
        ("foot", ankle.then(_STILL, (0.0, -0.10, 0.0)), (0.30, 0.42, 0.22)),
    ]


def _tail(angles: Array) -> list[_Part]:
    swing, rise = angles
    root = _ROOT.then(rotation(yaw=swing, pitch=0.5 + rise), (0.0, 0.55, 0.45))
    tip = root.then(rotation(pitch=0.6), (0.0, 0.0, 0.95))
    return [
        ("tail", root.then(_STILL, (0.0, 0.0, 0.50)), (0.16, 0.16, 0.62)),
        ("tail_tip", tip.then(_STILL, (0.0, 0.0, 0.30)), (0.18, 0.18, 0.48)),
    ]


def build_body(proportions: Proportions, pose: Pose, distance: float) -> Body:
    """Put the animal together, its middle `distance` units from the camera on the optical axis."""
    parts: list[tuple[int, _Part]] = []

    def hang(frame: _Frame, side: int, pieces: list[_Part]) -> None:
        for kind, local, radii in pieces:
            placed = local.mirrored() if side == RIGHT else local
            parts.append((side, (kind, frame.then(placed.turn, placed.origin), radii)))

    view = _Frame(rotation(*pose.view), np.array([0.0, 0.0, distance]))
    torso = view.then(_STILL, (0.0, 0.75, 0.0))  # turns about a point between head and body
    head = torso.then(rotation(*pose.head), (0.0, -0.62 * proportions.torso[1], -0.05)).then(
        _STILL, (0.0, -0.72 * proportions.head[1], -0.10)
    )
    hang(head, MIDDLE, _face(np.array([1.06, 0.92, 0.90]) * proportions.head, proportions.muzzle))
    hang(torso, MIDDLE, [("torso", _ROOT, tuple(np.array([0.74, 0.84, 0.62]) * proportions.torso))])
    hang(torso, MIDDLE, _tail(pose.tail))
    for row, side in enumerate((LEFT, RIGHT)):
        hang(head, side, _ear(pose.ears[row], proportions.ear))
        hang(torso, side, _arm(pose.arms[row], proportions.arm))
        hang(torso, side, _leg(pose.legs[row], proportions.leg))
    return Body(
        tuple(kind for _, (kind, _, _) in parts),
        np.array([side for side, _ in parts]),
        np.array([frame.origin for _, (_, frame, _) in parts]),
        np.array([frame.turn * np.array(radii) for _, (_, frame, radii) in parts]),
    )
