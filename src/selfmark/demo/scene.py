"""Generate the demo data set: pictures of a jointed toy animal with exact landmarks.

Each picture shows an animal with random proportions, colors, pose, view, light and background. In one of five
pictures, an object may hide a part of the animal. Picture i depends only on i, the seed and the size.

>>> scene = generate_scene(2, size=64)
>>> scene.images.shape, scene.xy.shape == (2, len(scene.names), 2)
((2, 64, 64, 3), True)
"""

from __future__ import annotations

import colorsys
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.demo import backdrop, render
from selfmark.demo.shape import FLIP_IDX, NAMES, Array, Body, Pose, Proportions, build_body
from selfmark.errors import InputError
from selfmark.images.picture_files import write_png
from selfmark.run.files import write_text
from selfmark.run.guarded_files import make_folders

DISTANCE = 9.0  # distance from camera to animal; the animal is about 4 high, so perspective is mild
COAT_HUES = (0.02, 0.14)  # range of hues of the coat, from reddish brown to sand
OCCLUDED_FRACTION = 0.2  # fraction of the pictures with an occluder
FILL = (0.58, 0.88)  # range of the longer side of the animal's bounding box, relative to the picture's side


@dataclass(frozen=True)
class Scene:
    """A whole generated data set: N unrelated pictures and their exact landmarks.

    Attributes:
        images: [N, S, S, 3] uint8 pictures, RGB.
        xy: [N, L, 2] float32, exact projections of the landmarks in pixels, with pixel centers at integers.
        visible: [N, L] bool, True if inside the picture and hidden neither by the animal nor by an occluder.
        names: L names; "left" is the animal's own left.
        flip_idx: Mirror partner of each landmark.
    """

    images: npt.NDArray[np.uint8]
    xy: npt.NDArray[np.float32]
    visible: npt.NDArray[np.bool_]
    names: tuple[str, ...]
    flip_idx: tuple[int, ...]


@dataclass(frozen=True)
class Subject:
    """An animal, its colors, the camera and the light."""

    body: Body
    camera: render.Camera
    light: render.Light
    palette: Array


def generate_scene(count: int, size: int = 128, seed: int = 0) -> Scene:
    """Generate a data set of `count` unrelated pictures of `size` x `size` pixels.

    Args:
        count: Number of pictures, at least 1.
        size: Side of a picture, at least 32 pixels.
        seed: The same seed gives the same pictures; a larger count only adds pictures.
    """
    if count < 1:
        raise InputError(f"the demo needs at least 1 picture, not {count}")
    if size < 32:
        raise InputError(f"the demo needs pictures of at least 32 pixels, not {size}")
    images = np.empty((count, size, size, 3), np.uint8)
    xy = np.empty((count, len(NAMES), 2), np.float32)
    visible = np.empty((count, len(NAMES)), bool)
    for index in range(count):
        images[index], xy[index], visible[index] = _draw_picture(np.random.default_rng([seed, index]), size)
    return Scene(images, xy, visible, NAMES, FLIP_IDX)


def write_scene(scene: Scene, folder: Path) -> Path:
    """Write the pictures to `folder`/images and the landmarks to `folder`/labels.json.

    The labels are COCO keypoints, with file names relative to the images folder. Visible landmarks have v=2,
    hidden ones v=1.

    Returns:
        Path of labels.json.
    """
    pictures = folder / "images"
    make_folders(pictures)
    size = scene.images.shape[1]
    images, annotations = [], []
    for index, (image, xy, visible) in enumerate(zip(scene.images, scene.xy, scene.visible, strict=True)):
        name = f"{index:06d}.png"
        write_png(image, pictures / name)
        low, high = xy.min(axis=0) + 0.5, xy.max(axis=0) + 0.5  # boxes are measured from pixel corners
        points = [
            (round(float(x), 4), round(float(y), 4), 2 if seen else 1)
            for (x, y), seen in zip(xy, visible, strict=True)
        ]
        box = [round(float(value), 4) for value in (*low, *(high - low))]
        images.append({"id": index + 1, "file_name": name, "width": size, "height": size})
        annotations.append(
            {
                "id": index + 1,
                "image_id": index + 1,
                "category_id": 1,
                "keypoints": [value for point in points for value in point],
                "num_keypoints": len(points),
                "bbox": box,
                "area": round(box[2] * box[3], 4),
                "iscrowd": 0,
            }
        )
    category = {
        "id": 1,
        "name": "toy",
        "supercategory": "animal",
        "keypoints": list(scene.names),
        "skeleton": [],
        "flip_idx": list(scene.flip_idx),
        "normaliser": "bbox_sqrt_area",
    }
    labels = folder / "labels.json"
    content = {"images": images, "annotations": annotations, "categories": [category]}
    write_text(json.dumps(content), labels)
    return labels


def _draw_picture(
    rng: np.random.Generator, size: int
) -> tuple[npt.NDArray[np.uint8], Array, npt.NDArray[np.bool_]]:
    """Draw one image [S, S, 3]; also return its landmarks [L, 2] and whether each is visible [L]."""
    subject = random_subject(rng, size)
    color, coverage = render.render(subject.body, subject.camera, subject.light, subject.palette, size)
    xy, visible = render.project_landmarks(subject.body, subject.camera)
    image = color + (1.0 - coverage[..., None]) * backdrop.draw_clutter(rng, size)
    if rng.random() < OCCLUDED_FRACTION:
        occluder = backdrop.random_occluder(rng, size, position=xy[rng.integers(len(xy))])
        grid = render.pixel_grid(size, render.OVERSAMPLE)
        positions = np.stack(np.meshgrid(grid, grid), axis=-1)
        hidden = render.average_rays(occluder.covers(positions).astype(float), size)
        pixels = np.stack(np.meshgrid(np.arange(size), np.arange(size)), axis=-1).astype(float)
        image += hidden[..., None] * (occluder.color(pixels) - image)
        visible &= ~occluder.covers(xy)
    visible &= np.all((xy >= -0.5) & (xy < size - 0.5), axis=1)
    exposure, noise = rng.uniform(0.85, 1.1), rng.uniform(0.004, 0.015)
    image = exposure * image + rng.normal(0.0, noise, image.shape)
    return np.round(255.0 * np.clip(image, 0.0, 1.0)).astype(np.uint8), xy, visible


def random_subject(rng: np.random.Generator, size: int) -> Subject:
    """Draw a random animal whose bounding box is inside the picture, with a random camera and light."""
    body = build_body(_draw_proportions(rng), _draw_pose(rng), DISTANCE)
    boxes = render.compute_part_boxes(body)
    low, high = boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)
    focal = rng.uniform(*FILL) * size / (high - low).max()
    space = size - focal * (high - low)  # pixels beside the animal, along x and y
    # Pixel centers are at integers, so the picture starts at -0.5.
    corner = rng.uniform(0.1, 0.9, 2) * space - 0.5
    camera = render.Camera(focal, corner - focal * low)
    lamp = np.array([rng.uniform(-1, 1), rng.uniform(-1.2, 0.4), -1.0])
    light = render.Light(lamp / np.linalg.norm(lamp), rng.uniform(0.25, 0.5), rng.uniform(0.05, 0.35))
    return Subject(body, camera, light, _draw_palette(rng))


def _draw_proportions(rng: np.random.Generator) -> Proportions:
    """Draw random proportions."""
    return Proportions(
        head=rng.uniform(0.93, 1.07, 3),
        torso=rng.uniform(0.90, 1.12, 3),
        muzzle=rng.uniform(0.88, 1.12),
        ear=rng.uniform(0.80, 1.25),
        arm=rng.uniform(0.90, 1.15),
        leg=rng.uniform(0.85, 1.10),
    )


def _draw_pose(rng: np.random.Generator) -> Pose:
    """Draw a random pose."""

    def random_angles(low: list[float], high: list[float], rows: int | None = None) -> Array:
        """Draw uniform angles in radians between limits in degrees: [A], or [rows, A]."""
        shape = (len(low),) if rows is None else (rows, len(low))
        return np.radians(rng.uniform(low, high, shape))

    return Pose(
        view=random_angles([-45, -20, -20], [45, 20, 20]),
        head=random_angles([-15, -10, -12], [15, 10, 12]),
        ears=random_angles([15, -15], [55, 30], rows=2),
        arms=random_angles([5, 0, 0], [75, 60, 70], rows=2),
        legs=random_angles([8, -20], [35, 15], rows=2),
        tail=random_angles([-80, 0], [80, 40]),
    )


def _draw_palette(rng: np.random.Generator) -> Array:
    """Draw a palette [6, 3] in the order of the colors in `paint.py`: fur, pale, dark, accent, white, black.

    Hue and brightness of each color vary only within limits, so that a mark looks similar on all animals. The
    hue of the accent is about opposite to that of the fur; all other hues are close to that of the fur.
    """
    hue = rng.uniform(*COAT_HUES)
    accent = hue + rng.uniform(0.45, 0.60)
    contrast = rng.uniform(0.75, 1.0)
    colors = [
        (hue, rng.uniform(0.35, 0.75), rng.uniform(0.55, 0.85)),
        (hue + rng.uniform(-0.06, 0.06), rng.uniform(0.10, 0.25), 0.95),
        (hue + rng.uniform(-0.08, 0.08), rng.uniform(0.5, 0.8), rng.uniform(0.14, 0.28)),
        (accent, rng.uniform(0.65, 0.95), rng.uniform(0.45, 0.7)),
        (hue, 0.04, 1.0),
        (hue, 0.30, 0.07),
    ]
    palette = np.array([colorsys.hsv_to_rgb(h % 1.0, s, v) for h, s, v in colors])
    return 0.5 + contrast * (palette - 0.5)
