"""Generates events for tests of the running joiner, with the expected examples."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headrace.ingest.examples.batch import Kind, unpack
from headrace.ingest.features.fields import FieldSet, parse_fields
from headrace.ingest.features.spec_text import SpecText
from headrace.ingest.kafka.protocols import Record, Source
from headrace.ingest.kafka.topics import EventTopics

START_MS = 1_700_000_000_000
WINDOW_MS = 60_000
SPEC = """
[fields.article]
number = 1
transform = "id"
[fields.words]
number = 2
transform = "bag"
[label]
policy = "{policy}"
window_s = 60
[examples]
slice_by = ["device"]
"""
TOPICS = EventTopics("shown", "clicked", "dead")

Example = tuple[int, Kind, int, str, int]
"""Partition, kind, label, impression id, event time."""


def spec_of(policy: str = "immediate") -> str:
    return SPEC.format(policy=policy)


def fields_of(policy: str = "immediate") -> FieldSet:
    spec = SpecText("test.toml", spec_of(policy))
    return parse_fields(spec.tables(), spec)


@dataclass
class Happened:
    """Events of both topics, as (time, partition, bytes) in order of time, and their examples."""

    shown: list[tuple[int, int, bytes]] = field(default_factory=list)
    clicked: list[tuple[int, int, bytes]] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    """Under the policy `immediate`."""
    closed: list[Example] = field(default_factory=list)
    """Under the policy `window`."""
    dead: int = 0
    late: int = 0
    duplicates: int = 0

    def records(self, topics: EventTopics, partitions: int) -> dict[Source, list[Record]]:
        """Return the events as Kafka would have them, appended when they happened."""
        happened: dict[Source, list[Record]] = {}
        for topic, events in ((topics.impressions, self.shown), (topics.clicks, self.clicked)):
            for partition in range(partitions):
                source = Source(topic, partition)
                mine = [(time, value) for time, p, value in events if p == partition]
                happened[source] = [
                    Record(source, offset, time + 5, value)
                    for offset, (time, value) in enumerate(mine)
                ]
        return happened

    def parts(self, count: int) -> Iterator[Happened]:
        """Yield the events in `count` parts, in order of time."""
        last_ms = max(time_ms for time_ms, _, _ in self.shown) + 1
        bounds = [START_MS + (last_ms - START_MS) * i // count for i in range(count + 1)]
        for begin_ms, end_ms in itertools.pairwise(bounds):
            yield Happened(
                [event for event in self.shown if begin_ms <= event[0] < end_ms],
                [event for event in self.clicked if begin_ms <= event[0] < end_ms],
            )


def happen(seed: int, count: int, partitions: int) -> Happened:
    """Return `count` impressions over ten minutes, with other events.

    These are clicks in time, late and repeated ones, duplicates, ticks and invalid events. The last
    events are ticks past the window.
    """
    dice = random.Random(seed)
    happened = Happened()
    for i in range(count):
        time_ms, partition = START_MS + i * 600_000 // count, i % partitions
        identity = f"i{i}"
        event = {
            "impression_id": identity,
            "request_id": f"r{i // 10}",
            "timestamp_ms": time_ms,
            "article": dice.randrange(50),
            "words": [dice.choice("abcdef") for _ in range(dice.randrange(4))],
            "device": dice.choice(["phone", "desktop", None]),
        }
        happened.shown.append((time_ms, partition, json.dumps(event).encode()))
        happened.examples.append((partition, Kind.SHOWN, 0, identity, time_ms))
        label = 0
        fate = dice.random()
        if fate < 0.3:
            click_ms = time_ms + dice.randrange(1, WINDOW_MS)
            happened.clicked.append((click_ms, partition, _click(identity, click_ms)))
            happened.examples.append((partition, Kind.CLICKED, 1, identity, click_ms))
            label = 1
            if fate < 0.05:
                happened.clicked.append((click_ms + 1, partition, _click(identity, click_ms + 1)))
                happened.duplicates += 1
        elif fate < 0.35:
            click_ms = time_ms + WINDOW_MS + dice.randrange(1_000, WINDOW_MS // 2)
            happened.clicked.append((click_ms, partition, _click(identity, click_ms)))
            happened.late += 1
        elif fate < 0.4:
            happened.shown.append((time_ms + 10, partition, json.dumps(event).encode()))
            happened.duplicates += 1
        elif fate < 0.42:
            broken = dice.choice([b"nonsense", b"{}", b"\xff", b'{"impression_id": "x"}'])
            happened.shown.append((time_ms, partition, broken))
            happened.dead += 1
        happened.closed.append((partition, Kind.CLOSED, label, identity, time_ms))
    for events in (happened.shown, happened.clicked):
        events.sort(key=lambda event: event[0])
        last_ms = START_MS + 600_000 + 3 * WINDOW_MS
        tick = json.dumps({"timestamp_ms": last_ms}).encode()
        events += [(last_ms, partition, tick) for partition in range(partitions)]
    return happened


def _click(identity: str, time_ms: int) -> bytes:
    return json.dumps({"impression_id": identity, "timestamp_ms": time_ms}).encode()


def examples_in(
    messages: Iterable[tuple[Source, bytes, *tuple[object, ...]]], topic: str, fields: FieldSet
) -> list[Example]:
    """Return the examples in messages of a topic, in their order."""
    found: list[Example] = []
    for source, value, *_ in messages:
        if source.topic == topic:
            batch = unpack(value, fields)
            found += [
                (source.partition, Kind(kind), label, identity, time_ms)
                for kind, label, identity, time_ms in zip(
                    batch.kinds.tolist(),
                    batch.labels.tolist(),
                    batch.impression_ids.to_pylist(),
                    batch.event_ms.tolist(),
                    strict=True,
                )
            ]
    return found
