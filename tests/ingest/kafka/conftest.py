"""The settings of a real broker, a topic with two partitions, and a reader of it."""

from collections.abc import Callable, Iterator

import pytest

from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.settings import KafkaSettings
from tests.ingest.kafka.made_topics import make_topic

FreshName = Callable[[str], str]


@pytest.fixture
def settings(kafka: str) -> KafkaSettings:
    return KafkaSettings(kafka)


@pytest.fixture
def topic(settings: KafkaSettings, fresh_name: FreshName) -> str:
    return make_topic(settings, fresh_name("topic"), 2)


@pytest.fixture
def reader(settings: KafkaSettings, topic: str) -> Iterator[KafkaReader]:
    opened = KafkaReader(settings, None, [topic])
    yield opened
    opened.close()
