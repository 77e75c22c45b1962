"""Benchmarks of the whole service, from a click in Kafka to an answer over HTTP."""
