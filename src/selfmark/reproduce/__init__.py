"""The paper's experiments, each a small file in `tables/`, made by one harness.

`command.reproduce` is the way in; `experiment` reads the files, `plan` says what must be trained and
measured, `work` does it, `table` and `figures` write it down beside the paper's own numbers.
"""
