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

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.ingest.examples.batch import Examples
    from headrace.ingest.kafka.protocols import Source


class Continuity:
    """Remembers the end of the last batch of each partition."""

    def __init__(self) -> None:
        self._ends: dict[Source, int] = {}

    def missing(self, source: Source, examples: Examples) -> int:
        """Return how many examples are missing before this batch, the next of its partition."""
        end = self._ends.pop(source, None)
        if examples.before < 0:
            return 0
        self._ends[source] = examples.before + len(examples)
        return 0 if end is None else max(0, examples.before - end)

    def forget(self, source: Source) -> None:
        """Note that the next batch of the partition need not follow the last one."""
        self._ends.pop(source, None)
