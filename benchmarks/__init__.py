"""Benchmarks of energon-grain beside its peers: `python -m benchmarks.run` (see README.md)."""
