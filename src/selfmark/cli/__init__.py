"""Implement the command line: one module per command, console output and progress displays."""
