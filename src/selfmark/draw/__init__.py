"""Labeled videos and photos: landmarks, skeleton, trails and a legend drawn on frames and images."""
