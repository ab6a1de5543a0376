"""Training: batches, objectives, the step engine, checkpoints and guards."""
