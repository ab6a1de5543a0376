"""Define the networks Phi and Psi, heatmaps, losses, and the model card."""
