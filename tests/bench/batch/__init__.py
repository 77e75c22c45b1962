"""Benchmarks of learning from files and tables: `fit` in one process, `spark` on executors."""
