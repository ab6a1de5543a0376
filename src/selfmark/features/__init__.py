"""Describe every cell of an image with pretrained networks."""
