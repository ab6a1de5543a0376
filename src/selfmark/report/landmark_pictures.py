"""Draw pictures of landmarks for the report: examples, contact sheets and galleries.

Images are uint8 RGB. Points are (x, y) with pixel centers at integers.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from selfmark.draw.primitives import BLACK, WHITE, draw_disc, draw_line, draw_ring, draw_text
from selfmark.model.colors import palette, to_rgb
from selfmark.points import FloatArray

Picture = npt.NDArray[np.uint8]  # one picture [H, W, 3], or several pictures [N, H, W, 3]

_TILE_SIDE = 384  # approximate side of an enlarged image, pixels; images are enlarged at least twofold
_CROP_FRACTION = 0.25  # side of a gallery crop, as a fraction of the image side
_GAP = 4  # pixels between the images of a contact sheet


def draw_landmarks(
    image: Picture,
    xy: FloatArray,
    colors: Sequence[str] | None = None,
    skeleton: Sequence[tuple[int, int]] = (),
) -> Picture:
    """Enlarge an image and draw its numbered landmarks.

    Args:
        image: [S, S, 3] uint8.
        xy: [K, 2] landmarks in pixels of the image; landmarks that are not finite are left out.
        colors: "#rrggbb" of each landmark; None uses the default palette.
        skeleton: Pairs of landmarks to connect.
    """
    zoom = _choose_zoom(image.shape[0])
    enlarged = cv2.resize(image, None, fx=zoom, fy=zoom, interpolation=cv2.INTER_CUBIC)
    canvas = np.ascontiguousarray(enlarged, dtype=np.uint8)
    fills = [to_rgb(color) for color in colors or palette(len(xy))]
    centers = (xy + 0.5) * zoom - 0.5
    present = np.flatnonzero(np.isfinite(centers).all(axis=1))
    radius = max(4, canvas.shape[0] // 75)
    for a, b in skeleton:
        if a in present and b in present:
            draw_line(canvas, centers[a], centers[b], radius // 2 + 2, BLACK)
            draw_line(canvas, centers[a], centers[b], radius // 2, WHITE)
    for index in present:
        draw_disc(canvas, centers[index], radius + 2, BLACK)
        draw_disc(canvas, centers[index], radius + 1, WHITE)
        draw_disc(canvas, centers[index], radius, fills[index])
    for index in present:  # Draw the numbers after all discs, so that no disc hides a number.
        x, y = np.round(np.clip(centers[index] + (radius + 2, -radius), -1e4, 1e4)).astype(int).tolist()
        draw_text(canvas, str(index), (x, y), 0.5 * canvas.shape[0] / _TILE_SIDE, outline=3)
    return canvas


def draw_contact_sheet(images: Picture, xy: FloatArray, columns: int) -> Picture:
    """Draw many images with their landmarks in one picture, row by row; unused cells stay white.

    Args:
        images: [E, S, S, 3] uint8.
        xy: [E, K, 2] landmarks in pixels of the images.
        columns: Images per row, at least 1.
    """
    tiles = [draw_landmarks(image, points) for image, points in zip(images, xy, strict=True)]
    side = _choose_zoom(images.shape[1]) * images.shape[1]
    rows = math.ceil(len(tiles) / columns)
    sheet = np.full((rows * (side + _GAP) - _GAP, columns * (side + _GAP) - _GAP, 3), 255, np.uint8)
    for index, tile in enumerate(tiles):
        top, left = index // columns * (side + _GAP), index % columns * (side + _GAP)
        sheet[top : top + side, left : left + side] = tile
    return sheet


def draw_landmark_gallery(
    images: Picture, xy: FloatArray, score: FloatArray, *, color: str, max_crops: int, side: int
) -> list[tuple[int, Picture]]:
    """Crop the images around one landmark, highest score first, and draw a ring around the landmark.

    Args:
        images: [E, S, S, 3] uint8.
        xy: [E, 2] the landmark in pixels of each image.
        score: [E] score of the landmark in each image.
        color: "#rrggbb" of the ring.
        max_crops: Maximum number of crops.
        side: Side of a crop in pixels.

    Returns:
        A pair for each chosen image: the index of the image, and the crop [side, side, 3]. Images without the
        landmark are left out.
    """
    window = max(16, round(_CROP_FRACTION * images.shape[1]))
    center = np.array([side / 2 - 0.5, side / 2 - 0.5])
    is_usable = np.isfinite(xy).all(axis=1) & np.isfinite(score)
    order = sorted(np.flatnonzero(is_usable).tolist(), key=lambda row: -score[row])
    gallery = []
    zoom = side / window
    for row in order[:max_crops]:
        shift = center - zoom * xy[row]  # puts the landmark exactly at the center of the crop
        matrix = np.array([[zoom, 0.0, shift[0]], [0.0, zoom, shift[1]]])
        warped = cv2.warpAffine(
            images[row], matrix, (side, side), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
        )
        crop = np.ascontiguousarray(warped, dtype=np.uint8)
        draw_ring(crop, center, side // 8, 4, BLACK)
        draw_ring(crop, center, side // 8, 2, to_rgb(color))
        gallery.append((row, crop))
    return gallery


def to_data_uri(picture: Picture, quality: int = 85) -> str:
    """Encode a picture as JPEG in a data URI, for pages that must not refer to other files."""
    _, encoded = cv2.imencode(
        ".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, quality]
    )
    return "data:image/jpeg;base64," + base64.b64encode(encoded.tobytes()).decode("ascii")


def _choose_zoom(size: int) -> int:
    """Return the factor by which an image of `size` x `size` pixels is enlarged."""
    return max(2, round(_TILE_SIDE / size))
