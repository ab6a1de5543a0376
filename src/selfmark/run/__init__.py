"""Run folders, and what they are built from: atomic files, locks, tensor files, processes, devices."""
