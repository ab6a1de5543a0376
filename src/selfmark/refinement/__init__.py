"""Refine a detector: train its head for a short time with landmarks that the user corrected.

`head_training` trains the head on the features of a few images. `refine_run` measures by leave-one-out
whether this lowers the error, saves the refined detector, and restores the original one.
"""
