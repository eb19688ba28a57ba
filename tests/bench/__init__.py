"""Benchmarks against the peers: `python -m tests.bench`. Nothing here is collected by pytest."""
