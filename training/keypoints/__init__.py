"""How selfmark's own first keypoints are trained; `python -m training.keypoints.train` does all of it."""
