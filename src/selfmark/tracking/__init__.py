"""Locate objects in images and videos: boxes from files, a fixed crop, or tracked animals.

`regions` is the entry point: it turns the user's inputs into one `ImageRef` per object. `animals` tracks the
animals of a video. For this, `background_model` detects animals, `tracker` follows each animal from frame to
frame, and `identity` tells animals apart after a contact.
"""
