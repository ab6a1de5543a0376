"""Learn from a few annotated images how to map discovered landmarks to the user's own points."""
