"""Drawing landmarks on images. Images are uint8 RGB, points (x, y) with pixel centers at integers."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from selfmark.model.colors import palette, to_rgb
from selfmark.points import FloatArray

Picture = npt.NDArray[np.uint8]  # [H, W, 3]
Canvas = npt.NDArray[np.integer | np.floating]  # a picture while cv2 draws on it

_TILE = 384  # images are enlarged at least twofold, and until a side has about this many pixels
_CROP = 0.25  # side of a gallery crop, as a share of the image's
_SUBPIXEL = 4  # binary digits after the point in cv2's drawing coordinates
_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)


def draw_landmarks(
    image: Picture,
    xy: FloatArray,
    colors: Sequence[str] | None = None,
    skeleton: Sequence[tuple[int, int]] = (),
) -> Picture:
    """Enlarge an image [S, S, 3] and draw its landmarks [K, 2], numbered; those not finite are left out.

    Args:
        colors: "#rrggbb" of each landmark; None takes the usual ones.
        skeleton: pairs of landmarks to connect.
    """
    zoom = _zoom(image.shape[0])
    canvas = np.ascontiguousarray(cv2.resize(image, None, fx=zoom, fy=zoom, interpolation=cv2.INTER_CUBIC))
    fills = [to_rgb(color) for color in colors or palette(len(xy))]
    places = (xy + 0.5) * zoom - 0.5
    present = np.flatnonzero(np.isfinite(places).all(axis=1))
    radius = max(4, canvas.shape[0] // 75)
    for one, other in skeleton:
        if one in present and other in present:
            _line(canvas, places[one], places[other], radius // 2 + 2, _BLACK)
            _line(canvas, places[one], places[other], radius // 2, _WHITE)
    for index in present:
        _disc(canvas, places[index], radius + 2, _BLACK)
        _disc(canvas, places[index], radius + 1, _WHITE)
        _disc(canvas, places[index], radius, fills[index])
    for index in present:  # after all discs, so that no disc hides a number
        _number(canvas, places[index] + (radius + 2, -radius), str(index), canvas.shape[0] / _TILE)
    return canvas.astype(np.uint8)


def draw_contact_sheet(images: Picture, xy: FloatArray, columns: int) -> Picture:
    """Many images with their landmarks in one picture, row by row; empty places stay white.

    Args:
        images: [E, S, S, 3] uint8.
        xy: [E, K, 2] in pixels of the images.
        columns: Images per row, at least 1.
    """
    tiles = [draw_landmarks(image, points) for image, points in zip(images, xy, strict=True)]
    side, gap = _zoom(images.shape[1]) * images.shape[1], 4
    rows = -(-len(tiles) // columns)
    sheet = np.full((rows * (side + gap) - gap, columns * (side + gap) - gap, 3), 255, np.uint8)
    for index, tile in enumerate(tiles):
        top, left = index // columns * (side + gap), index % columns * (side + gap)
        sheet[top : top + side, left : left + side] = tile
    return sheet


def draw_landmark_gallery(
    images: Picture, xy: FloatArray, score: FloatArray, landmark: int, most: int, side: int, color: str
) -> list[tuple[int, Picture]]:
    """One landmark cut out of the images where it is surest, a ring around it.

    Args:
        images: [E, S, S, 3] uint8.
        xy: [E, K, 2] in pixels of the images.
        score: [E, K].
        landmark: Which of the K.
        most: Images shown at most.
        side: Pixels of a cut-out.
        color: "#rrggbb" of the ring.

    Returns:
        (row of the image, cut-out [side, side, 3]), highest score first; images without it are left out.
    """
    window = max(16, round(_CROP * images.shape[1]))
    middle = np.array([side / 2 - 0.5, side / 2 - 0.5])
    usable = np.isfinite(xy[:, landmark]).all(axis=1) & np.isfinite(score[:, landmark])
    order = sorted(np.flatnonzero(usable).tolist(), key=lambda row: -score[row, landmark])
    gallery = []
    for row in order[:most]:
        # Magnify about the landmark: it comes to lie in the middle of the cut-out, to a fraction of a pixel.
        zoom = side / window
        shift = middle - zoom * xy[row, landmark]
        matrix = np.array([[zoom, 0.0, shift[0]], [0.0, zoom, shift[1]]])
        cut = cv2.warpAffine(
            images[row], matrix, (side, side), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
        )
        _ring(cut, middle, side // 8, 4, _BLACK)
        _ring(cut, middle, side // 8, 2, to_rgb(color))
        gallery.append((row, cut.astype(np.uint8)))
    return gallery


def to_data_uri(picture: Picture, quality: int = 85) -> str:
    """A picture as JPEG inside a data: address, for pages that must not refer to other files."""
    _, encoded = cv2.imencode(
        ".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, quality]
    )
    return "data:image/jpeg;base64," + base64.b64encode(encoded.tobytes()).decode("ascii")


def _zoom(size: int) -> int:
    return max(2, round(_TILE / size))


def _fixed(place: FloatArray) -> tuple[int, int]:
    """cv2's fixed-point coordinates, so that a disc is centered to a sixteenth of a pixel."""
    x, y = np.round(np.clip(place, -1e4, 1e4) * 2**_SUBPIXEL).astype(int).tolist()
    return x, y


def _disc(canvas: Canvas, place: FloatArray, radius: float, color: tuple[int, ...]) -> None:
    cv2.circle(canvas, _fixed(place), int(radius * 2**_SUBPIXEL), color, -1, cv2.LINE_AA, _SUBPIXEL)


def _line(canvas: Canvas, one: FloatArray, other: FloatArray, width: int, color: tuple[int, ...]) -> None:
    cv2.line(canvas, _fixed(one), _fixed(other), color, max(width, 1), cv2.LINE_AA, _SUBPIXEL)


def _ring(
    canvas: Canvas,
    place: FloatArray,
    radius: float,
    width: int,
    color: tuple[int, ...],
) -> None:
    cv2.circle(canvas, _fixed(place), int(radius * 2**_SUBPIXEL), color, width, cv2.LINE_AA, _SUBPIXEL)


def _number(canvas: Canvas, place: FloatArray, text: str, zoom: float) -> None:
    x, y = np.round(np.clip(place, -1e4, 1e4)).astype(int).tolist()
    for color, width in ((_BLACK, 3), (_WHITE, 1)):
        cv2.putText(canvas, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, 0.5 * zoom, color, width, cv2.LINE_AA)
