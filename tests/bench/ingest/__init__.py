"""Benchmarks of what comes before the learner: collector and joiner."""
