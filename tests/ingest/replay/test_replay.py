"""Tests a replay of files into Kafka: order, keys, ticks, pace."""

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import confluent_kafka
import pytest

from headrace.ingest.events.contract import read_event
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, ensure_topics, topics_for
from headrace.ingest.logs.ndjson import DirectoryLog, Line, NoEventsError
from headrace.ingest.replay.replayer import ReplayHooks, ReplayProgress, ReplaySettings, replay
from tests.ingest.logs.event_directories import START_MS, clicked, shown, write_directory

WINDOW_MS = 1_000
PARTITIONS = 3


@pytest.fixture
def settings(kafka: str) -> KafkaSettings:
    return KafkaSettings(kafka)


@pytest.fixture
def topics(settings: KafkaSettings, fresh_name: Callable[[str], str]) -> EventTopics:
    topics = EventTopics(*(fresh_name(stem) for stem in ("shown", "clicked", "dead")))
    ensure_topics(settings, topics_for(fresh_name("model"), PARTITIONS, topics))
    return topics


def test_a_replay_sends_every_line_once_in_order_and_ends_with_ticks(
    settings: KafkaSettings, topics: EventTopics, tmp_path: Path
) -> None:
    first = write_directory(tmp_path / "1", [shown(i) for i in range(3_000)], [clicked(7)])
    second = write_directory(tmp_path / "2", [shown(i) for i in range(3_000, 3_010)], [])
    reached: list[ReplayProgress] = []
    replayed = replay(
        settings,
        [DirectoryLog(first), DirectoryLog(second)],
        WINDOW_MS,
        threading.Event(),
        topics=topics,
        hooks=ReplayHooks(progress=reached.append),
    )
    assert replayed.events == 3_011
    assert not replayed.stopped
    assert [(d.impressions, d.clicks) for d in replayed.logs] == [(3_000, 1), (10, 0)]
    assert replayed.logs[0].first_ms == START_MS
    assert replayed.logs[1].last_ms == START_MS + 30_090
    assert reached[-1].events == 3_011
    assert reached[-1].bytes_read == reached[-1].bytes_total > 0

    by_partition = defaultdict(list)
    for record in read_all(settings, topics.impressions):
        by_partition[record.source.partition].append(json.loads(record.value))
    events = [e for found in by_partition.values() for e in found if "impression_id" in e]
    assert sorted(e["impression_id"] for e in events) == sorted(f"i{i}" for i in range(3_010))
    assert sorted(by_partition) == list(range(PARTITIONS))
    for partition, found in by_partition.items():
        times = [event["timestamp_ms"] for event in found]
        assert times == sorted(times)
        assert found[-1] == {"timestamp_ms": START_MS + 30_090 + WINDOW_MS + 1}
        assert all(
            confluent_kafka.murmur2(event["impression_id"].encode(), PARTITIONS) == partition
            for event in found
            if "impression_id" in event
        )
    last = {r.source.partition: json.loads(r.value) for r in read_all(settings, topics.clicks)}
    assert set(last) == set(range(PARTITIONS))
    assert all("impression_id" not in event for event in last.values())


def test_a_replay_sends_a_line_that_is_not_an_event_unchanged(
    settings: KafkaSettings, topics: EventTopics, tmp_path: Path
) -> None:
    odd = [b"not json", b'{"impression_id": 5}', b'{"timestamp_ms": "late"}', b"\xff\xfe"]
    directory = write_directory(tmp_path / "1", [*odd, shown(1)], [clicked(1), b"["])
    replayed = replay(
        settings, [DirectoryLog(directory)], WINDOW_MS, threading.Event(), topics=topics
    )
    assert replayed.events == 7
    assert replayed.logs[0].first_ms == START_MS + 10
    values = [record.value for record in read_all(settings, topics.impressions)]
    assert set(odd) < set(values)
    assert b"[" in [record.value for record in read_all(settings, topics.clicks)]


def test_a_paced_replay_keeps_the_pace_and_ticks_in_quiet_times(
    settings: KafkaSettings, topics: EventTopics, tmp_path: Path
) -> None:
    directory = write_directory(tmp_path / "1", [shown(0), shown(300)], [clicked(100)])
    begun_s = time.monotonic()
    replay(
        settings,
        [DirectoryLog(directory)],
        WINDOW_MS,
        threading.Event(),
        topics=topics,
        settings=ReplaySettings(speed=4.0, tick_interval_s=0.02),
    )
    assert time.monotonic() - begun_s >= 0.75
    for topic in (topics.impressions, topics.clicks):
        by_partition = defaultdict(list)
        for record in read_all(settings, topic):
            by_partition[record.source.partition].append(json.loads(record.value))
        for found in by_partition.values():
            times = [event["timestamp_ms"] for event in found]
            assert times == sorted(times), "a tick went before an event"
            # the last tick always comes, after all events
            assert sum("impression_id" not in event for event in found) > 1


def test_a_replay_waits_while_the_pipeline_lags(
    settings: KafkaSettings, topics: EventTopics, tmp_path: Path
) -> None:
    directory = write_directory(tmp_path / "1", [shown(i) for i in range(4_000)], [])
    lags = iter([50, 50, 5])
    asked: list[int] = []

    def lag() -> int:
        asked.append(next(lags, 0))
        return asked[-1]

    limit = ReplaySettings(lag_limit=10)
    replay(
        settings,
        [DirectoryLog(directory)],
        0,
        threading.Event(),
        topics=topics,
        settings=limit,
        hooks=ReplayHooks(lag=lag),
    )
    assert asked == [50, 50, 5, 0]


def test_a_stopped_replay_ends_at_once_and_without_the_last_tick(
    settings: KafkaSettings, topics: EventTopics, tmp_path: Path
) -> None:
    directory = write_directory(tmp_path / "1", [shown(0), shown(1_000_000)], [])
    stop = threading.Event()
    slow = ReplaySettings(speed=1.0, tick_interval_s=0.02)
    replayed = replay(
        settings,
        [DirectoryLog(directory)],
        WINDOW_MS,
        stop,
        topics=topics,
        settings=slow,
        hooks=ReplayHooks(progress=lambda _: stop.set()),
    )
    assert (replayed.stopped, replayed.events) == (True, 1)


def test_a_replay_of_a_directory_without_events_is_refused(
    settings: KafkaSettings, topics: EventTopics, tmp_path: Path
) -> None:
    with pytest.raises(NoEventsError, match=r"expected impressions\.ndjson"):
        replay(settings, [DirectoryLog(tmp_path)], WINDOW_MS, threading.Event(), topics=topics)


@pytest.mark.parametrize("speed", [None, 20.0])
def test_a_replay_shows_lines_before_sending_with_lines_of_one_time_together(
    settings: KafkaSettings, topics: EventTopics, tmp_path: Path, speed: float | None
) -> None:
    # three impressions at each time, and more than are shown together
    impressions = [
        json.dumps({"impression_id": f"i{i}", "timestamp_ms": START_MS + 10 * (i // 3)}).encode()
        for i in range(1_000)
    ]
    log = write_directory(tmp_path / "log", impressions, [clicked(7)])
    seen: list[list[int]] = []
    in_kafka_then: list[int] = []

    def before(lines: Sequence[Line], late_s: float) -> None:
        assert late_s >= 0.0
        seen.append([line.time_ms for line in lines if not line.is_click])
        if len(seen) == 3:
            sent = [r for r in read_all(settings, topics.impressions) if r.key is not None]
            in_kafka_then.append(len(sent))

    replayed = replay(
        settings,
        [DirectoryLog(log)],
        WINDOW_MS,
        threading.Event(),
        settings=ReplaySettings(speed=speed),
        topics=topics,
        hooks=ReplayHooks(before=before),
    )
    assert replayed.events == 1_001
    times = [time_ms for group in seen for time_ms in group]
    assert times == sorted(times)
    assert len(times) == 1_000, "every line is shown once"
    groups = [set(group) for group in seen]
    assert not any(one & other for one, other in pairwise(groups)), "none is split"
    assert in_kafka_then[0] <= len(seen[0]) + len(seen[1]), "what was shown was not yet sent"


def test_an_empty_log_sends_no_tick(
    settings: KafkaSettings, topics: EventTopics, tmp_path: Path
) -> None:
    empty = write_directory(tmp_path / "empty", [], [])
    replay(settings, [DirectoryLog(empty)], WINDOW_MS, threading.Event(), topics=topics)
    for topic in (topics.impressions, topics.clicks):
        assert list(read_all(settings, topic)) == []


def test_ticks_are_never_dead_letters_whatever_the_times_of_a_log(
    settings: KafkaSettings, topics: EventTopics, tmp_path: Path
) -> None:
    """Times in seconds, in microseconds and of the year 3000 are refused; the ticks are not."""
    times = (START_MS // 1000, START_MS * 1000, START_MS, 32_000_000_000_000)
    lines = [
        json.dumps({"impression_id": f"i{i}", "timestamp_ms": time_ms}).encode()
        for i, time_ms in enumerate(times)
    ]
    reached: list[ReplayProgress] = []
    replay(
        settings,
        [DirectoryLog(write_directory(tmp_path / "log", lines, []))],
        WINDOW_MS,
        threading.Event(),
        topics=topics,
        hooks=ReplayHooks(progress=reached.append),
    )
    assert reached[-1].event_ms == START_MS
    for record in read_all(settings, topics.impressions):
        event = read_event(record.value, record.append_ms)
        if b"impression_id" not in record.value:
            assert event == {"timestamp_ms": START_MS + WINDOW_MS + 1} or event == {
                "timestamp_ms": START_MS
            }
