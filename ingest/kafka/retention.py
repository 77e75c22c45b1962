"""Reads how long Kafka keeps records and committed offsets, to compare the two.

A process that finds no committed offset reads a topic from its first record. If the topic keeps
records for longer than Kafka keeps offsets, then a process that stood still in between would do old
work twice. headrace's processes continue from their output instead, or refuse to start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka.admin import AdminClient, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.admin import ConfigResource as Resource  # type: ignore[attr-defined]

from headrace.ingest.kafka.advertised_brokers import listed_topics
from headrace.ingest.kafka.error_translation import answer_of, translated

if TYPE_CHECKING:
    from headrace.ingest.kafka.settings import KafkaSettings

FOREVER_MS = 1 << 62


class KafkaRetention(NamedTuple):
    """Times in milliseconds; FOREVER_MS without a limit."""

    offsets_ms: int
    """From the time when the group became empty."""
    topics_ms: dict[str, int]


def read_retention(settings: KafkaSettings, topics: Sequence[str]) -> KafkaRetention:
    """Return the retention of committed offsets, and of records in each topic that exists.

    Raises KafkaUnreachable, NotAllowed.
    """
    timeout_s = settings.connect_timeout_s
    admin = AdminClient(settings.connection())
    metadata = listed_topics(admin, settings, "listing topics")
    broker = Resource(ResourceType.BROKER, str(min(metadata.brokers)))
    physical = [settings.names.physical(topic) for topic in topics]
    named = [Resource(ResourceType.TOPIC, topic) for topic in physical if topic in metadata.topics]
    found: dict[str, dict[str, str]] = {}
    with translated("reading settings of retention", settings.bootstrap):
        for resources in ([broker], named):  # settings of brokers must be asked for alone
            answers = (
                admin.describe_configs(resources, request_timeout=timeout_s) if resources else {}
            )
            for resource, answer in answers.items():
                entries = answer_of(answer).values()
                found[resource.name] = {entry.name: entry.value for entry in entries}
    offsets = found.pop(broker.name)["offsets.retention.minutes"]
    return KafkaRetention(
        int(offsets) * 60_000,
        {settings.names.logical(topic): _kept_ms(kept) for topic, kept in found.items()},
    )


def _kept_ms(settings: dict[str, str]) -> int:
    kept_ms = int(settings["retention.ms"])
    return FOREVER_MS if kept_ms < 0 or "delete" not in settings["cleanup.policy"] else kept_ms
