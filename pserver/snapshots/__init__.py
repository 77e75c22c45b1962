"""Snapshots of a model: rows and marks of every bucket, in files that any tool can read.

Taken from a replica while everybody works on, kept in a folder or in object storage, checked,
counted and pruned there, and loaded into a store that lost buckets, or into another one.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
