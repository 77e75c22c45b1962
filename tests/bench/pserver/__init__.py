"""Benchmarks of the parameter server: rates, memory, snapshots."""
