"""Training: warm-up, rounds and Stage 2, short loops over one step engine."""
