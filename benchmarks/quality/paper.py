"""Hold the numbers that the paper (Mallis et al., TPAMI 2023) reports in its ablations.

They are in the order of the sections in `ablations_page.py`. Errors are percentages, on the paper's data
sets, so only their ranking can be compared with ours, not their values.
"""

from __future__ import annotations

# Table "number of training clusters": LS3D, Stage 1, forward and backward.
CLUSTERS = {30: (10.26, 9.41), 50: (7.99, 6.99), 100: (7.95, 6.55), 250: (8.58, 6.26), 500: (9.53, 6.19)}

# Table "negative pair selection": LS3D, forward error. Keys: source of the negative pairs, source of the
# positive pairs.
NEGATIVES = {
    ("different clusters", "clustering"): 11.15,
    ("same image", "equivariance"): 10.02,
    ("different clusters", "equivariance"): 9.56,
    ("same image", "clustering"): 7.95,
}

# Table "keypoint initialization": CelebA, Stage 1, forward and backward. For SuperPoint, the table "flipping"
# (CelebA, flipping in training) has 3.32 instead of 3.25, although the text describes the same settings.
DETECTORS = {"sift": (4.07, 7.79), "orb": (3.85, 7.70), "r2d2": (3.71, 7.97), "superpoint": (3.25, 6.65)}

# Table in the figure "precision of generic keypoints": CelebA, percentage of keypoints near one of 68 points.
PRECISION = {"sift": 38.9, "orb": 47.4, "r2d2": 54.5, "superpoint": 56.5}

# Table "first and second stages": points per image and forward error of Stage 1, forward error of Stage 2.
STAGES = {"CelebA": (25.8, 3.3, 3.2), "AFLW": (23.4, 8.1, 7.4), "LS3D": (23.5, 7.9, 5.2)}

# Table "flipping": LS3D, forward error of Stage 1 and of Stage 2.
FLIPPING = {"none": (8.69, 5.81), "train": (7.95, 5.45), "train and test": (7.95, 5.26)}

# Figure "noise" shows curves without numbers. The text says that results are still reasonable if only 20 % of
# the points are annotated landmarks and the rest random, and that going above 40 % improves the error only
# slightly.
