"""Benchmarks of energon-grain and its peers: `python -m benchmarks.run` (see README.md)."""
