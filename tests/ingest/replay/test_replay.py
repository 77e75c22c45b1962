"""Tests a replay of files into Kafka: order, keys, ticks, pace."""

import json
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import confluent_kafka
import pytest

from headrace.ingest.events.contract import read_event
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.logs.ndjson import Line
from headrace.ingest.replay.replayer import ReplayProgress, ReplaySettings
from tests.ingest.logs.event_directories import START_MS, clicked, shown, write_directory
from tests.ingest.replay.conftest import PARTITIONS, WINDOW_MS, Replays


def test_a_replay_sends_every_line_once_in_order_and_ends_with_ticks(
    replays: Replays, tmp_path: Path
) -> None:
    first = write_directory(tmp_path / "1", [shown(i) for i in range(3_000)], [clicked(7)])
    second = write_directory(tmp_path / "2", [shown(i) for i in range(3_000, 3_010)], [])
    reached: list[ReplayProgress] = []
    replayed = replays.send(first, second, progress=reached.append)
    assert replayed.events == 3_011
    assert not replayed.stopped
    assert [(d.impressions, d.clicks) for d in replayed.logs] == [(3_000, 1), (10, 0)]
    assert replayed.logs[0].first_ms == START_MS
    assert replayed.logs[1].last_ms == START_MS + 30_090
    assert reached[-1].events == 3_011
    assert reached[-1].bytes_read == reached[-1].bytes_total > 0

    by_partition = defaultdict(list)
    for record in read_all(replays.kafka, replays.topics.impressions):
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
    last = {
        r.source.partition: json.loads(r.value)
        for r in read_all(replays.kafka, replays.topics.clicks)
    }
    assert set(last) == set(range(PARTITIONS))
    assert all("impression_id" not in event for event in last.values())


def test_a_paced_replay_keeps_the_pace_and_ticks_in_quiet_times(
    replays: Replays, tmp_path: Path
) -> None:
    directory = write_directory(tmp_path / "1", [shown(0), shown(300)], [clicked(100)])
    begun_s = time.monotonic()
    replays.send(directory, settings=ReplaySettings(speed=4.0, tick_interval_s=0.02))
    assert time.monotonic() - begun_s >= 0.75
    for topic in (replays.topics.impressions, replays.topics.clicks):
        by_partition = defaultdict(list)
        for record in read_all(replays.kafka, topic):
            by_partition[record.source.partition].append(json.loads(record.value))
        for found in by_partition.values():
            times = [event["timestamp_ms"] for event in found]
            assert times == sorted(times), "a tick went before an event"
            # the last tick always comes, after all events
            assert sum("impression_id" not in event for event in found) > 1


def test_a_replay_waits_while_the_pipeline_lags(replays: Replays, tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "1", [shown(i) for i in range(4_000)], [])
    lags = iter([50, 50, 5])
    asked: list[int] = []

    def lag() -> int:
        asked.append(next(lags, 0))
        return asked[-1]

    limit = ReplaySettings(lag_limit=10)
    replays.send(directory, window_ms=0, settings=limit, lag=lag)
    assert asked == [50, 50, 5, 0]


def test_a_stopped_replay_ends_at_once_and_without_the_last_tick(
    replays: Replays, tmp_path: Path
) -> None:
    directory = write_directory(tmp_path / "1", [shown(0), shown(1_000_000)], [])
    stop = threading.Event()
    slow = ReplaySettings(speed=1.0, tick_interval_s=0.02)
    replayed = replays.send(directory, stop=stop, settings=slow, progress=lambda _: stop.set())
    assert (replayed.stopped, replayed.events) == (True, 1)


@pytest.mark.parametrize("speed", [None, 20.0])
def test_a_replay_shows_lines_before_sending_with_lines_of_one_time_together(
    replays: Replays, tmp_path: Path, speed: float | None
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
            sent = [
                r for r in read_all(replays.kafka, replays.topics.impressions) if r.key is not None
            ]
            in_kafka_then.append(len(sent))

    replayed = replays.send(log, settings=ReplaySettings(speed=speed), before=before)
    assert replayed.events == 1_001
    times = [time_ms for group in seen for time_ms in group]
    assert times == sorted(times)
    assert len(times) == 1_000, "every line is shown once"
    groups = [set(group) for group in seen]
    assert not any(one & other for one, other in pairwise(groups)), "none is split"
    assert in_kafka_then[0] <= len(seen[0]) + len(seen[1]), "what was shown was not yet sent"


def test_an_empty_log_sends_no_tick(replays: Replays, tmp_path: Path) -> None:
    empty = write_directory(tmp_path / "empty", [], [])
    replays.send(empty)
    for topic in (replays.topics.impressions, replays.topics.clicks):
        assert list(read_all(replays.kafka, topic)) == []


def test_ticks_are_never_dead_letters_whatever_the_times_of_a_log(
    replays: Replays, tmp_path: Path
) -> None:
    """Times in seconds, in microseconds and of the year 3000 are refused; the ticks are not."""
    times = (START_MS // 1000, START_MS * 1000, START_MS, 32_000_000_000_000)
    lines = [
        json.dumps({"impression_id": f"i{i}", "timestamp_ms": time_ms}).encode()
        for i, time_ms in enumerate(times)
    ]
    reached: list[ReplayProgress] = []
    replays.send(write_directory(tmp_path / "log", lines, []), progress=reached.append)
    assert reached[-1].event_ms == START_MS
    for record in read_all(replays.kafka, replays.topics.impressions):
        event = read_event(record.value, record.append_ms)
        if b"impression_id" not in record.value:
            assert event == {"timestamp_ms": START_MS + WINDOW_MS + 1} or event == {
                "timestamp_ms": START_MS
            }
