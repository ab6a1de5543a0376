"""Readers of the official layouts of the paper's data sets."""
