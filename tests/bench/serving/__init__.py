"""Measures a server while its models are learned: `python -m tests.bench.serving`."""
