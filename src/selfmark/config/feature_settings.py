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
turned:      objects face any direction; the images are first rotated until all objects face the same way
any:         objects face any direction; images are not rotated, because no common direction can be found
not-upright: a run decides from the images between turned and any
auto:        a run decides from the images between upright, turned and any
"""


@dataclass(frozen=True)
class Features:
    """Features that recognize parts, in runs with features; `dve` also uses the settings of K-means."""

    # Pretrained network that computes the features: `efficientnet-lite0`, `efficientnet-lite1`,
    # `efficientnet-lite2`, `dinov2-s`, `dinov2-b`, or `onnx:FILE` for an ONNX model. With `none`, the run
    # uses no features.
    name: str = "none"
    # Maximum number of images in which landmarks are found and on which the student is trained. If there are
    # more, evenly spaced images are used.
    max_images: int = between(8, 10_000_000, 100_000)
    # Maximum number of cells from which K-means computes the centers of its clusters. If there are more, a
    # random sample is used.
    sample: int = between(1, 10_000_000, 150_000)
    # Maximum number of iterations of K-means, and of the search for the common direction of the objects.
    iterations: int = between(1, 100_000, 40)
    # Number of times that K-means is run from different random starts. The best result is used.
    restarts: int = between(1, 1_000, 3)
    # Number of clusters into which all cells are grouped. Each cluster counts as object or as background.
    foreground_clusters: int = between(1, 10_000, 100)
    # Width of the border of an image, in cells. The cells in the border are assumed to be mostly background.
    border: int = between(1, 64, 2)
    # A cluster belongs to the object if its frequency at the border is less than this fraction of its
    # frequency inside the image. With a larger value, more clusters count as object.
    max_border_ratio: float = above(0, 1_000, 0.2)
    # The same limit as `features.max_border_ratio` for clusters of cells with similar colors. If colors are
    # used, a cell belongs to the object only if it passes both limits.
    max_color_border_ratio: float = above(0, 1_000, 0.3)
    # An image supports the use of colors if at least this fraction of the object cells found by features are
    # also object cells by color.
    min_color_remainder: float = fraction(0.1)
    # Colors are used if at least this fraction of the images support them. Otherwise, the object is found by
    # features alone.
    min_color_images: float = fraction(0.9)
    # Minimum fraction of all cells that must belong to the object. If the fraction is smaller, colors are
    # ignored. If the fraction is still smaller without colors, all cells count as object.
    min_foreground: float = fraction(0.05)
    # How the objects are oriented. `upright`: all objects are upright. `turned`: they face any direction, and
    # the images are rotated until all objects face the same way. `any`: they face any direction, and the
    # images are not rotated. `not-upright`: the run decides between `turned` and `any`. `auto`: the run
    # decides between `upright`, `turned` and `any`.
    orientation: Orientation = "auto"
    # The objects count as upright if a classifier tells images from upside-down copies with at least this
    # accuracy. An accuracy of 0.5 is chance, and 1 is perfect.
    min_upright_accuracy: float = fraction(0.8)
    # Objects that are not upright count as `turned` if the directions found in images and in their mirror
    # images agree at least this well. Otherwise, they count as `any`. The agreement is 0 for unrelated
    # directions and 1 for equal ones.
    min_direction_consistency: float = fraction(0.9)
    # Number of rotated copies of an image, at equal angles. They are compared to find the direction of an
    # object. If `features.orientation` is `any`, the features of the copies are averaged.
    rotations: int = between(1, 360, 8)
    # Approximate side to which images are reduced before rotated copies are compared, in pixels.
    direction_size: int = between(8, 1_024, 128)
    # Approximate side of the grid on which rotated copies are compared, in cells.
    direction_cells: int = between(1, 64, 8)
    # Number of images from which the search for the common direction is started. The best result is used.
    direction_starts: int = between(1, 10_000, 20)
    # If `features.orientation` is `turned`, this value replaces `augment.rotation`. It is in degrees.
    turned_rotation: float = between(0, 360, 40.0)
    # If `features.orientation` is `any`, this value replaces `augment.rotation`. It is in degrees.
    rotation: float = between(0, 360, 180.0)
    # Whether the place of a cell in the image is part of its description. Places tell similar parts apart,
    # such as the two eyes. `auto`: the run decides from the images.
    places: Literal["auto", "used", "ignored"] = "auto"
    # If `features.places` is `auto`, landmarks are found with places and without places, and each set is
    # predicted from the other. The unexplained fraction of the set with places is divided by that of the set
    # without places. Places are used if the result is at most this value.
    max_place_ratio: float = above(0, 1_000, 0.96)
    # If `features.places` is `auto`, the run also measures how far the landmarks spread from left to right.
    # If they spread at least this many times as far with places as without places,
    # `features.max_spread_ratio` replaces `features.max_place_ratio`.
    min_place_spread: float = between(1, 1_000, 1.4)
    # Limit that replaces `features.max_place_ratio` if places clearly spread the landmarks further (see
    # `features.min_place_spread`). A value below `features.max_place_ratio` has no effect.
    max_spread_ratio: float = above(0, 1_000, 1.02)
    # Weight of places relative to features. Places add this value to the squared distance of two cells that
    # are a fifth of the image apart. The squared distance of two features is between 0 and 4.
    place_weight: float = between(0, 1_000, 0.1)
    # Number of candidates per landmark. The run first finds this number times K candidates. The K candidates
    # that together best predict the positions of all candidates become the landmarks.
    candidates: int = between(1, 10, 3)
    # Maximum number of candidates in total. If there would be more, the number of candidates per landmark is
    # lowered, but not below 1.
    max_candidates: int = between(1, 10_000, 48)
    # Scale of the prediction errors when landmarks are chosen among the candidates, in pixels. An error of
    # this size counts half as much as a very large error. Much smaller errors hardly count.
    choice_scale: float = above(0, 10_000, 16.0)
    # When landmarks are chosen, a position counts by its score (0 to 1) raised to the power of this value.
    # With a larger value, uncertain positions count less.
    choice_power: float = between(0, 100, 4.0)
    # How much the most similar cells dominate the position of a zero-shot landmark (inverse temperature of
    # the soft-argmax). With a smaller value, less similar cells count more.
    sharpness: float = between(1e-3, 10_000, 30.0)
    # What the student learns in its first rounds. `cells`: zero-shot candidates. `keypoints`: keypoints on
    # the object, grouped by the features of their cells. `auto`: `keypoints` if the objects are upright,
    # otherwise `cells`.
    labels: Literal["auto", "cells", "keypoints"] = "auto"
    # Maximum number of keypoints per image, for the labels `keypoints` (see `features.labels`).
    max_keypoints: int = between(2, 10_000, 100)
    # Minimum confidence of a keypoint, for the labels `keypoints` (see `features.labels`). Only the detectors
    # `selfmark` and `superpoint` use this value.
    keypoint_threshold: float = between(0, 1_000_000, 0.005)
    # For the labels `keypoints` (see `features.labels`), this value replaces `keypoints.nms_radius`.
    keypoint_nms_radius: int = between(0, 128, 4)
    # Keypoints are used as labels if they mark at least this fraction of the candidates of all images.
    # Otherwise, the zero-shot candidates are used.
    min_labeled_fraction: float = fraction(0.3)
    # Whether a run with upright objects also trains Stage 1. The student learns the landmarks of Stage 1 if
    # they are confirmed (see `features.max_unexplained`).
    keypoint_landmarks: bool = True
    # Number of first rounds in which the student learns from keypoints or from the landmarks of Stage 1. Each
    # later round learns from the predictions of the round before.
    keypoint_label_rounds: int = between(1, 100, 2)
    # Stage 1 ends after its warm-up if the unexplained fraction of its landmarks is larger than this value.
    # The landmarks are predicted from the zero-shot candidates.
    max_unexplained_warmup: float = between(0, 1_000_000_000, 0.95)
    # The landmarks of Stage 1 are confirmed if their unexplained fraction is at most this value. The
    # landmarks are predicted from the zero-shot candidates.
    max_unexplained: float = between(0, 1_000_000_000, 0.78)
    # A round of the student is undone, and the training ends, if the unexplained fraction of the zero-shot
    # landmarks is larger than this value. The zero-shot landmarks are predicted from the landmarks of the
    # round. Rounds that start from the landmarks of Stage 1 are never undone.
    max_unexplained_start: float = between(0, 1_000_000_000, 0.9)
    # A round of the student is undone, and the training ends, if the unexplained fraction of its landmarks is
    # more than this many times that of the zero-shot landmarks. Each set is predicted from the other. Rounds
    # that start from the landmarks of Stage 1 are never undone.
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
    """Training of the student, in runs with features and the method `self-training`."""

    # Number of rounds. The first rounds learn the first labels (see `features.labels`). Each later round
    # learns from the predictions of the round before.
    rounds: int = between(0, 100, 3)
    iterations: int = between(1, 10_000_000, 400)  # Number of iterations in each round.
    batch: int = between(1, 4_096, 64)  # Number of images in each iteration.
    # Highest learning rate of the head. The optimizer is AdamW; the learning rate rises and falls once in
    # each round.
    lr: float = between(0, 1, 1e-3)
    # Learning rate of the encoder, as a fraction of `student.lr`. If this value is 0, the encoder is not
    # trained.
    encoder_lr: float = between(0, 100, 0.1)
    # Number of first rounds in which only the head is trained and the encoder stays unchanged.
    frozen_rounds: int = between(0, 100, 1)
    # Fraction of each round during which the learning rate rises. It falls during the rest of the round.
    warmup_fraction: float = above(0, 1, 0.1)
    weight_decay: float = between(0, 1, 1e-4)  # Strength of the weight decay of AdamW.
    width: int = between(1, 4_096, 256)  # Number of channels of the head.
    # Number of convolutions in the head, without the last one. With more convolutions, the head sees more of
    # the surroundings of a cell.
    depth: int = between(1, 16, 3)
    # Factor by which features are multiplied before they enter the head. Features have a length of 1.
    feature_scale: float = between(1e-3, 1_000, 8.0)
    # Standard deviation of the Gaussians in the target heatmaps, in cells of the heatmaps.
    sigma: float = between(0.05, 100, 2.4)
    # Fraction of the positions of each landmark that become labels. The positions with the highest scores are
    # used.
    confident_fraction: float = above(0, 1, 0.7)
