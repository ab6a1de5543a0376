"""Training of selfmark's own first-keypoint detector; run it with `python -m training.keypoints.train`."""
