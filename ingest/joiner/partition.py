"""One partition of the running joiner: its core, its two sources, and its uncommitted output.

The output of the core stays here until it is committed together with the checkpoint. On an abort
both are discarded, and the core goes back to the last committed checkpoint. If the transaction was
committed in part, what it wrote is left out of the output (`last_position`).
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from headrace.ingest.dead_letters.letter import pack as pack_dead_letter
from headrace.ingest.errors import OffsetGone
from headrace.ingest.events.contract import Reason
from headrace.ingest.examples.batch import BatchNotes, Examples, concatenate
from headrace.ingest.examples.batch import pack as pack_examples
from headrace.ingest.examples.splitting import Cut, cut
from headrace.ingest.examples.splitting import reached_ms as clock_of
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.joiner.committed_state import SavedCheckpoint
from headrace.ingest.joiner.core.checkpoint import JoinerCheckpoint, JoinerCounters
from headrace.ingest.joiner.core.input import ChunkReader, EventSide
from headrace.ingest.joiner.core.join import DeadEvent, PartitionJoiner
from headrace.ingest.joiner.core.rules import NEVER
from headrace.ingest.joiner.core.watermark import reached_ms
from headrace.ingest.joiner.last_position import LastPosition
from headrace.ingest.joiner.written_examples import WrittenExamples
from headrace.ingest.kafka.protocols import Committed, MessageBlock, ReadPosition, Source
from headrace.ingest.kafka.reading.source_order import OrderBounds
from headrace.ingest.kafka.transactions import Outgoing

log = logging.getLogger(__name__)

LogBounds = dict[EventSide, tuple[int, int]]
"""By side: the first offset that Kafka has, and the first that it does not have yet."""


class JoinerPartition:
    """The same partition number of impressions and of clicks."""

    def __init__(
        self, fields: FieldSet, sources: Mapping[EventSide, Source], topic_ids: tuple[str, str]
    ) -> None:
        self.sources = dict(sources)
        self.core = PartitionJoiner(fields)
        self.paused: set[EventSide] = set()
        self.dirty_since_ms: int | None = None
        """Since when there is something to commit."""
        self.written = JoinerCounters()
        """The counters as of the last commit."""
        self.uncommitted = 0
        """Examples not yet committed."""
        self.dead: list[DeadEvent] = []
        self._passed_ms = self._next_passed_ms = NEVER
        """Event time of examples that readers know to be passed, as of the last commit and the next
        one. A reader takes an example once all partitions have passed it."""
        self._batch = self._next_batch = ""
        """Name of the last transaction with examples, as of the last commit and the next one."""
        self.sealed = False
        """Whether the last batch in the topic has a checkpoint."""
        self._last = LastPosition()
        self._written = WrittenExamples()
        self._fields, self._topic_ids = fields, topic_ids
        self._examples: list[Examples] = []
        self._ends: dict[EventSide, int] = {}  # of sources whose every record was offered
        self._begins: dict[EventSide, int] = {}
        self._epochs = dict.fromkeys(EventSide, -1)

    # ---------------------------------------------------------------- where to begin

    def joined_to(self, saved: SavedCheckpoint | None, side: EventSide) -> int:
        """Return the offset of a source of the present topics up to which events are joined."""
        if saved is None or saved.topic_ids != self._topic_ids:
            return 0
        at = saved.checkpoint
        return (at.shown if side is EventSide.IMPRESSIONS else at.clicked).position

    def restore(self, last: LastPosition, bounds: LogBounds) -> dict[Source, int]:
        """Go back to a checkpoint; return the offsets to read from. Raises OffsetGone."""
        saved, self._last, self._written = last.saved, last, WrittenExamples(last.ahead)
        self.sealed = last.in_topic and not last.ahead
        self._examples, self.dead, self.uncommitted = [], [], 0
        self.dirty_since_ms = None
        self._ends.clear()
        self.core = PartitionJoiner(self._fields)
        self.written = JoinerCounters()
        self._begins = {side: first for side, (first, _) in bounds.items()}
        self._epochs = dict.fromkeys(EventSide, -1)
        self._batch = self._next_batch = "" if saved is None else saved.batch
        if saved is None:
            return {self.sources[side]: first for side, first in self._begins.items()}
        if saved.topic_ids != self._topic_ids:
            raise OffsetGone(
                f"{self._where()}: expected the topics joined so far, with ids "
                f"{' and '.join(saved.topic_ids)}, got recreated topics with "
                f"{' and '.join(self._topic_ids)}"
            )
        checkpoint = saved.checkpoint
        readings = {EventSide.IMPRESSIONS: checkpoint.shown, EventSide.CLICKS: checkpoint.clicked}
        for side, reading in readings.items():
            first, end = bounds[side]
            begin = reading.rewind if reading.rewind >= 0 else first
            if not first <= begin <= end or reading.position > end:
                raise OffsetGone(
                    f"{self.sources[side].topic}/{self.sources[side].partition}: expected offsets "
                    f"{begin} (to read again from) to {reading.position} (joined so far), got "
                    f"{first} to {end}: retention overtook the joiner"
                )
            self._begins[side] = begin
        self._epochs = dict(zip(EventSide, saved.leader_epochs, strict=True))
        self.core.restore(checkpoint)
        self.written = checkpoint.counters
        return {self.sources[side]: begin for side, begin in self._begins.items()}

    def positions(self, saved: SavedCheckpoint) -> dict[Source, ReadPosition]:
        """Return the positions of a checkpoint whose leader epochs are known."""
        readings = saved.checkpoint.shown, saved.checkpoint.clicked
        return {
            self.sources[side]: ReadPosition(reading.position, epoch)
            for side, reading, epoch in zip(EventSide, readings, saved.leader_epochs, strict=True)
            if reading.position > 0 and epoch >= 0
        }

    # ---------------------------------------------------------------- taking

    def offer(self, side: EventSide, block: MessageBlock, reader: ChunkReader) -> int:
        """Offer more messages of a source to the core; return the event time that they reach."""
        self._ends.pop(side, None)
        self._epochs[side] = max(self._epochs[side], block.leader_epoch)
        chunk = reader.read(side, block)
        self.core.offer(chunk)
        return reached_ms(chunk.arrays, self._fields.label.window_ms)

    def ended(self, side: EventSide, offset: int, now_ms: int) -> None:
        """Note that all of a source up to `offset` was offered."""
        self._ends[side] = offset
        self.core.ended(side)
        self._touch(now_ms)  # the end may be past a transaction marker: commit it without events

    @property
    def waits(self) -> bool:
        """Whether the core needs more of some source before it can take an event."""
        return any(side not in self._ends and not self.core.queued(side) for side in self.sources)

    @property
    def queued(self) -> int:
        """Events offered and not yet taken."""
        return sum(self.core.queued(side) for side in self.sources)

    def advance(self, now_ms: int, limit: int, bounds: OrderBounds) -> int:
        """Advance the core; return how many events it took, or examples it made if these are more.

        Fewer than `limit`: it must wait.
        """
        joined = self.core.advance(now_ms, limit, *bounds)
        examples = self._written.without(joined.examples)
        if len(examples):
            self._examples.append(examples)
            self.uncommitted += len(examples)
        self.dead += joined.dead
        moved = max(joined.taken, len(joined.examples))
        if moved:
            self._touch(now_ms)
        return moved

    def _touch(self, now_ms: int) -> None:
        if self.dirty_since_ms is None:
            self.dirty_since_ms = now_ms

    # ---------------------------------------------------------------- writing

    def ready(self) -> bool:
        """Return whether there is something to commit, and it may be committed.

        Examples that are in the topic ahead of the last checkpoint must be behind the next one.
        """
        if self.dirty_since_ms is None or self.core.restoring or self.begins:
            return False
        until, left = self._last.until, len(self._written)
        if left and until is not None and _reached(self.core.checkpoint(), until):
            text = "%s: %d impressions and clicks of the topic were not joined again"
            log.warning(text, self._where(), left)
            self._written = WrittenExamples()
        return not self._written

    @property
    def begins(self) -> bool:
        """Whether the topic lacks a checkpoint. It comes before all examples."""
        return not self.sealed and not self._last.ahead

    def name(self, transaction: str, made_ms: int) -> None:
        """Name the next transaction. Its checkpoint has the name if it has a batch.

        made_ms: greatest event time of the examples of all partitions. A reader learns these once
        no partition has earlier ones. So a partition that passes more event time than readers know
        writes an empty batch if it has no examples.
        """
        passed_ms = self.core.watermark_ms - self._fields.label.behind_ms
        self._next_passed_ms = max(passed_ms, self._passed_ms)
        writes = bool(self._examples) or not self.sealed
        writes = writes or self._passed_ms < min(made_ms, passed_ms)
        self._next_batch = transaction if writes else self._batch

    def reached_ms(self) -> npt.NDArray[np.int64]:
        """Return the greatest event time up to each example that is not committed; shape (n,)."""
        if not self._examples:
            return np.zeros(0, np.int64)
        self._examples = [concatenate(self._examples)]
        return clock_of(self._examples[0])

    def messages(
        self,
        examples: Source,
        dead_letters: Source,
        rule: Cut,
        ends_ms: npt.NDArray[np.int64] | None = None,
    ) -> Iterator[Outgoing]:
        """Yield the messages to write: batches of examples, then dead letters.

        ends_ms: where batches of all partitions end (`examples.common_ends`); None: not known.
        The last batch carries the checkpoint, so that the position travels with the output: Kafka
        may forget committed offsets, and then the next joiner begins there. Its watermark is what
        this partition passes with the transaction. It is empty if there are no examples.
        """
        if self._next_batch != self._batch:
            saved = self._saved().to_json()
            *before, last = [Examples.empty(self._fields)]
            if self._examples:
                *before, last = cut(concatenate(self._examples), rule, ends_ms)
            begin = self.core.counters.examples - self.uncommitted
            for batch in before:
                numbered = replace(batch, before=begin)
                yield Outgoing(examples, pack_examples(numbered, BatchNotes(until=saved)))
                begin += len(batch)
            watermark_ms = self._next_passed_ms + self._fields.label.behind_ms
            last = replace(last, watermark_ms=watermark_ms, before=begin)
            yield Outgoing(examples, pack_examples(last, BatchNotes(saved)))
        for record, reason in self.dead:
            yield Outgoing(dead_letters, pack_dead_letter(record, reason))

    def offsets(self) -> dict[Source, Committed]:
        """Return the offsets to commit for both sources, with the checkpoint of the core."""
        saved = self._saved()
        checkpoint = saved.checkpoint
        shown, clicked = self.sources[EventSide.IMPRESSIONS], self.sources[EventSide.CLICKS]
        return {
            shown: Committed(
                self._offset(EventSide.IMPRESSIONS, checkpoint.shown.position),
                saved.to_json(),
                saved.leader_epochs[0],
            ),
            clicked: Committed(
                self._offset(EventSide.CLICKS, checkpoint.clicked.position),
                "",
                saved.leader_epochs[1],
            ),
        }

    def _saved(self) -> SavedCheckpoint:
        epochs = self._epochs[EventSide.IMPRESSIONS], self._epochs[EventSide.CLICKS]
        checkpoint = self.core.checkpoint()
        return SavedCheckpoint(
            self._fields.fingerprint, self._topic_ids, checkpoint, epochs, self._next_batch
        )

    def committed(self) -> tuple[JoinerCounters, dict[Reason, int]]:
        """Note that all output is committed; return the counts since the last commit."""
        counted = _less(self.core.counters, self.written)
        reasons: dict[Reason, int] = {}
        for _, reason in self.dead:
            reasons[reason] = reasons.get(reason, 0) + 1
        self.written, self._batch = self.core.counters, self._next_batch
        self._passed_ms = self._next_passed_ms
        self._examples, self.dead, self.uncommitted = [], [], 0
        self.dirty_since_ms, self.sealed = None, True
        return counted, reasons

    def _offset(self, side: EventSide, position: int) -> int:
        if side in self._ends and not self.core.queued(side) and not self.core.restoring:
            return max(position, self._ends[side])  # past markers: every event is taken
        return max(position, self._begins[side])

    def _where(self) -> str:
        shown = self.sources[EventSide.IMPRESSIONS]
        return f"{shown.topic}/{shown.partition}"


def _reached(at: JoinerCheckpoint, until: JoinerCheckpoint) -> bool:
    readings = (at.shown, until.shown), (at.clicked, until.clicked)
    taken = all(reading.position >= end.position for reading, end in readings)
    return taken and at.watermark_ms >= until.watermark_ms


def _less(counters: JoinerCounters, before: JoinerCounters) -> JoinerCounters:
    names = counters.__struct_fields__
    return JoinerCounters(*(getattr(counters, name) - getattr(before, name) for name in names))
