"""Correspondence recovery (Sec. 3.3): find which keypoints of different images show the same landmark."""
