"""Reproduce the paper's tables and figures from the experiment files in `tables/`.

`reproduce_tables` is the entry point. `experiment` parses the files, `experiment_plan` lists the training
runs and measurements they need, `workspace` runs them, and `table_writers` and `figures` write the results
beside the paper's numbers.
"""
