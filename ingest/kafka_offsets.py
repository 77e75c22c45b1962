"""Committed offsets of a group that reads nothing: a place in Kafka to keep how far somebody came.

A transaction that commits them together with messages makes both true at once (see transactions).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

from ingest.foreign_errors import translated
from ingest.patience import ask_again
from ingest.stream import Source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingest.settings import KafkaSettings


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
        return ask_again(self._settings.connect_timeout_s)(self._committed, list(sources))

    def _committed(self, sources: list[Source]) -> dict[Source, tuple[int, str]]:
        partitions = [TopicPartition(source.topic, source.partition) for source in sources]
        with translated("reading committed offsets", self._settings.bootstrap):
            found = self._consumer.committed(partitions, timeout=self._settings.connect_timeout_s)
        return {
            Source(position.topic, position.partition): (position.offset, position.metadata or "")
            for position in found
            if position.offset >= 0
        }

    def group_metadata(self) -> object:
        """Return who commits."""
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()
