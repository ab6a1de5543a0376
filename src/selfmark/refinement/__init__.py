"""Refine a detector: train the last part of its network, the head, with landmarks that the user corrected.

`head_training` trains the head on the features of a few images. `refine_run` measures by leave-one-out
whether this lowers the error, and saves the refined detector. It can also restore the original detector.
"""
