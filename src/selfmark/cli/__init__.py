"""Command line interface: one module per command, console output and progress displays."""
