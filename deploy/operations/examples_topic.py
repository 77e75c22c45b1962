"""Reads the offsets that Kafka holds of a model's examples, and how long Kafka keeps what."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.ingest import StreamError
from headrace.ingest.kafka import (
    EventTopics,
    KafkaReader,
    PartitionAssigned,
    examples_topic,
    read_retention,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.ingest.kafka import KafkaRetention, KafkaSettings


@dataclass(frozen=True, slots=True)
class HeldTopic:
    """Offsets of the topic of a model's examples."""

    topic: str
    held: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """`topic id/partition`, as in the marks -> first offset, end offset."""
    trouble: str | None = None
    """Reason if Kafka did not answer; `held` is empty then."""
    retention: KafkaRetention | None = None
    """Retention of events, examples and offsets; None if this user may not read it."""

    def lag(self, marks: Mapping[str, int]) -> int | None:
        """Return the offsets that a bucket with these marks has not learned; None if unknown."""
        if self.trouble is not None:
            return None
        return sum(max(0, end - marks.get(source, 0)) for source, (_, end) in self.held.items())


def held_topic(settings: KafkaSettings, model: str) -> HeldTopic:
    """Return the offsets of a model's examples, or the reason why Kafka did not answer."""
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
                held = {f"{identity}/{each.partition}": reader.held(each) for each in sources}
            finally:
                reader.close()
    except StreamError as error:
        return HeldTopic(topic, trouble=str(error))
    with _silence():
        retention = _retention(settings, topic)
    return HeldTopic(topic, held, retention=retention)


def _retention(settings: KafkaSettings, examples: str) -> KafkaRetention | None:
    names = EventTopics()
    try:
        return read_retention(settings, [names.impressions, names.clicks, examples])
    except StreamError:  # needs a right that reading does not
        return None


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
