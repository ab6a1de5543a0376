"""The paper's data sets: thin readers of the official layouts."""
