"""Locate objects in images and videos: boxes from files, a fixed crop, or animals tracked by a fixed camera.

`regions` is the entry point: it turns the user's inputs into one `ImageRef` per object. `animals` tracks the
animals of a video; `background` detects them and `tracker` assigns them from frame to frame.
"""
