"""Committed offsets are read by a client that needs no member of the group, on a real Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.ingest.kafka.consumer import KafkaReader
from headrace.ingest.kafka.offset_store import KafkaOffsets
from headrace.ingest.kafka.protocols import Committed, PartitionAssigned, Source
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import TopicSpec, ensure_topics
from headrace.ingest.kafka.transactions import KafkaTransactions
from tests.ingest.test_kafka import poll_until

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_member_that_was_dropped_reads_its_committed_offsets_before_it_polls(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    settings, group = KafkaSettings(kafka), fresh_name("group")
    topic = fresh_name("topic")
    ensure_topics(settings, [TopicSpec(topic, 1)])
    source = Source(topic, 0)
    offsets = KafkaOffsets(settings, group)
    transactions = KafkaTransactions(settings, fresh_name("writer"), offsets)
    transactions.write([], {source: Committed(7, "saved", 3)})
    transactions.close()
    offsets.close()
    first = KafkaReader(settings, group, [topic], instance="one")
    poll_until(first, lambda found: any(isinstance(each, PartitionAssigned) for each in found))
    second = KafkaReader(settings, group, [topic], instance="one")  # fences the first
    poll_until(second, lambda found: any(isinstance(each, PartitionAssigned) for each in found))
    second.close()
    assert first.committed([source]) == {source: (7, "saved", 3)}
    first.close()
