"""Correspondence recovery (Sec. 3.3): which keypoints of different images are the same landmark."""
