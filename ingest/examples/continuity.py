"""Tells whether a reader was given every batch of a partition, by the numbers in the batches.

Offsets cannot tell: markers and aborted records have offsets too, so gaps are ordinary. A client
that skipped a batch, or a log that lost one, would change a model unnoticed. The joiner therefore
writes with each batch how many examples the partition had before it (`Examples.before`). The next
batch must begin where the last one ended.

A number that is too small is no gap: `headrace ingest join --join-again` begins to count again. And
after a batch without a number (an older headrace wrote it), a skipped message or a new position,
the next batch is not compared.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.ingest.examples.arrow_batch import UnreadableBatch

if TYPE_CHECKING:
    from headrace.ingest.kafka.protocols import Record, Source

log = logging.getLogger(__name__)


def examples_before(metadata: Mapping[bytes, bytes]) -> int:
    """Return how many examples of the partition come before a batch; -1 if it does not say so.

    Raises UnreadableBatch.
    """
    number = metadata.get(b"before", b"-1")
    try:
        return int(number)
    except ValueError as error:
        raise UnreadableBatch(f"expected a number of examples, got {number!r}") from error


class Continuity:
    """Remembers the end of the last batch of each partition."""

    def __init__(self) -> None:
        self._ends: dict[Source, int] = {}

    def missing(self, source: Source, before: int, count: int) -> int:
        """Return how many examples are missing before the next batch of a partition.

        before: its number. count: of its examples.
        """
        end = self._ends.pop(source, None)
        if before < 0:
            return 0
        self._ends[source] = before + count
        return 0 if end is None else max(0, before - end)

    def warn(self, record: Record, before: int, count: int) -> int:
        """Log what is missing, and return it: for a reader that goes on without it."""
        if missing := self.missing(record.source, before, count):
            log.warning("%s: %d examples before it are missing", record.place, missing)
        return missing

    def forget(self, source: Source) -> None:
        """Note that the next batch of the partition need not follow the last one."""
        self._ends.pop(source, None)
