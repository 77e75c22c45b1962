"""What Kafka holds of a model's examples: what the store's marks are measured against."""

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
    """The topic of a model's examples, source by source."""

    topic: str
    held: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """`topic id/partition`, as marks name it -> first offset held, first not yet held."""
    trouble: str | None = None
    """Why Kafka did not tell; then `held` is empty."""

    def lag(self, marks: Mapping[str, int]) -> int | None:
        """Return how many offsets a bucket with these marks has yet to learn; None: not known."""
        if self.trouble is not None:
            return None
        return sum(max(0, end - marks.get(source, 0)) for source, (_, end) in self.held.items())


def held_topic(settings: KafkaSettings, model: str) -> HeldTopic:
    """Ask Kafka what it holds of a model's examples. What it does not answer is in the answer."""
    topic = examples_topic(model)
    try:
        with _silence():
            # the last stable offset would hide a batch committed a moment ago
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
    """Keep the client from logging every attempt to connect: what is wrong is in the answer."""
    log = logging.getLogger("headrace.ingest")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
