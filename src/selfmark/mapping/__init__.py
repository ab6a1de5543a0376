"""Map discovered landmarks to the user's own points, learned from a few annotated images."""
