"""Run folders and what they build on: atomic files, locks, tensor files, processes, devices."""
