"""Run folders and the infrastructure below them: atomic files, locks, tensor files, processes, devices."""
