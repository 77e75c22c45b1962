"""The micro-batches of a streaming query of Spark as offsets of one source: each is learned once.

A micro-batch is the rows of one step of the query. (Those of a server are other ones: requests that
it scores in one call, `serving/models/micro_batching.py`.) Spark numbers the micro-batches of a
query from 0 and repeats the last one if the query is killed before its end. The number is the
offset: the rows of micro-batch b have the offsets from b * 2^32 on, in each staged file of its own
source in the marks (`staged_file`). A repeated micro-batch therefore continues after the rows that
the buckets have, and one that they have changes nothing.

A repeated micro-batch may have its rows in another order, and offsets count rows. So its staged
files are kept until the next micro-batch begins, and the repetition learns these files.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.learner.errors import LearnerError
from headrace.learner.loop.marks.topic_marks import topic_of

_ROW_BITS = 32


class StagedRowsMissing(LearnerError):
    """A micro-batch is partly learned, and its staged files are gone."""

    def __init__(self, batch: SparkMicroBatch, folder: str) -> None:
        super().__init__(
            f"micro-batch {batch.number} of {batch.source!r}: expected its staged rows in "
            f"{folder}, since the model has learned some of them, got none. Restore the folder, or "
            "a snapshot of the model from before this micro-batch"
        )


class SparkMicroBatchState(enum.Enum):
    """The state of a micro-batch in a model."""

    NEW = enum.auto()
    BEGUN = enum.auto()
    """Some bucket has rows of it, perhaps all of them."""
    PASSED = enum.auto()
    """A later one has begun, so this one is learned."""


class SparkMicroBatch(NamedTuple):
    """A micro-batch of a streaming query."""

    source: str
    """Names the query in the marks."""
    number: int
    """The number that Spark gives it, from 0."""

    @property
    def first(self) -> int:
        """The offset of the first row of each file."""
        return self.number << _ROW_BITS

    def state(self, marks: Iterable[Mapping[str, int]]) -> SparkMicroBatchState:
        """Return its state in a model whose buckets have these marks."""
        own = [
            mark for each in marks for name, mark in each.items() if topic_of(name) == self.source
        ]
        latest = max(own, default=0)
        if latest > (self.number + 1) << _ROW_BITS:
            return SparkMicroBatchState.PASSED
        return SparkMicroBatchState.BEGUN if latest > self.first else SparkMicroBatchState.NEW
