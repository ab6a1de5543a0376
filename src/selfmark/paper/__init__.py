"""Read the data sets of the paper, and reproduce its tables and figures."""
