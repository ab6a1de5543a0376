"""Discover landmarks in several views of one animal in the same image, with one detector for each view.

A view may show the animal in a mirror. `view_boxes` defines where the views are. `view_runs` trains a
detector for each view. `view_detector` combines their predictions into one object with the landmarks of all
views.
"""
