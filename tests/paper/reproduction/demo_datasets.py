"""Make miniatures of the paper's data sets: images of the demo's animal with the points of each data set."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from selfmark.annotations import build_annotated_objects
from selfmark.demo.scene import Scene
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets.dataset import Dataset

NUM_TRAIN = 16  # images in the training split; the others are for testing

_JOINTS = [f"{side}_{part}" for part in ("shoulder", "elbow", "wrist") for side in ("left", "right")]
_LEGS = [f"{side}_{part}" for part in ("hip", "knee", "ankle") for side in ("left", "right")]
_FIVE_FACE_POINTS = ["left_eye", "right_eye", "nose", "left_mouth_corner", "right_mouth_corner"]
_SIXTY_EIGHT_FACE_POINTS = [
    *(f"jaw_{n}" for n in range(17)),
    *(f"{side}_brow_{n}" for side in ("right", "left") for n in range(5)),
    *(f"nose_{n}" for n in range(9)),
    *(f"{side}_eye_{n}" for side in ("right", "left") for n in range(6)),
    *(f"mouth_{n}" for n in range(20)),
]
# Mapping from the data set to its point names and its normalizer. The normalizer "box" is the size of the box
# around the visible points, and "bbox" that of the annotated box.
DATASETS: dict[str, tuple[list[str], str]] = {
    "celeba": (_SIXTY_EIGHT_FACE_POINTS, "inter_ocular"),
    "aflw": (_SIXTY_EIGHT_FACE_POINTS, "inter_ocular"),
    "ls3d": (_SIXTY_EIGHT_FACE_POINTS, "box"),
    "mtfl": (_FIVE_FACE_POINTS, "inter_ocular"),
    "cats": (["left_eye", "right_eye", "mouth", "left_ear", "right_ear"], "inter_ocular"),
    "cub": (["beak", "crown", "tail", "belly"], "bbox"),
    "bbcpose": (["head", *_JOINTS], "shoulders"),
    "human36m": (["head", *_JOINTS, *_LEGS], "shoulders"),
    "human36m32": (["head", "nose", "neck", *_JOINTS, *_LEGS], "shoulders"),
    "pennaction": (["head", *_JOINTS, *_LEGS], "box"),
}


def make_dataset(
    name: str, root: Path, scene: Scene, point_names: list[str] | None = None, normalizer: str = ""
) -> Dataset:
    """Build a data set of the images in `root`; its points are fixed mixtures of the true points."""
    names, normalizer = (point_names, normalizer) if point_names is not None else DATASETS[name]
    weights = np.random.default_rng(len(names)).dirichlet(np.full(scene.xy.shape[1], 0.2), len(names))
    count = len(scene.images)
    low, high = scene.xy.min(axis=1) + 0.5, scene.xy.max(axis=1) + 0.5
    objects = build_annotated_objects(
        [ImageRef(Path(f"{index:03d}.png")) for index in range(count)],
        names,
        np.einsum("pl,nlc->npc", weights, scene.xy.astype(np.float64)),
        np.concatenate([low, high - low], axis=1).astype(np.float64),
        fields={"yaw_bucket": tuple(("0-30", "30-60", "60-90")[index % 3] for index in range(count))},
    )
    return Dataset(
        name, root, "animal", tuple(names), tuple(range(len(names))), normalizer, {},
        train=objects.select(np.arange(NUM_TRAIN)), test=objects.select(np.arange(NUM_TRAIN, count)),
    )  # fmt: skip


def write_images(folder: Path, scene: Scene) -> None:
    """Write the images of the demo."""
    folder.mkdir(parents=True)
    for index, image in enumerate(scene.images):
        cv2.imwrite(str(folder / f"{index:03d}.png"), image[..., ::-1])
