"""Evaluation: the paper's metrics as pure functions on arrays, and the protocol that combines them.

`run_evaluation.evaluate_run` implements `selfmark evaluate`; `protocol` defines what is measured.
"""
