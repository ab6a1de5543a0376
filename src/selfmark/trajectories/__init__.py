"""Smooth the landmarks of videos along time, fill short gaps, and measure how landmarks move.

`smoothers` and `kalman` are the mathematics on arrays, `track_smoothing` applies them to one track, and
`smoothed_predictions` to the predictions of whole videos.
"""
