"""Kafka as the rest of headrace sees it: settings, reader, writer, topics.

The other packages import these names from here and no Kafka client at all.
"""

from ingest.kafka_reader import KafkaReader
from ingest.kafka_writer import BY_KEY, KafkaWriter
from ingest.settings import KafkaSettings
from ingest.topics import EventTopics, TopicSpec, check_co_partitioned, ensure_topics, topics_for
from ingest.whole_topic import read_all

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
