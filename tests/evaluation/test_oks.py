"""Compare object keypoint similarity, average precision and recall with COCO's own programs."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace

import numpy as np
import pytest

from selfmark.errors import InputError
from selfmark.evaluation.oks import (
    Detections,
    PrecisionRecall,
    TargetObjects,
    average_precision,
    choose_sigmas,
)

THRESHOLDS = np.array([0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95])
L = 5  # annotated points per object
SIGMAS = np.array([0.025, 0.079, 0.05, 0.107, 0.062])

Scene = dict[str, np.ndarray]


def make_crowded_scene(seed: int, images: int = 25) -> Scene:
    """Draw 0 to 3 objects per image, some of them hidden or crowds.

    Detections miss some objects, repeat others, and invent objects.
    """
    rng = np.random.default_rng(seed)
    objects = rng.integers(0, 4, images)
    gt_image = rng.permutation(np.repeat(np.arange(images), objects))
    count = len(gt_image)
    center = rng.uniform(20, 100, (count, 1, 2))
    gt_xy = center + rng.normal(0, 15, (count, L, 2))
    gt_visible = rng.random((count, L)) < rng.choice([0.0, 0.6, 1.0], (count, 1), p=[0.2, 0.4, 0.4])
    detected = np.flatnonzero(rng.random(count) < 0.85)  # the others are missed
    repeated = rng.choice(detected, 12)  # detected twice
    source = np.concatenate([detected, repeated])
    num_false = 10  # detections without an object
    det_image = np.concatenate([gt_image[source], rng.integers(0, images, num_false)])
    spread = rng.choice([1.0, 4.0, 9.0], (len(source), 1, 1))
    true_xy = gt_xy[source] + rng.normal(0, spread, (len(source), L, 2))
    det_xy = np.concatenate([true_xy, rng.uniform(0, 120, (num_false, L, 2))])
    shuffled = rng.permutation(len(det_image))
    return {
        "det_image": det_image[shuffled],
        "det_xy": det_xy[shuffled],
        "det_score": rng.permutation(len(det_image)) / len(det_image),
        "gt_image": gt_image,
        "gt_xy": gt_xy,
        "gt_visible": gt_visible,
        "gt_area": rng.uniform(800, 3000, count),
        "gt_box": np.concatenate([gt_xy.min(axis=1), np.ptp(gt_xy, axis=1)], axis=1),
        "gt_crowd": rng.random(count) < 0.1,
    }


def make_single_object_scene(seed: int, images: int = 40) -> Scene:
    """Draw one object and one detection in every image, all points visible: the paper's setting."""
    rng = np.random.default_rng(seed)
    gt_xy = rng.uniform(0, 128, (images, L, 2))
    return {
        "det_image": np.arange(images),
        "det_xy": gt_xy + rng.normal(0, rng.uniform(0, 12, (images, 1, 1)), gt_xy.shape),
        "det_score": rng.random(images),
        "gt_image": np.arange(images),
        "gt_xy": gt_xy,
        "gt_visible": np.ones((images, L), bool),
        "gt_area": rng.uniform(800, 3000, images),
        "gt_box": np.concatenate([gt_xy.min(axis=1), np.ptp(gt_xy, axis=1)], axis=1),
        "gt_crowd": np.zeros(images, bool),
    }


def make_many_detections(seed: int) -> Scene:
    """Draw 30 detections per image; COCO uses only the 20 with the highest scores."""
    scene = make_single_object_scene(seed, images=3)
    rng = np.random.default_rng(seed)
    det_image = np.repeat(np.arange(3), 30)
    return {
        **scene,
        "det_image": det_image,
        "det_xy": scene["gt_xy"][det_image] + rng.normal(0, 6, (90, L, 2)),
        "det_score": rng.permutation(90) / 90,
    }


def measure(scene: Scene) -> PrecisionRecall:
    detections = Detections(scene["det_image"], scene["det_xy"], scene["det_score"])
    targets = TargetObjects(
        *(scene[f"gt_{name}"] for name in ("image", "xy", "visible", "area", "box", "crowd"))
    )
    return average_precision(detections, targets, SIGMAS, THRESHOLDS)


def convert_to_coco(scene: Scene) -> tuple[dict, list[dict]]:
    """Return the objects as the content of a COCO file, and the detections as a list of COCO results."""

    def list_keypoints(xy: np.ndarray, visible: np.ndarray) -> list[float]:
        triples = np.column_stack([xy, np.where(visible, 2.0, 0.0)])  # x, y, v of each point
        return [float(value) for value in triples.ravel()]

    images = sorted({*scene["gt_image"].tolist(), *scene["det_image"].tolist()})
    truth = {
        "info": {},
        "images": [{"id": image + 1, "width": 200, "height": 200} for image in images],
        "categories": [{"id": 1, "name": "thing", "keypoints": [str(i) for i in range(L)], "skeleton": []}],
        "annotations": [
            {
                "id": g + 1,
                "image_id": int(scene["gt_image"][g]) + 1,
                "category_id": 1,
                "keypoints": list_keypoints(scene["gt_xy"][g], scene["gt_visible"][g]),
                "num_keypoints": int(scene["gt_visible"][g].sum()),
                "area": float(scene["gt_area"][g]),
                "bbox": scene["gt_box"][g].tolist(),
                "iscrowd": int(scene["gt_crowd"][g]),
            }
            for g in range(len(scene["gt_image"]))
        ],
    }
    detections = [
        {
            "image_id": int(scene["det_image"][d]) + 1,
            "category_id": 1,
            "keypoints": list_keypoints(scene["det_xy"][d], np.ones(L, bool)),
            "score": float(scene["det_score"][d]),
        }
        for d in range(len(scene["det_image"]))
    ]
    return truth, detections


def measure_with_coco(library: str, scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Return precision and recall per threshold, by COCO's own program or its faster reimplementation."""
    if library == "pycocotools":
        coco = pytest.importorskip("pycocotools.coco").COCO
        evaluator = pytest.importorskip("pycocotools.cocoeval").COCOeval
    else:
        faster = pytest.importorskip("faster_coco_eval")
        coco, evaluator = faster.COCO, faster.COCOeval_faster
    truth, detections = convert_to_coco(scene)
    with contextlib.redirect_stdout(io.StringIO()):
        annotated = coco()
        annotated.dataset = truth
        annotated.createIndex()
        evaluation = evaluator(annotated, annotated.loadRes(detections), "keypoints")
        evaluation.params.kpt_oks_sigmas = SIGMAS
        evaluation.params.iouThrs = THRESHOLDS
        evaluation.evaluate()
        evaluation.accumulate()
    # Axes: threshold, recall, category, area, maximum number of detections; the first area is "all".
    return evaluation.eval["precision"][:, :, 0, 0, 0].mean(axis=1), evaluation.eval["recall"][:, 0, 0, 0]


@pytest.mark.parametrize("library", ["pycocotools", "faster_coco_eval"])
@pytest.mark.parametrize(
    ("make", "seed"),
    [
        *((make_crowded_scene, seed) for seed in range(6)),
        (make_single_object_scene, 0),
        (make_single_object_scene, 1),
        (make_many_detections, 0),
    ],
)
def test_precision_and_recall_agree_with_coco(library: str, make, seed: int) -> None:
    scene = make(seed)
    ap, ar = measure_with_coco(library, scene)
    ours = measure(scene)
    np.testing.assert_allclose(ours.ap, ap, atol=1e-6)
    np.testing.assert_allclose(ours.ar, ar, atol=1e-6)
    assert ap[0] > ap[-1]  # thresholds make a difference in this scene


def test_equal_scores_are_ordered_as_in_coco() -> None:
    scene = make_crowded_scene(7)
    scene["det_score"] = np.round(scene["det_score"], 1)
    ap, ar = measure_with_coco("pycocotools", scene)
    ours = measure(scene)
    np.testing.assert_allclose(ours.ap, ap, atol=1e-9)
    np.testing.assert_allclose(ours.ar, ar, atol=1e-9)


def test_coordinates_of_hidden_points_do_not_matter() -> None:
    scene = make_crowded_scene(3)
    visible_xy = np.where(scene["gt_visible"][..., None], scene["gt_xy"], np.nan)
    unchanged = measure(scene)
    ours = measure({**scene, "gt_xy": visible_xy})
    assert ours.ap.tolist() == unchanged.ap.tolist()


def test_average_precision_matches_a_hand_computed_case() -> None:
    # Two objects; the detection with the highest score is wrong, the next two are exact or nearly exact.
    # Nearly exact is enough for the threshold 1, which COCO lowers to 1 - 1e-10.
    xy = np.array([[[0.0, 0.0]], [[50.0, 0.0]]])
    result = average_precision(
        Detections(
            image=np.array([0, 0, 1]),
            xy=np.array([[[90.0, 90.0]], [[1e-5, 0.0]], [[50.0, 0.0]]]),
            score=np.array([0.9, 0.8, 0.7]),
        ),
        TargetObjects(image=np.array([0, 1]), xy=xy, visible=np.ones((2, 1), bool), area=np.full(2, 100.0)),
        sigmas=np.array([0.05]),
        thresholds=np.array([0.5, 1.0]),
    )
    # Precision is 0/1, 1/2, 2/3. COCO uses the best precision at the same or a higher recall, here 2/3.
    np.testing.assert_allclose(result.ap, [2 / 3, 2 / 3])
    assert result.ar.tolist() == [1.0, 1.0]


def test_a_hidden_object_without_a_box_accepts_any_detection() -> None:
    detections = Detections(
        image=np.array([0, 1, 1]),
        xy=np.array([[[0.0, 0.0]], [[700.0, 0.0]], [[700.0, 0.0]]]),
        score=np.array([0.5, 0.9, 0.8]),
    )
    targets = TargetObjects(
        image=np.array([0, 1]),
        xy=np.zeros((2, 1, 2)),
        visible=np.array([[True], [False]]),
        area=np.full(2, 100.0),
    )
    sigmas, thresholds = np.array([0.05]), np.array([0.5])
    # The hidden object accepts one of the two detections of image 1, so this detection does not count. The
    # other detection of image 1 is wrong, so precision is 0/1, then 1/2.
    without_box = average_precision(detections, targets, sigmas, thresholds)
    assert without_box.ap.tolist() == pytest.approx([0.5])
    boxed_targets = replace(targets, box=np.tile([0.0, 0.0, 10.0, 10.0], (2, 1)))
    with_box = average_precision(detections, boxed_targets, sigmas, thresholds)
    assert with_box.ap.tolist() == pytest.approx([1 / 3])


def test_zero_detections_score_zero_and_zero_visible_objects_are_an_error() -> None:
    scene = make_single_object_scene(0)
    no_detections = {name: scene[name][:0] for name in ("det_image", "det_xy", "det_score")}
    result = measure({**scene, **no_detections})
    assert result.ap.tolist() == result.ar.tolist() == [0.0] * len(THRESHOLDS)
    scene_without_visible_points = {**scene, "gt_visible": np.zeros_like(scene["gt_visible"])}
    with pytest.raises(InputError, match="every object is a crowd or has no visible point"):
        measure(scene_without_visible_points)


def test_sigmas_are_known_for_parts_in_any_spelling() -> None:
    names = [
        "nose",
        "left_eye",
        "RightEar",
        "LShoulder",
        "elbow_r",
        "right wrist",
        "L_Hip",
        "knee.L",
        "rankle",
    ]
    expected = [0.026, 0.025, 0.035, 0.079, 0.072, 0.062, 0.107, 0.087, 0.089]
    assert choose_sigmas(names, 0.05).tolist() == expected
    assert choose_sigmas(["beak", "head", "left_eyebrow"], 0.04).tolist() == [0.04] * 3
