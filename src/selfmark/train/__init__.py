"""Train networks: batches, objectives, the training loop, checkpoints and guards."""
