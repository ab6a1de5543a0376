"""Pretrained networks that describe every location of an image."""
