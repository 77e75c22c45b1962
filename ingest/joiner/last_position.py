"""Finds the position at which a joiner continues a partition.

The last batch of examples of each transaction carries the joiner's checkpoint. The batch decides,
because the checkpoint cannot be there without the examples, nor they without it. The committed
offsets only save reading again what was taken since without an example. They count if they name the
same transaction as the last batch.

Kafka alone does not promise that they do. It forgets the offsets of a group that was empty for
`offsets.retention.minutes`, or that an operator deleted. And requests with offsets have no sequence
numbers. One that waited in a frozen connection while its transaction was aborted may arrive during
a later transaction of the same producer, and is committed with it. Aborts therefore end a producer
(ingest.kafka.transactions); this comparison does not rely on that.

In a topic without examples, the committed offsets decide alone: retention may have taken them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from headrace.ingest.errors import BadCheckpoint
from headrace.ingest.examples import checkpoint_of
from headrace.ingest.joiner.committed_state import load_checkpoint
from headrace.ingest.kafka import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.ingest.joiner.committed_state import SavedCheckpoint
    from headrace.ingest.kafka import Committed

log = logging.getLogger(__name__)


class LastPosition(NamedTuple):
    """The position at which each partition of a joiner continues."""

    last: Callable[[Iterable[Source]], Mapping[Source, bytes]]
    """Returns the last committed message of each partition that has one."""
    topic: str
    """Of the examples."""
    fingerprint: str
    join_again: bool
    """Whether the committed offsets decide alone, also if they are missing."""

    def of(
        self, sources: Iterable[Source], committed: Mapping[Source, Committed]
    ) -> dict[Source, SavedCheckpoint | None]:
        """Return the last checkpoint of each partition; None where nothing was joined yet.

        `sources`: the partitions of the impressions. Dead letters written after the last examples
        may be written again. Raises BadCheckpoint, KafkaUnreachable.
        """
        targets = {source: Source(self.topic, source.partition) for source in sources}
        last = {} if self.join_again else self.last(targets.values())
        return {
            source: self._of(source, committed.get(source), last.get(target))
            for source, target in targets.items()
        }

    def _of(
        self, shown: Source, committed: Committed | None, last: bytes | None
    ) -> SavedCheckpoint | None:
        where, place = (f"{topic}/{shown.partition}" for topic in (shown.topic, self.topic))
        saved = None
        if committed is not None:
            saved = load_checkpoint(committed.metadata, self.fingerprint, where)
        if self.join_again:
            return saved
        text = "" if last is None else checkpoint_of(last)
        if text:
            written = load_checkpoint(text, self.fingerprint, place)
            return self._decide(saved, written, where, place)
        if saved is None and last is not None:
            raise BadCheckpoint(
                f"{place}: expected the position of the joiner in its committed offsets or with "
                "the last examples, got neither: Kafka has forgotten the offsets, and an older "
                "headrace wrote the examples. Joining again from the first event would make the "
                "same examples twice. To do so, start the joiner once with "
                "`headrace ingest join --join-again`"
            )
        return saved

    def _decide(
        self, saved: SavedCheckpoint | None, written: SavedCheckpoint, where: str, place: str
    ) -> SavedCheckpoint:
        """Return the committed checkpoint if it belongs to the last examples, else theirs."""
        if saved is not None and _agree(saved, written):
            return saved
        why = "none are committed" if saved is None else "they belong to other examples"
        log.warning(
            "offsets of %s: %s; continuing after the last examples of %s", where, why, place
        )
        return written


def _agree(saved: SavedCheckpoint, written: SavedCheckpoint) -> bool:
    """Return whether committed offsets name the transaction of the last examples.

    Older checkpoints have no names; then both must count as many examples.
    """
    if saved.batch and written.batch:
        return saved.batch == written.batch
    return saved.checkpoint.counters.examples == written.checkpoint.counters.examples
