"""Refinement: a short training of a detector's head with landmarks that the user corrected.

`head_training` trains the head on the features of a few images, and `refine_run` measures by leave-one-out
whether that helps, saves the refined detector, and restores the original one.
"""
