"""Queues of incoming batches, one a partition, read in the order of event time.

Partitions are filled by the same joiner but read at different speeds. If a model learned an hour of
one and then an hour of another, time would jump back and forth, which costs accuracy. So batches
are taken in windows (`learner.loop.merging`). A window has the batches of all partitions with the
least event times, and its examples are learned in the order of event time. A partition that may
still have an earlier batch is waited for (`ingest.kafka.reading.source_order`).

Marks and cursors are offsets of one topic, but Kafka's client only checks the topic's name. If the
topic is deleted and recreated, the client may continue at the old offset in the new topic and skip
everything before it. So topic ids are compared twice. A learner that starts refuses a topic if the
store has learned from another id and nothing from this one, or if single buckets have: only the
operator can say whether the new topic repeats, continues or skips what the old one held
(`accept_topic`). And before a push (`check_topics`) the topic must still have the id that its
examples count under. An id never comes back, so if it is the same now, it was the same when the
examples were read.

Retention may delete examples before they are learned. A learner refuses to start in such a gap,
unless the operator accepts it (`accept_gap`). It also stops where a batch does not follow the last
one: examples that Kafka did not deliver (`ingest.examples.continuity`). The marks then move over
the gap with the next push, as they move over transaction markers, and damaged messages that are
skipped.
"""

import itertools
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.ingest.errors import ExamplesMissing
from headrace.ingest.examples.batch import Examples
from headrace.ingest.examples.continuity import Continuity
from headrace.ingest.kafka.protocols import (
    AtEnd,
    PartitionAssigned,
    PartitionRevoked,
    Reader,
    ReadPosition,
    Record,
    Source,
)
from headrace.ingest.kafka.reading.source_order import SourceOrder
from headrace.learner.errors import LogTruncated, MarkOutsideTopic, TopicMadeAgain
from headrace.learner.loop.cursors import Cursors
from headrace.learner.loop.marks.topic_marks import check_topic_marks, epoch_source, topic_of
from headrace.learner.loop.merging import ExampleBatch, NextWindow
from headrace.learner.loop.pacing import LearnerPacing
from headrace.pserver.store import BucketAnswer

log = logging.getLogger(__name__)

_FOREVER = 1 << 61


@dataclass(slots=True)
class _PartitionQueue:
    name: str
    batches: deque[ExampleBatch] = field(default_factory=deque)
    end: int | None = None
    """First offset not yet in Kafka, while all before it was delivered."""
    paused: bool = False


class ExampleQueue:
    """The assigned partitions. Moves the cursors over what is learned or need not be learned."""

    def __init__(
        self,
        reader: Reader,
        cursors: Cursors,
        decode: Callable[[Record], Examples | None],
        *,
        label_delay_ms: int,
        pace: LearnerPacing,
        steady_ms: Callable[[], int],
        accept_topic: str = "",
        accept_gap: bool = False,
    ) -> None:
        """decode: None skips the message. `accept_topic`, `accept_gap`: see LearnerPorts."""
        self._reader, self._cursors, self._decode = reader, cursors, decode
        self._accept_topic = accept_topic
        self._topic_with_gaps = accept_topic
        """`accept_topic`, until every bucket has learned from it."""
        self._accept_gap = accept_gap
        self._gap_stops: dict[str, int] = {}  # name -> end of its counted gaps
        self.gap_offsets = 0
        """Offsets skipped because Kafka no longer had them."""
        self.committed: dict[Source, int] = {}
        """The last committed offsets; never changed, only replaced, so any thread may read it."""
        self._order, self._least_delay_ms = SourceOrder(pace.patience), _FOREVER
        self._label_delay_ms = label_delay_ms
        self._ahead_limit, self._steady_ms = pace.ahead_limit, steady_ms
        self._partitions: dict[Source, _PartitionQueue] = {}
        self._continuity = Continuity()
        self.unmarked: set[Source] = set()
        """Assigned partitions whose marks have not been read yet: see `begin`."""
        self._unchecked: set[tuple[str, str]] = set()  # topic, identity it was learned under
        self._identified_at_ms = steady_ms()

    def poll(self, timeout_s: float) -> None:
        """Receive records and assignments from Kafka."""
        for happening in self._reader.poll(timeout_s):
            match happening:
                case Record():
                    self._take(happening)
                case AtEnd(source, offset):
                    if (partition := self._partitions.get(source)) is not None:
                        partition.end = offset
                        self._order.ended(source, self._steady_ms())
                        self._reach_end(source)
                case PartitionAssigned(source):
                    self.unmarked.add(source)
                case PartitionRevoked(source):
                    self._lose(source)
        for source, partition in self._partitions.items():
            full = len(partition.batches) >= self._ahead_limit
            if full and not partition.paused:
                self._reader.pause([source])
            elif partition.paused and not full:
                self._reader.resume([source])
            partition.paused = full

    def begin(self, answers: Sequence[BucketAnswer]) -> None:
        """Start the assigned partitions, each at the lowest of its marks over all buckets.

        Raises TopicMadeAgain, BucketsBehind, LogTruncated, MarkOutsideTopic.
        """
        self.check_marks(answers, {source.topic for source in self.unmarked})
        positions: dict[Source, ReadPosition] = {}
        for source in sorted(self.unmarked):
            identity = self._reader.topic_id(source.topic)
            name = f"{identity}/{source.partition}"
            for each in (name, epoch_source(name)):
                self._cursors.gained(
                    each, np.array([answer.marks.get(each, 0) for answer in answers], np.int64)
                )
            offset, epoch = max(
                (answer.marks.get(name, 0), answer.marks.get(epoch_source(name), 0))
                for answer in answers
            )
            self._cursors.parked.gained(name, answers)
            if offset and epoch and identity != self._accept_topic:
                positions[source] = ReadPosition(offset, epoch - 1)
            self._partitions[source] = _PartitionQueue(name)
        if positions and (cut := self._reader.truncated(positions)):
            raise LogTruncated({source: positions[source].offset for source in cut}, identity)
        for source in sorted(self.unmarked):
            self._start(source)
        self.unmarked.clear()
        self.committed = self._offsets()

    def check_marks(
        self, answers: Sequence[BucketAnswer], topics: Iterable[str] | None = None
    ) -> None:
        """Check that the topics hold what buckets with these marks lack.

        `topics`: None for those that are read. Call it before a start, and after buckets went back:
        one of them may have been restored meanwhile. Raises TopicMadeAgain, BucketsBehind.
        """
        if topics is None:
            topics = {source.topic for source in self._partitions}
        marks = {answer.bucket: answer.marks for answer in answers}
        for topic in sorted(topics):
            identity = self._reader.topic_id(topic)
            if identity != self._topic_with_gaps:
                check_topic_marks(topic, identity, marks)

    def check_topics(self) -> None:
        """Check that the examples since the last check come from the topic they count under.

        Call it before a push. Raises TopicMadeAgain.
        """
        unchecked, self._unchecked = self._unchecked, set()
        self._check_identities(unchecked)

    def check_assigned_topics(self, interval_ms: int) -> None:
        """Check the topics of all partitions, also of those without new examples, once an interval.

        Raises TopicMadeAgain.
        """
        now = self._steady_ms()
        if now - self._identified_at_ms < interval_ms:
            return
        self._identified_at_ms = now
        self._check_identities(
            {(source.topic, topic_of(each.name)) for source, each in self._partitions.items()}
        )

    def _check_identities(self, unchecked: set[tuple[str, str]]) -> None:
        for topic, before in sorted(unchecked):
            if (now := self._reader.topic_id(topic)) != before:
                raise TopicMadeAgain(topic, before, now, {})

    def read_again(self, names: Collection[str]) -> None:
        """Go back to the lowest cursor of these sources, as far as they are assigned."""
        for source, partition in self._partitions.items():
            if partition.name in names:
                self._start(source)

    def ready(self) -> bool:
        """Return whether any batch waits to be learned."""
        return any(partition.batches for partition in self._partitions.values())

    def behind(self) -> bool:
        """Return whether batches queue up."""
        return any(len(partition.batches) > 1 for partition in self._partitions.values())

    def next_window(self, most: int) -> list[ExampleBatch]:
        """Return the batches to learn next, of about `most` examples; empty while one must wait.

        `most` 1: a batch alone. The batches of a partition are in their order. All count in the
        same buckets.
        """
        waiting = [each.batches for each in self._partitions.values() if each.batches]
        now = self._steady_ms()
        if not waiting:
            self._order.bounds(None, now)
            return []
        if len(self._partitions) == 1:
            most = 1  # there is nothing to merge
        window = NextWindow(waiting, self._least_delay_ms, most)
        following = window.following
        bounds = self._order.bounds(following, now)
        found = window.within(bounds)
        if not found and any(
            each.paused and each.batches and each.batches[-1].end_ms < following.event_ms
            for each in self._partitions.values()
        ):
            found = window.begun(bounds)
        whole = itertools.takewhile(lambda batch: bool(self.active(batch).all()), found)
        found = list(whole) or found[:1]
        for batch in found:
            self._partitions[batch.source].batches.popleft()
            self._least_delay_ms = min(self._least_delay_ms, batch.append_ms - batch.end_ms)
        return found

    def put_back(self, batches: Sequence[ExampleBatch]) -> None:
        """Return the batches that were just taken to their queues."""
        for batch in reversed(batches):
            self._partitions[batch.source].batches.appendleft(batch)

    def active(self, batch: ExampleBatch) -> npt.NDArray[np.bool_]:
        """Return the buckets that have not passed the batch; shape (buckets,)."""
        return self._cursors.active(batch.name, batch.offset)

    def skip_past(self, batch: ExampleBatch) -> None:
        """Note that every bucket goes on behind the batch: it is learned there, or parked."""
        self._advance(batch.source, batch.name, batch.offset + 1)
        if batch.leader_epoch >= 0:
            self._cursors.advance(epoch_source(batch.name), batch.leader_epoch + 1)
        self._reach_end(batch.source)

    def name_of(self, source: Source) -> str:
        """Return the name in the marks of a partition that is read, of the present topic."""
        return self._partitions[source].name

    def commit(self) -> None:
        """Commit the offsets of the slowest bucket to Kafka, for lag dashboards.

        Call it after pushes were answered. Once every bucket has learned from an accepted topic,
        a bucket that lacks examples of an earlier one was restored since, and is refused again.
        """
        self.committed = self._offsets()
        self._reader.commit(self.committed)
        if self._topic_with_gaps and any(
            topic_of(partition.name) == self._topic_with_gaps
            and self._cursors.begun(partition.name)
            for partition in self._partitions.values()
        ):
            self._topic_with_gaps = ""

    def _offsets(self) -> dict[Source, int]:
        return {s: self._cursors.resume_at(p.name) for s, p in self._partitions.items()}

    def _take(self, record: Record) -> None:
        partition = self._partitions.get(record.source)
        if partition is None:
            return
        if not self._cursors.active(partition.name, record.offset).any():
            self._continuity.forget(record.source)
            return
        examples = self._decode(record)
        if examples is None:
            self._continuity.forget(record.source)
            return
        if missing := self._continuity.missing(record.source, examples.before, len(examples)):
            if not self._accept_gap:
                raise ExamplesMissing(record.place, missing)
            log.warning("%s: goes on without %d missing examples", record.place, missing)
        complete_ms = examples.watermark_ms - self._label_delay_ms
        reached_ms = int(examples.event_ms[-1]) if examples else complete_ms
        self._order.delivered(record.source, reached_ms, record.append_ms, complete_ms)
        if examples:
            place = record.source, partition.name, record.offset
            batch = ExampleBatch(*place, examples, record.leader_epoch, record.append_ms)
            partition.batches.append(batch)

    def _reach_end(self, source: Source) -> None:
        partition = self._partitions[source]
        if partition.end is not None and not partition.batches:
            # between the last batch and the end are only transaction markers
            self._advance(source, partition.name, partition.end)

    def _advance(self, source: Source, name: str, stop: int) -> None:
        self._cursors.advance(name, stop)
        self._unchecked.add((source.topic, topic_of(name)))

    def _lose(self, source: Source) -> None:
        self.unmarked.discard(source)
        partition = self._partitions.pop(source, None)
        self._order.forget([source])
        if partition is not None:
            # its pending deltas still go out: the marks decide whether they may count
            self._cursors.lost(partition.name)
            self._cursors.lost(epoch_source(partition.name))
            self.committed = {s: at for s, at in self.committed.items() if s != source}

    def _start(self, source: Source) -> None:
        partition = self._partitions[source]
        offset = self._cursors.resume_at(partition.name)
        first, end = self._reader.bounds(source, offset)
        if self._accept_gap and offset < first:
            offset = self._skip_gap(source, partition.name, offset, first)
        if not first <= offset <= end:
            raise MarkOutsideTopic(source, partition.name, offset, first, end)
        partition.batches.clear()
        self._continuity.forget(source)
        partition.end = None
        self._order.begin([source])
        self._reader.start({source: offset})

    def _skip_gap(self, source: Source, name: str, offset: int, first: int) -> int:
        """Move all buckets over deleted examples; count these once. Returns the offset to read."""
        self.gap_offsets += max(0, first - max(offset, self._gap_stops.get(name, 0)))
        self._gap_stops[name] = first
        log.warning("%s: skips deleted examples at offsets %d to %d", source, offset, first)
        self._advance(source, name, first)
        return self._cursors.resume_at(name)
