"""The paper's metrics, each a small pure function on arrays, and the protocol that combines them.

`study.evaluate_run` is `selfmark evaluate`; `protocol` says which metric is taken of what.
"""
