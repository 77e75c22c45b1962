"""Replays of directories into topics of one test."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, ensure_topics, topics_for
from headrace.ingest.logs.ndjson import DirectoryLog
from headrace.ingest.replay.replayer import ReplayHooks, ReplayResult, ReplaySettings, replay

PARTITIONS = 3
WINDOW_MS = 1_000


@dataclass
class Replays:
    """The topics of one test."""

    kafka: KafkaSettings
    topics: EventTopics

    def send(
        self,
        *directories: Path,
        window_ms: int = WINDOW_MS,
        stop: threading.Event | None = None,
        settings: ReplaySettings | None = None,
        **hooks: Any,
    ) -> ReplayResult:
        """Replay directories, with these fields of ReplayHooks."""
        return replay(
            self.kafka,
            [DirectoryLog(each) for each in directories],
            window_ms,
            stop or threading.Event(),
            topics=self.topics,
            settings=settings,
            hooks=ReplayHooks(**hooks),
        )


@pytest.fixture
def replays(kafka: str, fresh_name: Callable[[str], str]) -> Replays:
    settings = KafkaSettings(kafka)
    topics = EventTopics(*(fresh_name(stem) for stem in ("shown", "clicked", "dead")))
    ensure_topics(settings, topics_for(fresh_name("model"), PARTITIONS, topics))
    return Replays(settings, topics)
