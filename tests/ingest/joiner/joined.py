"""One model with its own topics on a real broker, and joiner processes that tests kill."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from headrace.ingest.features.fields import FieldSet, parse_fields
from headrace.ingest.features.spec_text import SpecText
from headrace.ingest.joiner.committed_state import StateReader
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.reading.bounded_reader import read_all as read_whole_topic
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, ensure_topics, examples_topic, topics_for
from tests.ingest.events_of import Example, Happened, examples_in, spec_of

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 90.0


@dataclass
class Joined:
    """A model, its topics and its joiner processes."""

    settings: KafkaSettings
    name: str
    topics: EventTopics
    spec: str
    partitions: int
    pace: dict[str, int] = field(default_factory=dict)
    """Fields of JoinerPacing that differ from its defaults."""

    @classmethod
    def fresh(
        cls, kafka: str, fresh_name: Callable[[str], str], partitions: int, spec: str = ""
    ) -> Joined:
        topics = EventTopics(*(fresh_name(stem) for stem in ("shown", "clicked", "dead")))
        name = fresh_name("model")
        made = cls(KafkaSettings(kafka), name, topics, spec or spec_of(), partitions)
        ensure_topics(made.settings, topics_for(name, partitions, topics))
        return made

    @cached_property
    def fields(self) -> FieldSet:
        where = SpecText("test.toml", self.spec)
        return parse_fields(where.tables(), where)

    @cached_property
    def state(self) -> StateReader:
        return StateReader(self.settings, self, self.topics)

    def send(self, happened: Happened) -> None:
        writer = KafkaWriter(self.settings)
        for source, records in happened.records(self.topics, self.partitions).items():
            for record in records:
                writer.send(source, record.value)
        writer.close()

    def start(self, instance: str = "joiner", metrics_port: int = 0) -> subprocess.Popen[bytes]:
        """Start a joiner; the caller ends it."""
        options = {
            "bootstrap": self.settings.bootstrap,
            "model": self.name,
            "topics": [self.topics.impressions, self.topics.clicks, self.topics.dead_letters],
            "spec": self.spec,
            "instance": instance,
            "metrics_port": metrics_port,
            "pace": self.pace,
        }
        command = [sys.executable, "-m", "tests.ingest.joiner.joiner_process", json.dumps(options)]
        return subprocess.Popen(command, cwd=ROOT)

    @contextmanager
    def process(self, metrics_port: int = 0) -> Iterator[subprocess.Popen[bytes]]:
        process = self.start(metrics_port=metrics_port)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def wait(self, until: Callable[[], bool], *processes: subprocess.Popen[bytes]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not until():
            for process in processes:
                assert process.poll() is None, "a joiner ended by itself"
            assert time.monotonic() < deadline_s, self.state.read()
            time.sleep(0.005)

    def examples(self) -> list[Example]:
        topic = examples_topic(self.name)
        records = read_whole_topic(self.settings, topic)
        messages = [(record.source, record.value) for record in records]
        return examples_in(messages, topic, self.fields)
