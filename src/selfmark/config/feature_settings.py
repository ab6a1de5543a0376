"""Settings of discovery with pretrained features, with their defaults and limits.

The comment behind or above a setting becomes its text on the page docs/settings.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selfmark.config.limits import above, between, fraction

Orientation = Literal["auto", "not-upright", "upright", "turned", "any"]
"""How objects are turned in the images.

upright:     all objects are upright
turned:      objects face any direction; every image is first rotated so that its object faces a common one
any:         objects face any direction; images are not rotated, because no common direction can be found
not-upright: a run decides from the images between turned and any
auto:        a run decides from the images between upright, turned and any
"""


@dataclass(frozen=True)
class Features:
    """Pretrained features that recognize parts, and the landmarks found with them before any training."""

    name: str = "none"  # none, efficientnet-lite0, -lite1, -lite2, dinov2-s, dinov2-b, or onnx:FILE
    # landmarks are found and trained on at most this many images
    max_images: int = between(8, 10_000_000, 100_000)
    sample: int = between(1, 10_000_000, 150_000)  # maximum number of cells that K-means is fitted on
    iterations: int = between(1, 100_000, 40)  # maximum number of iterations of K-means
    restarts: int = between(1, 1_000, 3)  # runs of K-means; the best one is used
    foreground_clusters: int = between(1, 10_000, 100)  # clusters of all cells; each is object or background
    border: int = between(1, 64, 2)  # width in cells of the image border, which is mostly background
    # a cluster belongs to the object if its frequency at the border / its frequency inside is lower
    max_border_ratio: float = above(0, 1_000, 0.2)
    max_color_border_ratio: float = above(0, 1_000, 0.3)  # the same for clusters of the colors of cells
    # an image supports the use of colors if they leave at least this fraction of its object cells
    min_color_remainder: float = fraction(0.1)
    min_color_images: float = fraction(0.9)  # colors are used if this fraction of the images supports it
    # minimum fraction of object cells; if there are fewer, colors are ignored; if there are still fewer, all
    # cells count as object
    min_foreground: float = fraction(0.05)
    # upright: objects are upright; turned: they face any direction, and images are rotated to a common one;
    # any: they face any direction, and there is no common one; auto, not-upright: decided from the images
    orientation: Orientation = "auto"
    # auto: objects are upright if a classifier tells images from upside-down copies with this accuracy
    min_upright_accuracy: float = fraction(0.8)
    # objects that are not upright: turned if the directions of images and mirror images agree this well (0 to
    # 1), otherwise any
    min_direction_consistency: float = fraction(0.9)
    # rotated copies of an image that are compared (turned) or averaged (any)
    rotations: int = between(1, 360, 8)
    direction_size: int = between(8, 1_024, 128)  # turned: side of the rotated copies, pixels
    # turned: side of the grid on which rotated copies are compared, cells
    direction_cells: int = between(1, 64, 8)
    # turned: number of images that are tried as the first template
    direction_starts: int = between(1, 10_000, 20)
    turned_rotation: float = between(0, 360, 40.0)  # turned: value of augment.rotation
    rotation: float = between(0, 360, 180.0)  # any: value of augment.rotation
    places: Literal["auto", "used", "ignored"] = "auto"  # whether a cell's place is part of its description
    # auto: landmarks are found with and without places, and each set is predicted from the other; places are
    # used if the error of the set with places / the error of the set without places is at most this
    max_place_ratio: float = above(0, 1_000, 0.96)
    # auto: places are also used if they spread the landmarks at least this many times as far horizontally,
    # and if the ratio of these errors is at most max_spread_ratio
    min_place_spread: float = between(1, 1_000, 1.4)
    max_spread_ratio: float = above(0, 1_000, 1.02)  # see min_place_spread
    place_weight: float = between(0, 1_000, 0.1)  # weight of the place compared with the features
    # candidates per landmark: first, this number times K parts are found; the K parts that together predict
    # all of these parts best become the landmarks
    candidates: int = between(1, 10, 3)
    # maximum number of all candidates; with more, the candidates per landmark are lowered, but not below 1
    max_candidates: int = between(1, 10_000, 48)
    # choice of the landmarks: distance between a candidate and its prediction that counts one half, pixels
    choice_scale: float = above(0, 10_000, 16.0)
    # choice of the landmarks: a candidate's position counts by its score (0 to 1) to this power
    choice_power: float = between(0, 100, 4.0)
    sharpness: float = between(1e-3, 10_000, 30.0)  # inverse temperature of the soft-argmax over similarities
    # labels of the first rounds: zero-shot landmarks (cells) or labeled keypoints; auto: keypoints for
    # upright objects, otherwise cells
    labels: Literal["auto", "cells", "keypoints"] = "auto"
    max_keypoints: int = between(2, 10_000, 100)  # labeled keypoints: maximum number per image
    keypoint_threshold: float = between(0, 1_000_000, 0.005)  # labeled keypoints: minimum confidence
    # labeled keypoints: radius of non-maximum suppression, pixels of keypoints.image_size
    keypoint_nms_radius: int = between(0, 128, 4)
    # keypoint labels are used if they cover this fraction of the landmarks of all images, otherwise cells
    min_labeled_fraction: float = fraction(0.3)
    keypoint_landmarks: bool = True  # upright: also run Stage 1; train on its landmarks if they are confirmed
    keypoint_label_rounds: int = between(1, 100, 2)  # number of first rounds trained on labeled keypoints
    # end Stage 1 after the warm-up if the unexplained fraction of its landmarks, predicted from the zero-shot
    # landmarks, is larger than this
    max_unexplained_warmup: float = between(0, 1_000_000_000, 0.95)
    # the landmarks of Stage 1 are confirmed if their unexplained fraction, predicted from the zero-shot
    # landmarks, is at most this
    max_unexplained: float = between(0, 1_000_000_000, 0.78)
    # undo a round if the unexplained fraction of the zero-shot landmarks, predicted from the landmarks of the
    # round, is larger than this
    max_unexplained_start: float = between(0, 1_000_000_000, 0.9)
    # undo a round if the error of predicting its landmarks from the zero-shot landmarks is more than this
    # many times the error of the reverse prediction
    max_noise_ratio: float = above(0, 1_000, 1.25)

    @property
    def averaged_rotations(self) -> int:
        """Number of rotated copies of an image whose features are averaged; 1 is the image itself."""
        return self.rotations if self.orientation == "any" else 1

    @property
    def used_place_weight(self) -> float:
        """Weight of a cell's place; 0 if places are ignored or the run has not yet decided."""
        return self.place_weight if self.places == "used" else 0.0

    @property
    def labels_keypoints(self) -> bool:
        """Whether the first rounds learn from labeled keypoints instead of zero-shot landmarks."""
        return self.labels == "keypoints" or (self.labels == "auto" and self.orientation == "upright")

    @property
    def runs_stage1(self) -> bool:
        """Whether the run includes the paper's Stage 1, which needs upright objects."""
        return self.keypoint_landmarks and self.orientation == "upright"


@dataclass(frozen=True)
class Student:
    """Detector on a pretrained encoder, trained in rounds on its own predictions."""

    # number of rounds; after the rounds on the first labels, each round is trained on the predictions of the
    # round before
    rounds: int = between(0, 100, 3)
    iterations: int = between(1, 10_000_000, 400)  # iterations per round
    batch: int = between(1, 4_096, 64)  # images per iteration
    lr: float = between(0, 1, 1e-3)  # peak learning rate of the head; AdamW, one cycle per round
    encoder_lr: float = between(0, 100, 0.1)  # learning rate of the encoder, as a fraction of lr; 0: frozen
    frozen_rounds: int = between(0, 100, 1)  # number of first rounds in which the encoder stays frozen
    warmup_fraction: float = above(0, 1, 0.1)  # fraction of a round in which the learning rate rises
    weight_decay: float = between(0, 1, 1e-4)  # decoupled weight decay
    width: int = between(1, 4_096, 256)  # channels of the head
    depth: int = between(1, 16, 3)  # convolutions of the head before the last one
    # factor on the features, which have unit length, before the head
    feature_scale: float = between(1e-3, 1_000, 8.0)
    # standard deviation of the target Gaussians, cells of the heatmaps
    sigma: float = between(0.05, 100, 2.4)
    # fraction of each landmark's predictions that become labels, highest scores first
    confident_fraction: float = above(0, 1, 0.7)
