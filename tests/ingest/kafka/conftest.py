"""The settings of a real broker, and a topic with two partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.ingest.kafka.settings import KafkaSettings
from tests.ingest.kafka.made_topics import make_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    FreshName = Callable[[str], str]


@pytest.fixture
def settings(kafka: str) -> KafkaSettings:
    return KafkaSettings(kafka)


@pytest.fixture
def topic(settings: KafkaSettings, fresh_name: FreshName) -> str:
    return make_topic(settings, fresh_name("topic"), 2)
