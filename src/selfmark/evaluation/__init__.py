"""Measure the quality of a run: the paper's metrics on labeled images, and checks that need no labels.

The metrics are pure functions on arrays, and `protocol` combines them. `run_evaluation.evaluate_run`
implements `selfmark evaluate`.
"""
