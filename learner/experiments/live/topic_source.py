"""A topic of examples as the source of an experiment: batches of all partitions in one order.

The next batch is that of the partition whose event time is furthest behind. Its event time is the
greatest watermark of its batches so far. Ties go to the lower partition. The order is therefore a
function of the log, unless batches are late.

A partition without a batch leaves open which batch is next. The source then waits for it, but not
for longer than `hold_s`: a partition that is idle must not stop the experiment. If a joiner makes
no progress for longer than that in one partition alone, its batches are late: the control took
others before them. Each arm must learn the same examples in the same order as the control, or their
losses could not be paired. So the first pass notes where it took each late batch, and every cohort
that reads the log again takes it there (`FirstPass`). The notes are saved with the run, and
published before the records that depend on them (`published_order`). A run that lost its folder
therefore takes every batch where it was taken. *Refused:* the order of arrival, which differs from
read to read.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace.ingest.examples.batch import DamagedExamples, Examples, UnreadableExamples, unpack
from headrace.ingest.examples.continuity import Continuity
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.kafka.protocols import AtEnd, PartitionAssigned, Reader, Record, Source
from headrace.learner.batch.sources import ExampleBlock
from headrace.learner.errors import ExamplesExpired, WrongExamples

log = logging.getLogger(__name__)

_MOST_QUEUED_BYTES = 4 << 20
"""Limit of one partition, which is then paused until the others caught up."""
_POLL_S = 0.2
"""Waiting for a batch; as long until a stop is noticed."""


class TopicPosition(NamedTuple):
    """The place between two batches."""

    offsets: tuple[int, ...]
    """First offset of each partition that was not delivered."""
    reached_ms: tuple[int, ...]
    """Event time that the batches of each partition reached."""


class FirstPass:
    """The order in which batches were taken for the first time. It can be pickled.

    Batches are taken in the order of their keys: event time, then partition. A late batch has a
    lower key than the batch before it, so it gets the next higher one here, by its offset.
    """

    def __init__(
        self, front: TopicPosition, late: Mapping[tuple[int, int], int] | None = None
    ) -> None:
        self.front = front
        """The place that no reading has passed."""
        self.late = dict(late or {})
        """Partition and offset of a late batch -> its event time, in the order of the notes."""

    def key(self, partition: int, offset: int, reached_ms: int) -> tuple[int, int]:
        """Return the key of a batch. `reached_ms`: event time of its partition with it."""
        return max(reached_ms, self.late.get((partition, offset), 0)), partition

    def note(self, partition: int, offset: int, reached_ms: int) -> int:
        """Take note of the batch behind the front; return the event time of its key."""
        last_ms, last = max((each, number) for number, each in enumerate(self.front.reached_ms))
        if (reached_ms, partition) < (last_ms, last):
            reached_ms = last_ms + (partition < last)
            self.late[partition, offset] = reached_ms
        offsets, reached = list(self.front.offsets), list(self.front.reached_ms)
        offsets[partition], reached[partition] = offset + 1, reached_ms
        self.front = TopicPosition(tuple(offsets), tuple(reached))
        return reached_ms


class _Queued(NamedTuple):
    offset: int
    append_ms: int
    value: bytes
    examples: Examples


class _Partition:
    """The fetched batches of one partition."""

    def __init__(self, offset: int, reached_ms: int) -> None:
        self.offset, self.reached_ms = offset, reached_ms
        self.queue: deque[_Queued] = deque()
        self.bytes = 0
        self.end: int | None = None
        """First offset not yet written, if all before it were fetched."""
        self.paused = False

    @property
    def next_ms(self) -> int:
        """Event time of the partition with its next batch."""
        return max(self.reached_ms, self.queue[0].examples.watermark_ms)

    @property
    def passed(self) -> int:
        """The first offset that was not delivered, beyond markers of transactions."""
        return self.offset if self.queue or self.end is None else max(self.offset, self.end)


class TopicSource:
    """The examples of a topic from given offsets on."""

    def __init__(
        self,
        open_reader: Callable[[], Reader],
        topic: str,
        topic_id: str,
        fields: FieldSet,
        begins: Sequence[int],
        *,
        hold_s: float,
        now_ms: Callable[[], int],
    ) -> None:
        """`begins`: the first offset of each partition. now_ms: Unix time."""
        self._open, self._topic, self._fields = open_reader, topic, fields
        self.begins = tuple(begins)
        self.identity = f"{topic} {topic_id} from {','.join(map(str, self.begins))}"
        self._hold_ms, self._now_ms = 1000.0 * hold_s, now_ms
        self._readers: set[_TopicReading] = set()
        self._end: TopicPosition | None = None
        self.first_pass = FirstPass(self.first())
        """The run saves it with its state."""
        self._asking = open_reader()

    @property
    def sources(self) -> list[Source]:
        """The partitions."""
        return [Source(self._topic, partition) for partition in range(len(self.begins))]

    def first(self) -> TopicPosition:
        """Return the place before the first batch."""
        return TopicPosition(self.begins, (0,) * len(self.begins))

    def end_at(self, position: TopicPosition) -> None:
        """End the topic at a position; the first call decides."""
        self._end = self._end or position

    def bounds(self, source: Source, reached: int = 0) -> tuple[int, int]:
        """Return the first offset that Kafka has, and the first that it does not have yet."""
        return self._asking.bounds(source, reached)

    def whole(self) -> bool:
        """Return whether Kafka still has the first examples, which a new arm begins with."""
        return all(
            self.bounds(source)[0] <= self.begins[source.partition] for source in self.sources
        )

    def passed(self) -> dict[Source, int]:
        """Return the offsets that the cohort in front has passed."""
        readings = list(self._readers)
        if not readings:
            return {}
        return {
            source: max(each.partitions[source.partition].passed for each in readings)
            for source in self.sources
        }

    def blocks(self, after: object) -> Iterator[ExampleBlock]:
        """Yield the batches behind a position, and empty blocks while the topic has no more.

        Raises ExamplesExpired, WrongExamples, and the errors of `Reader.poll`.
        """
        position = after if isinstance(after, TopicPosition) else self.first()
        reading = _TopicReading(
            *(self._open(), self.sources, position, self._fields, self.first_pass)
        )
        self._readers.add(reading)
        try:
            while not self._ended(reading):
                chosen = reading.furthest_behind(self._now_ms() - self._hold_ms, self._end)
                if chosen is not None:
                    taken = reading.take(chosen)
                    yield ExampleBlock(taken, reading.position)
                elif not reading.fetch(_POLL_S):
                    yield ExampleBlock(Examples.empty(self._fields), reading.position)
        finally:
            self._readers.discard(reading)
            reading.reader.close()

    def _ended(self, reading: _TopicReading) -> bool:
        if self._end is None:
            return False
        reached = zip(reading.position.offsets, self._end.offsets, strict=True)
        return all(offset >= end for offset, end in reached)

    def close(self) -> None:
        """Close the reader that answers `bounds`. Those of `blocks` close with their iterators."""
        self._asking.close()


class _TopicReading:
    """One pass over the topic."""

    def __init__(
        self,
        reader: Reader,
        sources: list[Source],
        position: TopicPosition,
        fields: FieldSet,
        first_pass: FirstPass,
    ) -> None:
        self.reader, self._sources, self._fields = reader, sources, fields
        self._first_pass, self._continuity = first_pass, Continuity()
        self.partitions = [
            _Partition(offset, reached_ms)
            for offset, reached_ms in zip(position.offsets, position.reached_ms, strict=True)
        ]
        assigned: set[Source] = set()
        while not assigned.issuperset(sources):
            news = reader.poll(_POLL_S)
            assigned |= {each.source for each in news if isinstance(each, PartitionAssigned)}
        for source, partition in zip(sources, self.partitions, strict=True):
            first, _ = reader.bounds(source)
            if first > partition.offset:
                raise ExamplesExpired(
                    f"topic {source.topic}, partition {source.partition}: expected examples from "
                    f"offset {partition.offset}, got {first}: Kafka deleted those between. Start "
                    "again with --restart, or keep examples for longer (retention.ms)"
                )
        reader.start(
            {source: self.partitions[source.partition].offset for source in sources},
        )

    @property
    def position(self) -> TopicPosition:
        """The place behind the last batch that was taken."""
        return TopicPosition(
            tuple(each.offset for each in self.partitions),
            tuple(each.reached_ms for each in self.partitions),
        )

    def fetch(self, timeout_s: float) -> bool:
        """Fetch what the topic has; return whether there was anything."""
        arrived = False
        for event in self.reader.poll(timeout_s):
            if isinstance(event, Record):
                partition = self.partitions[event.source.partition]
                partition.end = None
                arrived = True
                if (examples := self._unpacked(event)) is not None:
                    queued = _Queued(event.offset, event.append_ms, event.value, examples)
                    partition.queue.append(queued)
                    partition.bytes += len(event.value)
            elif isinstance(event, AtEnd):
                self.partitions[event.source.partition].end = event.offset
                arrived = True
        self._balance()
        return arrived

    def furthest_behind(self, before_ms: float, end: TopicPosition | None) -> int | None:
        """Return the partition of the next batch; None if it is not fetched, or not known yet.

        before_ms: append time of the batches that wait for idle partitions no longer. A reading
        behind the front waits for all that is before it.
        """
        if self._behind:
            before_ms, end = float("-inf"), self._first_pass.front
        waiting = [
            number
            for number, each in enumerate(self.partitions)
            if each.queue and (end is None or each.queue[0].offset < end.offsets[number])
        ]
        number = min(waiting, key=self._key, default=None)
        if number is None:
            return None
        for other, each in enumerate(self.partitions):
            over = end is not None and each.offset >= end.offsets[other]
            if each.queue or over:
                continue
            if each.end is None or self.partitions[number].queue[0].append_ms > before_ms:
                return None
        return number

    def take(self, partition: int) -> Examples:
        """Return the next batch of a partition, which was fetched."""
        chosen, reached_ms = self.partitions[partition], self._key(partition)[0]
        if not self._behind:
            reached_ms = self._first_pass.note(partition, chosen.queue[0].offset, reached_ms)
        chosen.reached_ms = reached_ms
        taken = chosen.queue.popleft()
        chosen.offset = taken.offset + 1
        chosen.bytes -= len(taken.value)
        return taken.examples

    @property
    def _behind(self) -> bool:
        return self.position.offsets != self._first_pass.front.offsets

    def _key(self, partition: int) -> tuple[int, int]:
        each = self.partitions[partition]
        return self._first_pass.key(partition, each.queue[0].offset, each.next_ms)

    def _unpacked(self, record: Record) -> Examples | None:
        """Return the examples of a message; None if it is damaged: it is so for every arm."""
        try:
            examples = unpack(record.value, self._fields)
        except DamagedExamples as error:
            log.warning("skips the damaged message %s: %s", record.place, error)
            self._continuity.forget(record.source)
            return None
        except UnreadableExamples as error:
            raise WrongExamples(record.source.topic, error) from error
        self._continuity.warn(record, examples.before, len(examples))
        return examples

    def _balance(self) -> None:
        for source, each in zip(self._sources, self.partitions, strict=True):
            if not each.paused and each.bytes > _MOST_QUEUED_BYTES:
                self.reader.pause([source])
                each.paused = True
            elif each.paused and each.bytes < _MOST_QUEUED_BYTES // 4:
                self.reader.resume([source])
                each.paused = False
