"""From discovered landmarks to the user's own points, learned from a handful of annotated images."""
