"""What can go wrong between a process and the parameter server, classed by what to do next.

`Unreachable`, and `OutOfMemory` among it, is the only one worth waiting for. Every other one stops
the process: going on would apply an event twice, lose one, or mix two models.
"""


class StoreError(Exception):
    """Any failure of the parameter server. The message says what was expected and found, where."""


class Unreachable(StoreError):
    """A node did not answer, or not in time: what it did with the call is unknown. Retry."""


class OutOfMemory(Unreachable):
    """A node is at its memory limit and did nothing. Retry: keepers make room by trimming logs."""


class AccessRefused(StoreError):
    """The server refused user, password or command. Stop; the operator grants it."""


class MissingBucket(StoreError):
    """A bucket has no version: its shard came back empty. Stop; `headrace pserver restore`."""


class BucketExists(StoreError):
    """`load` was to fill a bucket that is there, or that somebody else fills just now. Stop."""


class MissingModel(StoreError):
    """The store holds no model of that name. Stop; the operator runs `headrace pserver init`."""


class ModelExists(StoreError):
    """`create` found the model already there, with another shape or spec. Stop."""


class WrongModel(StoreError):
    """The store's model was made from another spec than this process has. Stop."""


class CorruptEntry(StoreError):
    """A log entry or row cannot be decoded: its layout is not the one this version writes. Stop."""


class LostLease(StoreError):
    """Another keeper took the bucket: this one's fold or trim was refused. Let the bucket go."""
