"""Reproduce the paper's tables and figures from the experiment files in `tables/`.

`harness.reproduce_tables` is the entry point. `experiment` parses the experiment files. `experiment_plan`
lists the training runs and measurements that they need, and `workspace` runs them. `table_writers` and
`figures` write the results beside the paper's numbers.
"""
