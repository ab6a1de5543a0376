"""Image input: list images and video frames, decode and crop them, and feed them to training.

`sources` turns the user's inputs into `ImageRef`s, and `decode` and `video` turn an `ImageRef` into pixels.
`crop` computes the square of the original that the network sees and converts coordinates between the two.
`store` combines these: it loads the crops of a data set at once or batch by batch.
"""
