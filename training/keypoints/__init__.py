"""Train selfmark's own detector of first keypoints. Run `python -m training.keypoints.train`."""
