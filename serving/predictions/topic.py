"""The topic of what was served, and how it is made where it is missing: by whoever comes first.

A server that logs and an evaluation that reads may be started in either order. Who finds it there
takes it with as many partitions as it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.topics import TopicSpec, ensure_topics, partition_counts

if TYPE_CHECKING:
    from ingest.settings import KafkaSettings

TOPIC = "predictions"
_DAY_MS = 24 * 3600 * 1000
_KEPT_DAYS = 7


def ensure_predictions(kafka: KafkaSettings, partitions: int, topic: str = TOPIC) -> int:
    """Make the topic unless it is there; return how many partitions it has.

    Raises KafkaUnreachable, NotAllowed, TopicMismatch.
    """
    count = partition_counts(kafka, [topic]).get(topic, partitions)
    kept = {"retention.ms": str(_KEPT_DAYS * _DAY_MS)}
    ensure_topics(kafka, [TopicSpec(topic, count, {"cleanup.policy": "delete"}, kept)])
    return count
