"""Compare discovery methods on the same images: same K, same network, same training time."""
