"""Read the paper's data sets from their official files."""
