"""The networks Phi and Psi, their heatmaps and their losses."""
