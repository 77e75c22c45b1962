"""Errors between a process and the parameter server, classed by the next step.

Only `Unreachable`, and its kind `OutOfMemory`, is worth a retry. Every other error stops the
process: going on would apply an event twice, lose one, or mix two models.
"""


class StoreError(Exception):
    """Any failure of the parameter server. The message says expected, got, and where."""


class Unreachable(StoreError):
    """A node did not answer in time, and may or may not have executed the call. Retry."""


class OutOfMemory(Unreachable):
    """A node is at its memory limit and did nothing. Retry: keepers make room by trimming logs."""


class AccessRefused(StoreError):
    """The server refused user, password or command. Stop; the operator grants it."""


class MissingBucket(StoreError):
    """A bucket has no version: its shard restarted without data. Run `pserver restore`."""


class BucketExists(StoreError):
    """A bucket cannot be loaded or created: it exists, or another process fills it. Stop."""


class MissingModel(StoreError):
    """The store has no model of that name. Stop; the operator runs `headrace pserver init`."""


class ModelExists(StoreError):
    """`create` found a model of that name with another shape or spec. Stop."""


class WrongModel(StoreError):
    """The store's model was created from another spec than that of this process. Stop."""


class Resharded(StoreError):
    """The model has other buckets since this process read its shape. Stop; start it again."""


class CorruptEntry(StoreError):
    """A log entry or row cannot be decoded, as its layout is of another version. Stop."""


class LostLease(StoreError):
    """Another keeper holds the bucket, so a fold or trim was refused. Release the bucket."""
