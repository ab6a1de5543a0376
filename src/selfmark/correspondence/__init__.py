"""Recover correspondence (Sec. 3.3 of the paper): find keypoints of different images on the same landmark."""
