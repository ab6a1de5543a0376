"""Smooth the landmarks of videos over time, fill short gaps, and measure how landmarks move.

`smoothers` and `kalman` smooth arrays of positions. `track_smoothing` applies them to one track, and
`smoothed_predictions` to all predictions of a video.
"""
