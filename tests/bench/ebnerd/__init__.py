"""Benchmarks of accuracy on a week of EB-NeRD's real traffic."""
