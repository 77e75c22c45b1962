"""How fast a server answers while its models are learned: `python -m tests.bench.serving`."""
