"""Committed offsets of a group that reads nothing: a place in Kafka to keep how far somebody came.

A transaction that commits them together with messages makes both true at once (see transactions).

Kafka answers source by source, and an error of one stands beside an offset like that of a source
never committed. Who did not look there would begin at the beginning, and do everything twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

from headrace.ingest.kafka.error_translation import translate, translated
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.retry import retry_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.ingest.kafka.settings import KafkaSettings


def committed_offsets(
    consumer: Consumer, settings: KafkaSettings, sources: Iterable[Source]
) -> dict[Source, tuple[int, str]]:
    """Return committed offset and metadata of each source that has one.

    Waits for a transaction that is still under way on them. Raises KafkaUnreachable if it takes
    longer than `connect_timeout_s`: ask again.
    """
    doing, address = "reading committed offsets", settings.bootstrap
    partitions = [TopicPartition(source.topic, source.partition) for source in sources]
    with translated(doing, address):
        found = consumer.committed(partitions, timeout=settings.connect_timeout_s)
    for position in found:
        if position.error is not None:
            where = f"{doing} of {position.topic}/{position.partition}"
            raise translate(position.error, where, address)
    return {
        Source(position.topic, position.partition): (position.offset, position.metadata or "")
        for position in found
        if position.offset >= 0
    }


class KafkaOffsets:
    """The offsets of one group, none of whose members is assigned anything."""

    def __init__(self, settings: KafkaSettings, group: str) -> None:
        self._settings = settings
        with translated("making a consumer", settings.bootstrap):
            self._consumer = Consumer(
                {**settings.connection(), "group.id": group, "enable.auto.commit": False}
            )

    def committed(self, sources: Iterable[Source]) -> dict[Source, tuple[int, str]]:
        """Return committed offset and metadata of each source that has one.

        Waits for a transaction that is still under way on them. Raises KafkaUnreachable.
        """
        asking = retry_for(self._settings.lost_timeout_s)
        return asking(committed_offsets, self._consumer, self._settings, list(sources))

    def group_metadata(self) -> object:
        """Return who commits."""
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()
