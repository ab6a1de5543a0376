"""Several views of one animal in the same image, as a mirror shows them, with one detector for each view.

`view_boxes` says where the views are, `view_runs` trains a detector for each, and `view_detector` combines
their predictions into one object with the landmarks of all views.
"""
