"""Hold the version of selfmark."""

__version__ = "0.1.0"
