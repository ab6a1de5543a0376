"""Store runs in folders, with atomic files, locks, tensor files and logs, on one or several processes."""
