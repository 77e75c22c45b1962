"""Benchmarks of the collector and the joiner."""
