"""Networks Phi and Psi, heatmaps, losses, and the model card."""
