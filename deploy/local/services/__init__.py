"""Kafka and Valkey as child processes of one machine, for demos, runs and tests."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
