"""Finds the position at which a joiner continues a partition.

The last batch of examples of each transaction carries the joiner's checkpoint. The batch decides,
because the checkpoint cannot be there without the examples, nor they without it. The committed
offsets only save reading again what was taken since without an example. They count if they name the
same transaction as the last batch.

Kafka alone does not promise that they do. It forgets the offsets of a group that was empty for
`offsets.retention.minutes`, or that an operator deleted. And its requests about transactions have
no sequence numbers. One that waited in a frozen connection, while its transaction was ended by
other means, may arrive during a later transaction of the same producer. A late request with offsets
is then committed with it. A late request to commit ends it early: it is committed in part.
`ingest.kafka.transactions` closes a producer that may have left such a request behind; this file
does not rely on that.

**A transaction that was committed in part** left batches without a checkpoint behind the last one
that has it. The joiner goes back to that checkpoint, and leaves out what these batches hold
(`ingest.joiner.written_examples`). Each of them names the position at which its transaction would
have ended (`until`). The joiner commits nothing before it has joined all of them again or reached
that position: the topic would no longer say which examples are ahead of the checkpoint.

**The topic always begins with a checkpoint**, so the offsets never decide alone: where its last
batch has none (it is empty, or an older headrace wrote it), the joiner first writes an empty batch
that has one.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.ingest.errors import BadCheckpoint
from headrace.ingest.examples.batch import Examples, notes_of, unpack
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.joiner.committed_state import SavedCheckpoint, load_checkpoint
from headrace.ingest.joiner.core.checkpoint import JoinerCheckpoint
from headrace.ingest.kafka.protocols import Committed, Source
from headrace.ingest.kafka.transactions import Transactions

log = logging.getLogger(__name__)


class LastPosition(NamedTuple):
    """The position at which a joiner continues a partition."""

    saved: SavedCheckpoint | None = None
    """The checkpoint to go back to; None where nothing was joined yet."""
    in_topic: bool = False
    """Whether a batch in the topic has a checkpoint."""
    ahead: tuple[Examples, ...] = ()
    """Batches behind that one: examples that are not to be written again."""
    until: JoinerCheckpoint | None = None
    """The end of the transaction of `ahead`, had it been whole; None: nothing is ahead."""


def continue_at(
    committed: SavedCheckpoint | None, tail: Sequence[SavedCheckpoint | None]
) -> tuple[SavedCheckpoint | None, int]:
    """Return the checkpoint to go back to, and how many batches are ahead of it.

    committed: of the committed offsets. tail: of each of the last batches of the topic, in order;
    None for one without a checkpoint.
    """
    places = [place for place, each in enumerate(tail) if each is not None]
    if not places:
        return committed, 0
    ahead, written = len(tail) - 1 - places[-1], tail[places[-1]]
    assert written is not None
    if ahead or committed is None or not _agree(committed, written):
        return written, ahead
    return committed, 0


class LastPositions(NamedTuple):
    """Reads the positions of one joiner."""

    transactions: Transactions
    topic: str
    """Of the examples."""
    fields: FieldSet
    join_again: bool
    """Whether the committed offsets decide alone, also if they are missing."""

    def of(self, sources: Iterable[Source]) -> dict[Source, LastPosition]:
        """Return the position of each of these partitions of the impressions.

        Dead letters written after the last examples may be written again. Raises BadCheckpoint,
        KafkaUnreachable.
        """
        sources = list(sources)
        committed = self.transactions.committed(sources)
        targets = {source: Source(self.topic, source.partition) for source in sources}
        tails: Mapping[Source, Sequence[bytes]] = {}
        if not self.join_again:
            tails = self.transactions.tail(targets.values(), _decides)
        return {
            source: self._of(source, committed.get(source), tails.get(target, ()))
            for source, target in targets.items()
        }

    def _of(
        self, shown: Source, committed: Committed | None, tail: Sequence[bytes]
    ) -> LastPosition:
        where, place = (f"{topic}/{shown.partition}" for topic in (shown.topic, self.topic))
        saved = None
        if committed is not None:
            saved = self._load(committed.metadata, where)
        notes = [notes_of(blob) for blob in tail]
        written = [
            self._load(note.checkpoint, place) if note.checkpoint else None for note in notes
        ]
        found, ahead = continue_at(saved, written)
        if found is None and tail:
            raise BadCheckpoint(
                f"{place}: expected the position of the joiner in its committed offsets or with "
                "the last examples, got neither: Kafka has forgotten the offsets, and an older "
                "headrace wrote the examples. Joining again from the first event would make the "
                "same examples twice. To do so, start the joiner once with "
                "`headrace ingest join --join-again`"
            )
        in_topic = any(written)
        if not ahead:
            if found is not saved:
                why = "none are committed" if saved is None else "they belong to other examples"
                log.warning(
                    "offsets of %s: %s; continuing after the last examples of %s", where, why, place
                )
            return LastPosition(found, in_topic)
        until = self._load(notes[-1].until, place).checkpoint if notes[-1].until else None
        batches = tuple(unpack(blob, self.fields) for blob in tail[-ahead:])
        log.warning(
            "%s: a transaction was committed in part, with %d examples; joining it again without "
            "them",
            place,
            sum(map(len, batches)),
        )
        return LastPosition(found, in_topic, batches, until)

    def _load(self, text: str, where: str) -> SavedCheckpoint:
        return load_checkpoint(text, self.fields.fingerprint, where)


def _decides(blob: bytes) -> bool:
    """Return whether a batch ends the search back: it has a checkpoint, or never had one."""
    notes = notes_of(blob)
    return bool(notes.checkpoint) or not notes.until


def _agree(saved: SavedCheckpoint, written: SavedCheckpoint) -> bool:
    """Return whether committed offsets name the transaction of the last examples.

    Older checkpoints have no names; then both must count as many examples.
    """
    if saved.batch and written.batch:
        return saved.batch == written.batch
    return saved.checkpoint.counters.examples == written.checkpoint.counters.examples
