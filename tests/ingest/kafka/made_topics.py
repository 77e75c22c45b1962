"""Topics for tests on a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.ingest.kafka.topics import TopicSpec, ensure_topics

if TYPE_CHECKING:
    from headrace.ingest.kafka.settings import KafkaSettings

DEADLINE_S = 90.0


def make_topic(settings: KafkaSettings, name: str, partitions: int) -> str:
    ensure_topics(settings, [TopicSpec(name, partitions)])
    return name
