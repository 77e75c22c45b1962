"""Reads the offsets that Kafka holds of a model's examples, to compare with the marks."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.ingest import StreamError
from headrace.ingest.kafka import KafkaReader, PartitionAssigned, examples_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.ingest.kafka import KafkaSettings


@dataclass(frozen=True, slots=True)
class HeldTopic:
    """Offsets of the topic of a model's examples."""

    topic: str
    held: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """`topic id/partition`, as in the marks -> first offset, end offset."""
    trouble: str | None = None
    """Reason if Kafka did not answer; `held` is empty then."""

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
    return HeldTopic(topic, held)


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
