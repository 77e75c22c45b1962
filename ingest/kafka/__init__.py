"""Kafka as the rest of headrace sees it: settings, reader, writer, topics.

The other packages import these names from here and no Kafka client at all.
"""

from headrace.ingest.kafka.bounded_reader import read_all
from headrace.ingest.kafka.consumer import KafkaReader
from headrace.ingest.kafka.producer import BY_KEY, KafkaWriter
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import (
    EventTopics,
    TopicSpec,
    check_co_partitioned,
    ensure_topics,
    topics_for,
)

__all__ = [
    "BY_KEY",
    "EventTopics",
    "KafkaReader",
    "KafkaSettings",
    "KafkaWriter",
    "TopicSpec",
    "check_co_partitioned",
    "ensure_topics",
    "read_all",
    "topics_for",
]
