"""Model the demo animal: a seated, jointed toy made of ellipsoids, with landmarks on its surface.

For the animal and for the camera, x points to the right of the picture, y down, and z away from the viewer.
The animal faces the viewer (-z), so its own left is +x. Angles are in radians.

The animal is symmetric under x -> -x. Limbs are defined for the left side and mirrored for the right side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

LEFT, MIDDLE, RIGHT = 1, 0, -1
FLIP = np.array([-1.0, 1.0, 1.0])  # multiply coordinates by this to mirror them

# An anchor is the position of a landmark and of its painted mark, as (part, direction in the part's unit
# sphere). Paired anchors are given for the left side.
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
    """Return the anchor of a landmark on its part's unit sphere, as a unit vector [3]."""
    direction = np.array({**PAIRED, **SINGLE}[name][1])
    unit: Array = direction / np.linalg.norm(direction)
    return unit


NAMES: tuple[str, ...] = (*(f"{side}_{name}" for name in PAIRED for side in ("left", "right")), *SINGLE)
# Mirror partner of each landmark. Left and right landmarks alternate, so index ^ 1 is the partner.
FLIP_IDX: tuple[int, ...] = (
    *(index ^ 1 for index in range(2 * len(PAIRED))),
    *range(2 * len(PAIRED), len(NAMES)),
)


@dataclass(frozen=True)
class Pose:
    """Joint angles in radians. Paired joints have two rows, for left and right.

    In a symmetric pose, the two rows are equal.

    Attributes:
        view: [3] yaw, pitch, roll of the whole animal.
        head: [3] yaw, pitch, roll relative to the body.
        ears: [2, 2] outward tilt, rotation about the ear's axis.
        arms: [2, 3] sideways lift, forward swing, elbow bend.
        legs: [2, 2] spread, tilt of the sole.
        tail: [2] swing to the left, lift.
    """

    view: Array
    head: Array
    ears: Array
    arms: Array
    legs: Array
    tail: Array

    def mirrored(self) -> Pose:
        """Return the mirrored pose: sides swapped, rotations about y and z reversed."""
        sign = np.array([-1.0, 1.0, -1.0])
        return Pose(
            self.view * sign,
            self.head * sign,
            self.ears[::-1],
            self.arms[::-1],
            self.legs[::-1],
            self.tail * np.array([-1.0, 1.0]),
        )


@dataclass(frozen=True)
class Proportions:
    """Scale factors of the parts, around 1."""

    head: Array  # [3] width, height, depth
    torso: Array  # [3] width, height, depth
    muzzle: float
    ear: float
    arm: float
    leg: float


@dataclass(frozen=True)
class Body:
    """P ellipsoids in the camera frame; their points are center + axes @ u for all u on the unit sphere.

    Attributes:
        kinds: P part names, e.g. "ear".
        sides: [P] LEFT, MIDDLE or RIGHT.
        centers: [P, 3] centers of the ellipsoids.
        axes: [P, 3, 3] semi-axes of the ellipsoids, one per column.
    """

    kinds: tuple[str, ...]
    sides: npt.NDArray[np.int64]
    centers: Array
    axes: Array

    def landmarks(self) -> tuple[npt.NDArray[np.int64], Array]:
        """Return the part of each landmark, [L] int64, and its position in the camera frame, [L, 3]."""
        parts = zip(self.kinds, self.sides.tolist(), strict=True)
        row_of = {part: row for row, part in enumerate(parts)}
        rows, points = [], []
        for name in NAMES:
            side_name, _, name_without_side = name.partition("_")
            base_name = name_without_side if name_without_side in PAIRED else name
            side = {"left": LEFT, "right": RIGHT}.get(side_name, MIDDLE)
            part = {**PAIRED, **SINGLE}[base_name][0]
            # Paired landmarks are on separate limbs, or both on a middle part, like the eyes on the head.
            row = row_of[part, side] if (part, side) in row_of else row_of[part, MIDDLE]
            direction = landmark_anchor(base_name) * (FLIP if side == RIGHT else 1.0)
            rows.append(row)
            points.append(self.centers[row] + self.axes[row] @ direction)
        return np.array(rows), np.array(points)


def rotation(yaw: float = 0.0, pitch: float = 0.0, roll: float = 0.0) -> Array:
    """Return the matrix that rotates by roll about z, then pitch about x, then yaw about y."""
    (cy, sy), (cp, sp), (cr, sr) = ((np.cos(a), np.sin(a)) for a in (yaw, pitch, roll))
    about_y = np.array([[cy, 0.0, -sy], [0.0, 1.0, 0.0], [sy, 0.0, cy]])
    about_x = np.array([[1.0, 0.0, 0.0], [0.0, cp, -sp], [0.0, sp, cp]])
    about_z = np.array([[cr, -sr, 0.0], [sr, cr, 0.0], [0.0, 0.0, 1.0]])
    matrix: Array = about_y @ about_x @ about_z
    return matrix


@dataclass(frozen=True)
class _Frame:
    """A coordinate frame, which maps a local point x to rotation @ x + origin."""

    rotation: Array
    origin: Array

    def child(self, rotation: Array, origin: tuple[float, float, float] | Array) -> _Frame:
        """Return a frame whose rotation and origin are given relative to this frame."""
        position = self.origin + self.rotation @ np.asarray(origin, dtype=float)
        return _Frame(self.rotation @ rotation, position)

    def mirrored(self) -> _Frame:
        """Return the frame mirrored at x = 0."""
        return _Frame(FLIP[:, None] * self.rotation * FLIP, FLIP * self.origin)


# An ellipsoid: its kind, the frame at its center, and its radii.
_Part = tuple[str, _Frame, tuple[float, float, float]]
_ROOT = _Frame(np.eye(3), np.zeros(3))
_NO_ROTATION = np.eye(3)


# The functions below build the left limbs and the middle parts, relative to the head or the torso.


def _build_face(radii: Array, snout: float) -> list[_Part]:
    width, height, depth = radii
    muzzle = _ROOT.child(_NO_ROTATION, (0.0, 0.36 * height, -0.74 * depth))
    return [
        ("head", _ROOT, (width, height, depth)),
        ("muzzle", muzzle, (0.46 * snout, 0.34, 0.36 * snout)),
        ("nose", muzzle.child(_NO_ROTATION, (0.0, -0.16 * height, -0.29 * snout)), (0.16, 0.115, 0.11)),
    ]


def _build_ear(angles: Array, size: float) -> list[_Part]:
    tilt, turn = angles
    root = _ROOT.child(rotation(yaw=turn, pitch=0.10, roll=tilt), (0.62, -0.62, 0.08))
    return [("ear", root.child(_NO_ROTATION, (0.0, -0.40 * size, 0.0)), (0.36, 0.56 * size, 0.17))]


def _build_arm(angles: Array, length: float) -> list[_Part]:
    lift, swing, bend = angles
    shoulder = _ROOT.child(rotation(pitch=swing, roll=-lift), (0.55, -0.50, -0.10))
    elbow = shoulder.child(rotation(pitch=bend), (0.0, 0.62 * length, 0.0))
    return [
        ("upper_arm", shoulder.child(_NO_ROTATION, (0.0, 0.28 * length, 0.0)), (0.25, 0.46 * length, 0.25)),
        ("forearm", elbow.child(_NO_ROTATION, (0.0, 0.18 * length, 0.0)), (0.22, 0.38 * length, 0.22)),
        ("paw", elbow.child(rotation(pitch=-0.6 * bend), (0.0, 0.50 * length, 0.0)), (0.25, 0.25, 0.22)),
    ]


def _build_leg(angles: Array, length: float) -> list[_Part]:
    spread, tilt = angles
    hip = _ROOT.child(rotation(yaw=spread), (0.40, 0.62, -0.10))
    ankle = hip.child(rotation(pitch=tilt), (0.0, 0.05, -0.80 * length))
    return [
        ("thigh", hip.child(_NO_ROTATION, (0.0, 0.0, -0.36 * length)), (0.31, 0.29, 0.52 * length)),
        ("foot", ankle.child(_NO_ROTATION, (0.0, -0.10, 0.0)), (0.30, 0.42, 0.22)),
    ]


def _build_tail(angles: Array) -> list[_Part]:
    swing, rise = angles
    root = _ROOT.child(rotation(yaw=swing, pitch=0.5 + rise), (0.0, 0.55, 0.45))
    tip = root.child(rotation(pitch=0.6), (0.0, 0.0, 0.95))
    return [
        ("tail", root.child(_NO_ROTATION, (0.0, 0.0, 0.50)), (0.16, 0.16, 0.62)),
        ("tail_tip", tip.child(_NO_ROTATION, (0.0, 0.0, 0.30)), (0.18, 0.18, 0.48)),
    ]


def build_body(proportions: Proportions, pose: Pose, distance: float) -> Body:
    """Assemble the animal, centered on the optical axis at `distance` units from the camera."""
    parts: list[tuple[int, _Part]] = []

    def attach(frame: _Frame, side: int, pieces: list[_Part]) -> None:
        for kind, local, radii in pieces:
            local = local.mirrored() if side == RIGHT else local
            parts.append((side, (kind, frame.child(local.rotation, local.origin), radii)))

    view = _Frame(rotation(*pose.view), np.array([0.0, 0.0, distance]))
    torso = view.child(_NO_ROTATION, (0.0, 0.75, 0.0))  # animals rotate about a point between head and torso
    neck = torso.child(rotation(*pose.head), (0.0, -0.62 * proportions.torso[1], -0.05))
    head = neck.child(_NO_ROTATION, (0.0, -0.72 * proportions.head[1], -0.10))
    attach(head, MIDDLE, _build_face(np.array([1.06, 0.92, 0.90]) * proportions.head, proportions.muzzle))
    attach(torso, MIDDLE, [("torso", _ROOT, tuple(np.array([0.74, 0.84, 0.62]) * proportions.torso))])
    attach(torso, MIDDLE, _build_tail(pose.tail))
    for row, side in enumerate((LEFT, RIGHT)):
        attach(head, side, _build_ear(pose.ears[row], proportions.ear))
        attach(torso, side, _build_arm(pose.arms[row], proportions.arm))
        attach(torso, side, _build_leg(pose.legs[row], proportions.leg))
    return Body(
        tuple(kind for _, (kind, _, _) in parts),
        np.array([side for side, _ in parts]),
        np.array([frame.origin for _, (_, frame, _) in parts]),
        np.array([frame.rotation * np.array(radii) for _, (_, frame, radii) in parts]),
    )
