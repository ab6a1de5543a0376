"""Implement discovery methods of other papers, which `discovery.discover` runs like selfmark's own method."""
