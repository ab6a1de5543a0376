"""Settings of the evaluation, the verification and the refinement of a detector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selfmark.config.limits import above, between, fraction


@dataclass(frozen=True)
class Evaluation:
    """Evaluation with labels (Sec. 4.2), and the checks without labels after every run."""

    # Number from which the random draws of evaluations and of checks without labels start.
    seed: int = between(0, 2**63 - 1, 0)
    # Minimum visibility of an annotated point, as in COCO: 1 is occluded, 2 is visible. With 2, occluded
    # points are left out. Points with visibility 0 are never used.
    min_visibility: int = between(1, 2, 1)
    # Strengths of the ridge regression that maps landmarks to annotated points. Results are reported for each
    # of them. The penalty is the strength times the largest entry of X'X, where the matrix X contains the
    # coordinates that the regression predicts from, minus their means.
    ridges: tuple[float, ...] = between(0, 1_000_000, (0.1, 0.01, 0.001, 0.0))
    # Strength of the ridge regression for the headline numbers. The authors' program uses 0.1 for the faces
    # of LS3D, and 0.001 for the forward errors of CelebA.
    ridge: float = between(0, 1_000_000, 0.01)
    # Numbers of annotated images from which the regression is fitted, in addition to all images.
    fit_images: tuple[int, ...] = between(1, 10_000_000, (1, 5, 10, 100, 300, 800))
    # Number of random draws of images for each number in `evaluation.fit_images`.
    draws: int = between(1, 10_000, 10)
    # Largest error in the cumulative error curve, in percent of the normalizer.
    max_curve_error: float = between(0.001, 10_000, 20.0)
    # A landmark is a hit if it lies within this many pixels of the annotated point. The pixels are those of
    # an image with the side `evaluation.hit_side`.
    hit_pixels: float = above(0, 100_000, 6.0)
    # Side of the image that `evaluation.hit_pixels` refers to, in pixels.
    hit_side: int = between(1, 100_000, 128)
    # For faces: a landmark is a hit if its distance from the annotated point is at most this fraction of the
    # distance between the eyes.
    hit_fraction: float = above(0, 1_000, 0.2)
    # For bodies: a landmark is a hit if its distance from the annotated point is at most this fraction of the
    # distance from the left shoulder to the right hip (PCK).
    pck_fraction: float = above(0, 1_000, 0.3)
    # Thresholds of the object keypoint similarity over which AP and AR are averaged, as in COCO.
    oks_thresholds: tuple[float, ...] = fraction((0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95))
    # Thresholds of the object keypoint similarity at which AP and AR are also reported separately.
    oks_single: tuple[float, ...] = fraction((0.5, 0.4))
    # Tolerance (sigma) of the object keypoint similarity for points to which COCO assigns none. With a larger
    # value, errors lower the similarity less.
    oks_sigma: float = between(1e-6, 1_000, 0.05)
    # A keypoint is correct if its distance from an annotated point is at most this fraction of the distance
    # between the eyes. For objects without eyes, the normalizer replaces the distance between the eyes.
    precision_fraction: float = between(0, 1_000, 0.1)
    # Maximum number of iterations that fill in the landmarks that Stage 1 did not find (singular value
    # thresholding). Filled-in landmarks are needed only to measure errors.
    completion_iterations: int = between(0, 1_000_000, 500)
    num_samples: int = between(1, 1_000_000, 200)  # Maximum number of images for the checks without labels.
    # Number of random deformations of each image in the checks without labels.
    deformations: int = between(1, 1_000, 2)
    # Mirroring at test time in evaluations. `as-trained`: as set by `flip.test`. `never`: predictions use the
    # original image only.
    flip: Literal["as-trained", "never"] = "as-trained"
    # Two positions agree if they are at most this far apart, as a fraction of the side of the image. The
    # checks of stability and symmetry use this value.
    agreement_radius: float = between(0, 1_000, 0.05)
    # A landmark fits the common shape of all landmarks if it is at most this far from its position in this
    # shape. The distance is a fraction of the radius of the shape.
    constellation_radius: float = between(0, 1_000, 0.3)
    # Two landmarks mark the same place if their median distance is at most this fraction of the side of the
    # image.
    duplicate_radius: float = between(0, 1_000, 0.02)
    # A run on fewer training images than this value gets a warning that its landmarks are uncertain.
    min_images: int = between(1, 10_000_000, 30)
    # Number of parts of the object that pretrained features find to check a run without features.
    reference_parts: int = between(2, 1_000, 20)
    # The weights below are fitted by benchmarks/trust/trust_model.py, see docs/results/trust.json.

    # Three numbers that give the expected error of a landmark. The first is a constant. The second is the
    # weight of the fraction of deformations that the landmark does not follow. The third is the weight of the
    # appearance error, which is the unexplained fraction of the landmark if it is predicted from positions
    # found by appearance alone.
    error_weights: tuple[float, float, float] = between(0, 1_000, (0.1, 0.2, 0.77))
    # The same three numbers for verified runs, and a fourth one. The fourth is the weight of the unexplained
    # fraction of the landmark if it is predicted from the landmarks of the second run.
    verified_error_weights: tuple[float, float, float, float] = between(0, 1_000, (0.05, 0.31, 0.61, 0.13))
    # Two numbers that give the expected forward error of a run. The first is a constant. The second is the
    # weight of the expected error of its best landmarks.
    run_error_weights: tuple[float, float] = between(0, 1_000, (0.01, 0.79))
    # The expected forward error of a run without features is this value times the fraction of the movement of
    # the object's parts that its landmarks do not predict.
    missed_movement_weight: float = between(0, 1_000, 0.86)
    # Fraction of the landmarks that count as the best ones. A run is judged by the largest expected error
    # among them.
    best_fraction: float = above(0, 1, 0.25)
    # Trust in a landmark is lowered in proportion if Stage 1 found the landmark in a smaller fraction of the
    # images than this value.
    full_found_rate: float = above(0, 1, 0.5)
    # In a video, the square around a landmark is compared with the same square of the median frame. This
    # value is half the side of the square, in pixels.
    background_radius: int = between(0, 1_024, 4)
    # Two squares look alike if their mean difference is at most this value, in gray levels from 0 to 255.
    background_difference: float = between(0, 255, 8.0)
    # A landmark is probably on the background if its square looks like the median frame in more than this
    # fraction of the frames.
    max_background_rate: float = fraction(0.9)
    # A landmark hardly moves if its mean distance from its mean position is smaller than this fraction of the
    # side of the image. Such a landmark may be on the background.
    fixed_spread: float = between(0, 1_000, 0.01)
    # Landmarks that hardly move are reported only if the median landmark moves at least this far. The
    # distance is measured as for `evaluation.fixed_spread`.
    moving_spread: float = between(0, 1_000, 0.03)
    # A run is good if its expected forward error is at most this fraction of the error of guessing.
    good_error: float = between(0, 1_000, 0.3)
    # A run has failed if its expected forward error is at least this fraction of the error of guessing. Runs
    # between the two limits are usable.
    failed_error: float = between(0, 1_000, 0.75)
    # The images seem to show two kinds of objects if their features form two groups that are separated more
    # clearly than this value. The separation is 0 if there are no groups, and 1 if the groups are far apart.
    max_kind_separation: float = fraction(0.28)


@dataclass(frozen=True)
class Verification:
    """Comparison with a second, shorter run from another seed, in runs that are verified."""

    enabled: bool = False  # Whether some images are held out and a second detector is trained for comparison.
    # Fraction of the images on which neither detector is trained. The two detectors are compared on these
    # images.
    held_out_fraction: float = above(0, 0.5, 0.1)
    max_held_out: int = between(1, 1_000_000, 200)  # Maximum number of held-out images.
    # Fraction of the other images on which the second detector is trained.
    training_fraction: float = above(0, 1, 0.5)
    # Number of iterations of the second run, as a fraction of the iterations of the first run.
    schedule_fraction: float = above(0, 1, 0.5)
    # With the preset `auto` on a GPU, a run is verified automatically if it has at least this many images.
    # All other runs are verified only on request.
    min_images: int = between(2, 10_000_000, 40)


@dataclass(frozen=True)
class Refinement:
    """Short training of a detector's head with corrected landmarks, by `selfmark refine`."""

    # Number of iterations of each training. There is one training for each group of images that is left out,
    # and one with all images.
    iterations: int = between(1, 1_000_000, 80)
    # Number of images in each iteration. Half of them are images without corrections, if there are any.
    batch: int = between(1, 4_096, 16)
    # Highest learning rate of the head. The optimizer is AdamW; the learning rate rises and falls once in
    # each training.
    lr: float = between(0, 1, 1e-3)
    warmup_fraction: float = fraction(0.1)  # Fraction of the iterations during which the learning rate rises.
    weight_decay: float = between(0, 1, 1e-4)  # Strength of the weight decay of AdamW.
    # Weight of the loss that keeps heatmaps without a correction unchanged, compared with the loss of
    # corrected heatmaps.
    keep_weight: float = between(0, 1_000, 0.5)
    # Number of randomly changed copies of each corrected image, including the image itself. There are fewer
    # if they exceed `refinement.max_gigabytes`.
    views: int = between(1, 1_000, 8)
    # Maximum number of images without corrections, in which the landmarks should stay where they are.
    kept_images: int = between(0, 100_000, 48)
    # Number of randomly changed copies of each image without corrections, including the image itself.
    kept_views: int = between(1, 1_000, 1)
    # Maximum number of groups into which the corrected images are divided to measure the error. Each group is
    # left out of one training.
    folds: int = between(2, 1_000, 5)
    # Maximum memory of the stored features, in gigabytes. If they need more, there are fewer copies of each
    # image.
    max_gigabytes: float = above(0, 10_000, 1.0)
