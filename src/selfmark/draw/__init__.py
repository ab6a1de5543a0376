"""Labeled videos: landmarks, skeleton and trails drawn on the frames they were found in."""
