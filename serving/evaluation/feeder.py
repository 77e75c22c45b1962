"""Feeds the rows topic of evaluation with each example, score and prediction exactly once.

A feeder reads its share of the partitions of `examples`, `scores` and `predictions`. It writes the
columns that evaluation needs (`messages.py`), and its offsets, in one Kafka transaction. After any
crash, a batch is therefore in the rows topic once. The message has the same offsets, because Kafka
forgets those of a group that was empty for a week, or that an operator deleted. With each position
it has the topic id and the leader epoch. A recreated topic, or a log that lost records, is logged
and read on, because evaluation only measures: a gap costs some minutes of figures. Any number of
feeders share the partitions. They all write to the single partition of the rows topic, where the
impressions of a request meet.

The feeder uses confluent-kafka and not Faust, because the rate is high here: a Faust agent takes a
few thousand messages a second, and every prediction is a message.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from headrace.ingest.examples.batch import DamagedExamples, UnreadableExamples
from headrace.ingest.examples.batch import unpack as unpack_examples
from headrace.ingest.examples.continuity import Continuity
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.kafka.protocols import (
    AtEnd,
    BlockReader,
    Committed,
    PartitionAssigned,
    PartitionRevoked,
    Record,
    Source,
)
from headrace.ingest.kafka.reading.log_truncation import LogState, log_states
from headrace.ingest.kafka.transactional_ports import TransactionalPorts
from headrace.ingest.kafka.transactions import Outgoing
from headrace.learner.loop.scores import UnreadableScores
from headrace.learner.loop.scores import unpack as unpack_scores
from headrace.runtime.undecodable import UNDECODABLE
from headrace.serving.errors import ServingError
from headrace.serving.evaluation.messages import RowsBuilder, ServedPrediction, pack, unpack

log = logging.getLogger(__name__)

_GATHER_MS = 200
"""Time to collect rows for a message. Each message costs evaluation a write to its table."""
_MOST_ROWS = 20_000
"""Rows of a message: a few hundred kilobytes."""
_HEARTBEAT_MS = 1_000
"""Longest time between messages. Their wall time advances sources at their end."""


@dataclass(frozen=True, slots=True)
class FeedTopics:
    """Topics that a feeder reads and writes."""

    examples: str
    scores: str
    predictions: str
    rows: str


@dataclass(slots=True)
class FeedFigures:
    """Running totals for the metrics."""

    examples: int = 0
    scores: int = 0
    predictions: int = 0
    unusable: int = 0
    """Predictions that cannot be decoded, or with a score outside 0 to 1."""
    aborts: int = 0
    lost: int = 0
    """Records that retention removed before they were read, and examples missing in the topic."""


_decoder = msgspec.json.Decoder(ServedPrediction)


class Feeder:
    """Feeds from the assigned partitions. Not safe for use from several threads."""

    def __init__(
        self,
        ports: TransactionalPorts[BlockReader],
        topics: FeedTopics,
        model: str,
        fields: FieldSet,
        sample: float,
    ) -> None:
        """ports: their clock is wall time. sample: the share of requests to evaluate."""
        self._reader, self._transactions = ports.reader, ports.transactions
        self._now_ms, self._restoring, self._aborts = ports.now_ms, ports.restoring, ports.aborts
        self._topics, self._model, self._fields = topics, model, fields
        self._sample = sample
        self._ours: set[Source] = set()
        self._unplaced: set[Source] = set()
        self._standings: dict[Source, tuple[int | None, bool]] = {}
        self._positions: dict[Source, Committed] = {}
        self._topic_ids: dict[str, str] = {}
        self._continuity = Continuity()
        self._gathering = RowsBuilder(fields.slice_by, sample)
        self._since_ms = self._now_ms()
        self.figures = FeedFigures()
        self.read: dict[Source, int] = {}
        """Next offset to read, by source. Other threads may copy it."""

    def step(self, timeout_s: float) -> None:
        """Run each step once.

        1. place   start a gained partition at its last committed offset
        2. gather  collect rows from Kafka
        3. write   rows and offsets, if due; after an abort, return to the last commit

        Raises ServingError, and the errors of ingest.errors that are not temporary.
        """
        self._place()
        for found in self._reader.poll(timeout_s):
            if isinstance(found, Record):
                if found.source in self._ours:
                    self._gather(found)
                if self._gathering.size >= _MOST_ROWS:
                    self._write()
            elif isinstance(found, AtEnd):
                time_ms, _ = self._standings.get(found.source, (None, True))
                self._standings[found.source] = time_ms, True
                if found.source in self._ours:
                    self.read[found.source] = found.offset  # after transaction markers
            elif isinstance(found, PartitionAssigned):
                self._unplaced.add(found.source)
                self._standings[found.source] = None, False
            else:
                self._lose(found)
        waited_ms = self._now_ms() - self._since_ms
        if waited_ms >= (_GATHER_MS if self._positions else _HEARTBEAT_MS):
            self._write()

    def finish(self) -> None:
        """Write the collected rows."""
        if self._positions:
            self._write()

    def _place(self) -> None:
        if self._unplaced:
            self._restoring(self._place_once)

    def _place_once(self) -> None:
        stored = self._transactions.committed(self._unplaced)
        missing = self._unplaced - stored.keys()
        stored |= self._written(missing) if missing else {}
        topics = {source.topic for source in self._unplaced}
        self._topic_ids |= {topic: self._reader.topic_id(topic) for topic in topics}
        states = log_states(self._reader, stored)
        starts = {
            source: self._start(source, stored.get(source), states.get(source))
            for source in self._unplaced
        }
        for source, offset in starts.items():
            continued = states.get(source) is LogState.CONTINUED
            if source in missing or not continued:
                # committed with the next rows, so that a start finds this only once
                epoch = stored[source].leader_epoch if continued else -1
                self._positions[source] = Committed(offset, self._topic_ids[source.topic], epoch)
        self._reader.start(starts)
        self.read.update(starts)
        for source, offset in sorted(starts.items()):
            log.info("reading %s/%d from offset %d on", source.topic, source.partition, offset)
            self._continuity.forget(source)
        self._ours |= self._unplaced
        self._unplaced = set()

    def _start(self, source: Source, stored: Committed | None, state: LogState | None) -> int:
        """Return the offset to read from, and log what is missing before it."""
        first, end = self._reader.bounds(source)
        if stored is None or state is None:
            return first
        name, offset = _name(source), stored.offset
        if state is LogState.RECREATED:
            log.warning("topic %s was created again: reading %s from the start", source.topic, name)
            return first
        if state is LogState.EXPIRED:
            self.figures.lost += first - offset
            log.warning(
                "%s: retention removed the records at offsets %d to %d before evaluation read "
                "them: reading from offset %d on, without them",
                *(name, offset, first - 1, first),
            )
            return first
        if state is LogState.TRUNCATED:
            log.warning(
                "%s lost records before offset %d (an unclean election, or a power loss with one "
                "replica): records that Kafka wrote at these offsets later are not evaluated",
                name,
                offset,
            )
        return min(offset, end)

    def _written(self, sources: Iterable[Source]) -> dict[Source, Committed]:
        """Return the position of each source in the rows that were written."""
        named = {_name(source): source for source in sources}
        found: dict[Source, Committed] = {}
        for value in self._transactions.history(Source(self._topics.rows, 0)):
            rows = unpack(value)
            for name in named.keys() & rows.positions.keys():
                origin = rows.origins.get(name, ("", -1))
                found[named[name]] = Committed(rows.positions[name], *origin)
        for source, position in sorted(found.items()):
            log.warning(
                "no committed offset of %s: continuing at %d, where its rows end",
                _name(source),
                position.offset,
            )
        return found

    def _lose(self, lost: PartitionRevoked) -> None:
        self._standings.pop(lost.source, None)
        self._ours.discard(lost.source)
        self.read.pop(lost.source, None)
        self._unplaced.discard(lost.source)
        if lost.source in self._positions:
            # another feeder reads these again: a commit here would count them twice
            self._go_back()

    def _gather(self, record: Record) -> None:
        topics, topic = self._topics, record.source.topic
        time_ms = self._standings.get(record.source, (None, False))[0]
        reached_ms = None
        try:
            if topic == topics.examples:
                examples = unpack_examples(record.value, self._fields)
                self.figures.lost += self._continuity.warn(record, examples.before, len(examples))
                self._gathering.examples(examples)
                self.figures.examples += len(examples)
                # a partition begins with an empty batch: its joiner has reached no event time yet
                reached_ms = examples.watermark_ms if len(examples) else None
            elif topic == topics.scores:
                scores = unpack_scores(record.value)
                self._gathering.scores(scores)
                self.figures.scores += len(scores)
                reached_ms = int(scores.event_ms.max()) if len(scores) else None
            else:
                reached_ms = self._predicted(record)
        except (DamagedExamples, UnreadableScores) as error:
            # what it measures loses a batch; a feeder that stopped here would measure nothing
            log.warning("skips the damaged message %s: %s", record.place, error)
            self.figures.unusable += 1
            self._continuity.forget(record.source)
        except UnreadableExamples as error:
            raise ServingError(f"{record.place}: {error}") from error
        known = [each_ms for each_ms in (time_ms, reached_ms) if each_ms is not None]
        self._standings[record.source] = max(known, default=None), False
        self.read[record.source] = record.offset + 1
        self._positions[record.source] = Committed(
            record.offset + 1, self._topic_ids[topic], record.leader_epoch
        )

    def _predicted(self, record: Record) -> int | None:
        try:
            prediction = _decoder.decode(record.value)
        except UNDECODABLE:
            self.figures.unusable += 1
            return None
        if 0 < record.append_ms < prediction.time:
            # a request may name any time; one of tomorrow would end the minutes before it
            prediction = msgspec.structs.replace(prediction, time=record.append_ms)
        if prediction.model == self._model:
            if self._gathering.prediction(prediction):
                self.figures.predictions += 1
            else:
                self.figures.unusable += 1
        return prediction.time

    def _write(self) -> None:
        now_ms = self._now_ms()
        if not self._ours:
            self._since_ms = now_ms
            return
        standings = {_name(source): each for source, each in self._standings.items()}
        positions = {_name(source): position for source, position in self._positions.items()}
        message = self._gathering.take(now_ms, standings, positions)
        rows = Outgoing(Source(self._topics.rows, 0), pack(message))
        if not self._aborts.committed(lambda: self._transactions.write([rows], self._positions)):
            self.figures.aborts += 1
            self._go_back()
            return
        self._positions = {}
        self._since_ms = now_ms

    def _go_back(self) -> None:
        self._gathering = RowsBuilder(self._fields.slice_by, self._sample)
        self._positions = {}
        self._unplaced |= self._ours
        self._ours = set()
        for source in self._unplaced:
            self._standings[source] = None, False


def _name(source: Source) -> str:
    return f"{source.topic}/{source.partition}"
