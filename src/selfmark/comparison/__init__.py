"""Compare discovery methods on the same images, with the same number of landmarks and training time."""
