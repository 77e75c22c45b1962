"""Reads the offsets that Kafka holds of a model's examples, and how long Kafka keeps what.

It also compares the stored positions of learner, joiner and scorer with the logs. Each process does
so at its start and stops if a log lost records, so an operator can find it before a restart does.
"""

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from headrace.deploy.operations.broker_clocks import ClockRange, read_clocks
from headrace.ingest.errors import StreamError
from headrace.ingest.examples.batch import UnreadableExamples, unpack
from headrace.ingest.examples.continuity import Continuity
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.kafka.protocols import Committed, PartitionAssigned, Source
from headrace.ingest.kafka.reading.bounded_reader import records_before
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.reading.log_truncation import LogState, log_states
from headrace.ingest.kafka.reading.offset_store import KafkaOffsets
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import (
    EventTopics,
    KafkaRetention,
    examples_topic,
    joiner_group,
    partition_counts,
    read_retention,
)
from headrace.learner.loop.marks.topic_marks import epoch_source
from headrace.runtime.clock import wall_ms
from headrace.serving.scoring.scoring_process import scorer_group

_EVENTS = EventTopics().impressions, EventTopics().clicks
_NEXT_OFFSETS = 200
"""Read of each partition, to find missing examples: where a learner stopped is at the beginning."""


@dataclass(frozen=True, slots=True)
class CutLog:
    """A log that lost records before the position of a reader."""

    reader: str
    """`learner`, `joiner` or `scorer`."""
    source: Source
    position: int
    """First offset that the reader has not read."""


@dataclass(frozen=True, slots=True)
class ExamplesBounds:
    """Offsets of the topic of a model's examples."""

    topic: str
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """`topic id/partition`, as in the marks -> first offset, end offset."""
    trouble: str | None = None
    """Reason if Kafka did not answer; `bounds` is empty then."""
    retention: KafkaRetention | None = None
    """Retention of events, examples and offsets; None if this user may not read it."""
    cut: Sequence[CutLog] = ()
    """Logs that lost records before a stored position."""
    missing: Mapping[str, int] = field(default_factory=dict)
    """TOPIC/PARTITION@OFFSET of a batch not learned yet -> examples missing before it."""
    clocks: Mapping[int, ClockRange] = field(default_factory=dict)
    """Id of a broker -> its clock, compared with this machine's."""

    def lag(self, marks: Mapping[str, int]) -> int | None:
        """Return the offsets that a bucket with these marks has not learned; None if unknown."""
        if self.trouble is not None:
            return None
        return sum(max(0, end - marks.get(source, 0)) for source, (_, end) in self.bounds.items())


def topic_bounds(
    settings: KafkaSettings,
    model: str,
    marks: Sequence[Mapping[str, int]] = (),
    fields: FieldSet | None = None,
) -> ExamplesBounds:
    """Return the offsets of a model's examples, or the reason why Kafka did not answer.

    marks: of the buckets, to compare them and the committed offsets with the logs. fields: of the
    model, to look for missing examples and at the brokers' clocks, too.
    """
    topic = examples_topic(model)
    try:
        with _silence():
            # the last stable offset would hide a batch that was committed a moment ago
            reader = KafkaReader(settings, None, [topic], read_committed=False)
            try:
                identity = reader.topic_id(topic)
                sources = [
                    each.source for each in reader.poll(0.0) if isinstance(each, PartitionAssigned)
                ]
                bounds = {f"{identity}/{each.partition}": reader.bounds(each) for each in sources}
                learned = {
                    each: _learned(f"{identity}/{each.partition}", marks) for each in sources
                }
                cut = _cut(settings, reader, model, learned) if marks else []
            finally:
                reader.close()
            missing = _missing(settings, learned, fields) if fields and marks else {}
    except StreamError as error:
        return ExamplesBounds(topic, trouble=str(error))
    with _silence():
        retention = _retention(settings, topic)
        clocks = _clocks(settings, topic) if fields else {}
    return ExamplesBounds(topic, bounds, None, retention, cut, missing, clocks)


def _learned(source: str, marks: Sequence[Mapping[str, int]]) -> Committed:
    """Return the position that a learner compares at a start."""
    offset, epoch = max(
        ((each.get(source, 0), each.get(epoch_source(source), 0)) for each in marks),
        default=(0, 0),
    )
    return Committed(offset, "", epoch - 1)


def _cut(
    settings: KafkaSettings, reader: KafkaReader, model: str, learned: Mapping[Source, Committed]
) -> list[CutLog]:
    stored = {"learner": dict(learned)}
    counts = partition_counts(settings, _EVENTS)
    events = [Source(topic, number) for topic, count in counts.items() for number in range(count)]
    for process, group in (("joiner", joiner_group(model)), ("scorer", scorer_group(model))):
        offsets = KafkaOffsets(settings, group)
        try:
            found = offsets.committed(events) if events else {}
        finally:
            offsets.close()
        # metadata of the joiner is a checkpoint, and a recreated topic is no truncation
        stored[process] = {
            source: Committed(at, "", epoch) for source, (at, _, epoch) in found.items()
        }
    return [
        CutLog(process, source, positions[source].offset)
        for process, positions in stored.items()
        for source, state in sorted(log_states(reader, positions).items())
        if state is LogState.TRUNCATED
    ]


def _missing(
    settings: KafkaSettings, learned: Mapping[Source, Committed], fields: FieldSet
) -> dict[str, int]:
    """Return where the next batches to learn do not follow each other, nor the last one learned."""
    ends: dict[Source, int] = {}
    [topic] = {source.topic for source in learned}
    with closing(KafkaReader(settings, None, [topic])) as reader:
        reader.poll(0.0)
        for source, (at, _, _) in learned.items():
            first, stable = reader.bounds(source)
            if first < at < stable:
                ends[source] = min(stable, at + _NEXT_OFFSETS)
    if not ends:
        return {}
    found = records_before(settings, ends, lambda each: each.offset < learned[each.source].offset)
    continuity, missing = Continuity(), {}
    for record in itertools.chain.from_iterable(found.values()):
        try:
            examples = unpack(record.value, fields)
        except UnreadableExamples:  # a learner that gets there says so
            continuity.forget(record.source)
            continue
        if gap := continuity.missing(record.source, examples.before, len(examples)):
            missing[record.place] = gap
    return missing


def _retention(settings: KafkaSettings, examples: str) -> KafkaRetention | None:
    try:
        return read_retention(settings, [*_EVENTS, examples])
    except StreamError:  # needs a right that reading does not
        return None


def _clocks(settings: KafkaSettings, examples: str) -> dict[int, ClockRange]:
    try:
        return read_clocks(settings, [*_EVENTS, examples], wall_ms)
    except StreamError:  # needs the right to read events
        return {}


@contextmanager
def _silence() -> Iterator[None]:
    """Silence the log of connection attempts: the result has the reason."""
    log = logging.getLogger("headrace.ingest")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
