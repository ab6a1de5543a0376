"""Define names and mirror partners of two sets of facial points: five points, and the 68 points of 300-W.

In the names of the five points, left means left in the image, as in the official lists. In the names of the
68 points, left means the person's left.
"""

from __future__ import annotations

from selfmark.errors import InputError

FIVE = ("left_eye", "right_eye", "nose", "left_mouth_corner", "right_mouth_corner")
FIVE_MIRROR = (1, 0, 2, 4, 3)

_PARTS = {
    "jaw": 17, "right_brow": 5, "left_brow": 5, "nose_bridge": 4, "nostril": 5, "right_eye": 6, "left_eye": 6,
    "mouth_outer": 12, "mouth_inner": 8,
}  # fmt: skip
SIXTY_EIGHT = tuple(f"{part}_{number}" for part, count in _PARTS.items() for number in range(count))
SIXTY_EIGHT_MIRROR = (
    *range(16, -1, -1),  # jaw, from ear to ear
    *range(26, 16, -1),  # both brows
    *range(27, 31),  # bridge of the nose, on the symmetry axis
    *range(35, 30, -1),  # nostrils
    *(45, 44, 43, 42, 47, 46),  # eyes, along the upper lid and back along the lower one
    *(39, 38, 37, 36, 41, 40),
    *range(54, 47, -1),  # outer contour of the mouth
    *range(59, 54, -1),
    *range(64, 59, -1),  # inner contour
    *range(67, 64, -1),
)


def get_face_point_names(count: int, where: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return names and mirror partners of 5 or 68 facial points.

    Raises:
        InputError: The count is neither 5 nor 68; the message begins with `where`.
    """
    if count == len(FIVE):
        return FIVE, FIVE_MIRROR
    if count == len(SIXTY_EIGHT):
        return SIXTY_EIGHT, SIXTY_EIGHT_MIRROR
    raise InputError(
        f"{where}: the names of its {count} points per image are unknown; use 5 or 68 points, or a COCO file "
        "with names and 'flip_idx'"
    )
