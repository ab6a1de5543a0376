"""Load images: list images and video frames, decode and crop them, and feed them to training.

`sources` turns the user's inputs into `ImageRef`s, and `decode` and `video` turn an `ImageRef` into pixels.
`crop` computes the part of the original that the network sees, and converts coordinates between original and
network pixels. `store` combines these modules: it loads the crops of a data set, all at once or batch by
batch.
"""
