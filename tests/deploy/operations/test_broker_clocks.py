"""Tests that doctor measures the clocks of brokers from the messages of others."""

from collections.abc import Callable

import pytest

from headrace.deploy.operations.broker_clocks import (
    ClockRange,
    check_broker_clocks,
    measured,
    read_clocks,
)
from headrace.deploy.operations.check_result import Severity
from headrace.ingest.kafka.fakes import ListReader
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import ReaderEvent, Record, Source
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import TopicSpec, ensure_topics
from headrace.runtime.clock import wall_ms

HOUR_MS = 3_600_000
AHEAD_MS = {1: 0, 2: 7_000, 3: -2 * HOUR_MS}
LEADERS = {Source("shown", 0): 1, Source("shown", 1): 2, Source("shown", 2): 3}
IDLE = Source("shown", 3)


class LiveTopic(ListReader):
    """Each poll takes 100 ms, and brings a message that each leader stamped."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        old = {source: [Record(source, 0, 5, b"old")] for source in LEADERS}
        super().__init__(old | {IDLE: []})

    def poll(self, timeout_s: float) -> list[ReaderEvent]:
        self.now_ms += 50
        for source, leader in LEADERS.items():
            self.append(source, b"event", self.now_ms + AHEAD_MS[leader])
        self.now_ms += 50
        return super().poll(timeout_s)


def test_the_clock_of_a_broker_is_between_the_question_and_the_arrival_of_a_message() -> None:
    topic = LiveTopic()
    clocks = measured(topic, LEADERS | {IDLE: 4}, lambda: topic.now_ms)
    assert clocks == {
        broker: ClockRange(ahead_ms - 50, ahead_ms + 50) for broker, ahead_ms in AHEAD_MS.items()
    }


def test_a_clock_that_differs_is_a_warning_and_one_that_makes_events_too_late_is_broken() -> None:
    clocks = {broker: ClockRange(at - 1_000, at + 100) for broker, at in AHEAD_MS.items()}
    ahead, behind = check_broker_clocks(clocks, HOUR_MS)
    assert (ahead.severity, ahead.where) == (Severity.WARNING, "broker 2")
    assert ahead.found == "at least 6.0 s ahead"
    assert (behind.severity, behind.where) == (Severity.BROKEN, "broker 3")
    assert behind.found.startswith("at least 7199.9 s behind: its impressions are too late")


def test_the_clock_of_a_real_broker_is_that_of_its_machine(
    kafka: str, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, source = KafkaSettings(kafka), Source(fresh_name("shown"), 0)
    ensure_topics(
        settings, [TopicSpec(source.topic, 1, {"message.timestamp.type": "LogAppendTime"})]
    )
    assert read_clocks(settings, ["missing"], wall_ms) == {}
    writer, times = KafkaWriter(settings), 0

    def now_ms() -> int:
        nonlocal times
        times += 1
        if times == 2:  # the ends are asked for
            writer.send(source, b"event")
            writer.flush()
        return wall_ms()

    [(least_ms, most_ms)] = read_clocks(settings, [source.topic], now_ms).values()
    assert least_ms <= 0 <= most_ms
    writer.close()
