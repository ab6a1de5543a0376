"""Labeled videos: landmarks, skeleton and trails drawn on the frames of a video."""
