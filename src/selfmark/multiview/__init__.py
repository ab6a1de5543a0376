"""Several views of one animal in the same image, for example with a mirror; each view has its own detector.

`view_boxes` defines where the views are. `view_runs` trains a detector for each view. `view_detector`
combines their predictions into one object with the landmarks of all views.
"""
