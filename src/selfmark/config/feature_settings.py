"""Settings of discovery with pretrained features, with defaults and limits.

The comments become part of the page docs/settings.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selfmark.config.limits import above, between, fraction

Orientation = Literal["auto", "not-upright", "upright", "turned", "any"]
"""How objects are turned in the images.

upright:     all objects are upright
turned:      they face any direction, and every image is first rotated to a common direction
any:         they face any direction, and no common direction can be found
not-upright: decide between turned and any from the images
auto:        decide between upright, turned and any from the images
"""


@dataclass(frozen=True)
class Features:
    """Pretrained features that recognize parts, and the landmarks found with them before any training."""

    name: str = "none"  # none, efficientnet-lite0, -lite1, -lite2, dinov2-s, dinov2-b, or onnx:FILE
    # landmarks are found and trained on at most this many images
    max_images: int = between(8, 10_000_000, 100_000)
    sample: int = between(1, 10_000_000, 150_000)  # maximum number of cells that K-means is fitted on
    iterations: int = between(1, 100_000, 40)  # iterations of K-means
    restarts: int = between(1, 1_000, 3)  # runs of K-means; the best one is used
    foreground_clusters: int = between(1, 10_000, 100)  # clusters of all cells; each is object or background
    border: int = between(1, 64, 2)  # width in cells of the image border, which is mostly background
    max_border_ratio: float = above(0, 1_000, 0.2)  # object: clusters with a lower border / inside frequency
    max_color_border_ratio: float = above(0, 1_000, 0.3)  # the same for clusters of the colors of cells
    # colors count if they leave this fraction of the object's cells ...
    min_color_remainder: float = fraction(0.1)
    min_color_images: float = fraction(0.9)  # ... in at least this fraction of the images
    min_foreground: float = fraction(0.05)  # if fewer cells are object, ignore the color ratio, then both
    orientation: Orientation = "auto"  # how objects are turned, see Orientation
    # auto: upright if images are told from upside-down copies this often
    min_upright_accuracy: float = fraction(0.8)
    min_direction_consistency: float = fraction(0.9)  # turned if images and mirror images agree on directions
    rotations: int = between(1, 360, 8)  # turned, any: number of rotated copies compared or averaged
    direction_size: int = between(8, 1_024, 128)  # turned: side of these copies, pixels
    direction_cells: int = between(1, 64, 8)  # turned: side of the grid on which their features are compared
    direction_starts: int = between(1, 10_000, 20)  # turned: images that are tried as the first template
    turned_rotation: float = between(0, 360, 40.0)  # turned: value of augment.rotation
    rotation: float = between(0, 360, 180.0)  # any: value of augment.rotation
    places: Literal["auto", "used", "ignored"] = "auto"  # whether a cell's place is part of its description
    max_place_ratio: float = above(0, 1_000, 0.96)  # auto: use if error with / without places is at most this
    # auto: also use them if landmarks with places spread further over the object by this factor ...
    min_place_spread: float = between(1, 1_000, 1.4)
    max_spread_ratio: float = above(0, 1_000, 1.02)  # ... and the ratio of errors is at most this
    place_weight: float = between(0, 1_000, 0.1)  # weight of the place compared with the features
    sharpness: float = between(1e-3, 10_000, 30.0)  # inverse temperature of the soft-argmax over similarities
    labels: Literal["auto", "cells", "keypoints"] = "auto"  # of the first rounds; auto: keypoints if upright
    max_keypoints: int = between(2, 10_000, 100)  # labels: maximum number of keypoints per image
    keypoint_threshold: float = between(0, 1_000_000, 0.005)  # labels: minimum confidence of a keypoint
    # labels: non-maximum suppression, pixels of keypoints.image_size
    keypoint_nms_radius: int = between(0, 128, 4)
    min_labeled_fraction: float = fraction(0.3)  # cells if keypoints label a smaller fraction of landmarks
    keypoint_landmarks: bool = True  # upright: also run Stage 1; use its landmarks if confirmed
    keypoint_label_rounds: int = between(1, 100, 2)  # number of first rounds trained on labeled keypoints
    # end Stage 1 after the warm-up if more than this is unexplained
    max_unexplained_warmup: float = between(0, 1_000_000_000, 0.95)
    # Stage 1 is confirmed up to this unexplained fraction of its landmarks
    max_unexplained: float = between(0, 1_000_000_000, 0.78)
    # undo a round if more of the zero-shot landmarks is unexplained
    max_unexplained_start: float = between(0, 1_000_000_000, 0.9)
    max_noise_ratio: float = above(0, 1_000, 1.25)  # undo a round if its reverse error grows by this factor

    @property
    def averaged_rotations(self) -> int:
        """Number of rotated copies whose features are averaged."""
        return self.rotations if self.orientation == "any" else 1

    @property
    def used_place_weight(self) -> float:
        """Weight of a cell's place; 0 if places are ignored or it is not yet known whether they help."""
        return self.place_weight if self.places == "used" else 0.0

    @property
    def labels_keypoints(self) -> bool:
        """Whether the first rounds learn from labeled keypoints instead of zero-shot landmarks."""
        return self.labels == "keypoints" or (self.labels == "auto" and self.orientation == "upright")

    @property
    def runs_stage1(self) -> bool:
        """Whether the paper's Stage 1 is run, which needs upright objects."""
        return self.keypoint_landmarks and self.orientation == "upright"


@dataclass(frozen=True)
class Student:
    """Detector on a pretrained encoder, trained in rounds on its own predictions."""

    # number of rounds; each is trained on the predictions of the round before
    rounds: int = between(0, 100, 3)
    iterations: int = between(1, 10_000_000, 400)  # iterations per round
    batch: int = between(1, 4_096, 64)  # images per iteration
    lr: float = between(0, 1, 1e-3)  # peak learning rate of the head; AdamW, one cycle per round
    encoder_lr: float = between(0, 100, 0.1)  # learning rate of the encoder, as a fraction of lr; 0: frozen
    frozen_rounds: int = between(0, 100, 1)  # number of first rounds in which the encoder is frozen
    warmup_fraction: float = above(0, 1, 0.1)  # fraction of a round in which the learning rate rises
    weight_decay: float = between(0, 1, 1e-4)  # decoupled weight decay
    width: int = between(1, 4_096, 256)  # channels of the head
    depth: int = between(1, 16, 3)  # convolutions of the head before the last one
    feature_scale: float = between(1e-3, 1_000, 8.0)  # factor on the unit features at the head's input
    # standard deviation of the target Gaussians, cells of the heatmaps
    sigma: float = between(0.05, 100, 2.4)
    confident_fraction: float = above(0, 1, 0.7)  # fraction of each landmark's labels that count
