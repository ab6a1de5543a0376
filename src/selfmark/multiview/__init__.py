"""Discover several views of one animal in the same image, such as a mirror image, with a detector for each.

`view_boxes` defines where the views are. `view_runs` trains a detector for each view. `view_detector`
combines their predictions into one object with the landmarks of all views.
"""
