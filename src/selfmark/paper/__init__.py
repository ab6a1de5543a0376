"""Data sets of the paper and reproduction of its tables and figures."""
