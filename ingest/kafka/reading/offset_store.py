"""Stores progress in Kafka: the committed offsets of a group that reads nothing.

A transaction that commits them together with messages makes both take effect at once (see
`transactions`).

Kafka answers for each source. For a source with an error the offset looks like one that was never
committed. A process that ignored the error would start at the beginning and do everything twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

from headrace.ingest.kafka.error_translation import translate, translated
from headrace.ingest.kafka.protocols import Committed
from headrace.ingest.kafka.retry import retry_for

if TYPE_CHECKING:
    from headrace.ingest.kafka.protocols import Source
    from headrace.ingest.kafka.settings import KafkaSettings


def committed_offsets(
    consumer: Consumer, settings: KafkaSettings, sources: Iterable[Source]
) -> dict[Source, Committed]:
    """Return the committed offset, metadata and leader epoch (-1: unknown) of each source.

    Sources without a committed offset are missing. Raises KafkaUnreachable after
    `connect_timeout_s`, as while a transaction is still writing them; the caller may retry.
    """
    doing, address = "reading committed offsets", settings.bootstrap
    partitions = [
        TopicPartition(settings.names.physical(source.topic), source.partition)
        for source in sources
    ]
    with translated(doing, address):
        found = consumer.committed(partitions, timeout=settings.connect_timeout_s)
    for position in found:
        if position.error is not None:
            where = f"{doing} of {position.topic}/{position.partition}"
            raise translate(position.error, where, address)
    return {
        settings.names.source(position): Committed(
            position.offset,
            position.metadata or "",
            # the client has None where nothing was committed with it, against its types
            -1 if position.leader_epoch is None else position.leader_epoch,  # type: ignore[redundant-expr]
        )
        for position in found
        if position.offset >= 0
    }


def committed_by(
    settings: KafkaSettings, group: str, sources: Iterable[Source]
) -> dict[Source, Committed]:
    """Return the same with a client of its own, that is no member of the group.

    Kafka drops a member that sent no heartbeat in an outage. Its client answers no request about
    the group until it is polled. But a process polls only after it has restored its position, so
    with the member's client it would wait until it gives up. A group's coordinator that moves or
    loads is asked again for `connect_timeout_s`. Raises KafkaUnreachable.
    """
    offsets, asking = KafkaOffsets(settings, group), retry_for(settings.connect_timeout_s)
    try:
        return asking(committed_offsets, offsets.client, settings, list(sources))
    finally:
        offsets.close()


class KafkaOffsets:
    """The offsets of one group, whose members have no partitions."""

    def __init__(self, settings: KafkaSettings, group: str, *, settled: bool = True) -> None:
        """`settled`: wait for a transaction that is still writing the offsets."""
        self._settings = settings
        with translated("creating a consumer", settings.bootstrap):
            self.client = Consumer(
                {
                    **settings.connection(),
                    "group.id": settings.names.physical(group),
                    "enable.auto.commit": False,
                    "isolation.level": "read_committed" if settled else "read_uncommitted",
                }
            )

    def committed(self, sources: Iterable[Source]) -> dict[Source, Committed]:
        """Return the committed offset, metadata and leader epoch of each source that has one.

        Raises KafkaUnreachable.
        """
        asking = retry_for(self._settings.lost_timeout_s)
        return asking(committed_offsets, self.client, self._settings, list(sources))

    def group_metadata(self) -> object:
        """Return the membership that commits."""
        return self.client.consumer_group_metadata()

    def close(self) -> None:
        """Disconnect."""
        self.client.close()
