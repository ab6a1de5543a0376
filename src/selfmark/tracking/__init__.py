"""Locate objects in images: boxes from files, a fixed crop, or animals tracked in front of a fixed camera."""
