"""Pretrained networks that describe every cell of an image."""
