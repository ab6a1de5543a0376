"""Discover landmarks with pretrained features and train a detector on top of them."""
