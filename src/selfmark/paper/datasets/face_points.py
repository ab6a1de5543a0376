"""The two sets of points that faces are annotated with: five, and the 68 of 300-W.

Of the five, left is left in the image of an upright face, as the official lists have it; of the 68, left is
the person's own.
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
    *range(16, -1, -1),  # the jaw from ear to ear
    *range(26, 16, -1),  # both brows, together from side to side
    *range(27, 31),  # the bridge lies in the middle
    *range(35, 30, -1),
    *(45, 44, 43, 42, 47, 46),  # eyes run along the upper lid, then back along the lower one
    *(39, 38, 37, 36, 41, 40),
    *range(54, 47, -1),  # upper lip, outside
    *range(59, 54, -1),
    *range(64, 59, -1),
    *range(67, 64, -1),
)


def face_point_names(count: int, where: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names and mirror partners of so many points of a face."""
    if count == len(FIVE):
        return FIVE, FIVE_MIRROR
    if count == len(SIXTY_EIGHT):
        return SIXTY_EIGHT, SIXTY_EIGHT_MIRROR
    raise InputError(
        f"{where}: each image has {count} points, which could be any; give 5 or 68, or a COCO file that "
        "names them and has 'flip_idx'"
    )
