"""Where in an image or a frame the objects are: boxes of the user's, or animals found by themselves."""
