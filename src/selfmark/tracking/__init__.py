"""Locate objects in images and videos: boxes from files, a fixed crop, or tracked animals.

`regions` is the entry point: it turns the user's inputs into one `ImageRef` per object. `animals` tracks the
animals of a video; `background` detects them, `tracker` follows each one from frame to frame, and
`identity` tells them apart after a contact.
"""
