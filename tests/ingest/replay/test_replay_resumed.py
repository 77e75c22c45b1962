"""Tests that a killed replay resumes: every line is in Kafka once."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from headrace.ingest.errors import BadCheckpoint, OffsetGone
from headrace.ingest.kafka.protocols import ReadPosition, Source
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, ensure_topics, topics_for
from headrace.ingest.logs.ndjson import DirectoryLog
from headrace.ingest.replay.replayer import ReplayHooks, ReplayProgress, ReplaySettings, replay
from tests.ingest.logs.event_directories import clicked, shown, write_directory

IMPRESSIONS = 9_000
CLICKS = range(0, IMPRESSIONS, 10)
DEADLINE_S = 60

_PROGRAM = """
import sys, threading
from pathlib import Path
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics
from headrace.ingest.logs.ndjson import DirectoryLog
from headrace.ingest.replay.replayer import ReplayHooks, ReplaySettings, replay
bootstrap, name, data, *topics = sys.argv[1:]
replay(KafkaSettings(bootstrap), [DirectoryLog(Path(data))], 1000, threading.Event(),
       topics=EventTopics(*topics),
       hooks=ReplayHooks(progress=lambda now: print(now.events, flush=True)),
       settings=ReplaySettings(resume_as=name, speed=20.0, tick_interval_s=0.05,
                               commit_interval_s=0.05))
"""


@pytest.fixture
def settings(kafka: str) -> KafkaSettings:
    return KafkaSettings(kafka)


@pytest.fixture
def topics(settings: KafkaSettings, fresh_name: Callable[[str], str]) -> EventTopics:
    topics = EventTopics(*(fresh_name(stem) for stem in ("shown", "clicked", "dead")))
    ensure_topics(settings, topics_for(fresh_name("model"), 3, topics))
    return topics


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    impressions = [shown(i) for i in range(IMPRESSIONS)]
    return write_directory(tmp_path / "log", impressions, [clicked(i) for i in CLICKS])


def sent(settings: KafkaSettings, topic: str) -> Counter[str]:
    events = (json.loads(record.value) for record in read_all(settings, topic))
    return Counter(event["impression_id"] for event in events if "impression_id" in event)


def once(settings: KafkaSettings, topics: EventTopics) -> bool:
    impressions, clicks = sent(settings, topics.impressions), sent(settings, topics.clicks)
    assert set(impressions.values()) == {1}
    assert set(clicks.values()) == {1}
    return len(impressions) == IMPRESSIONS and len(clicks) == len(CLICKS)


def test_a_replay_killed_at_any_moment_resumes_without_duplicates(
    settings: KafkaSettings,
    topics: EventTopics,
    directory: Path,
    fresh_name: Callable[[str], str],
) -> None:
    name = fresh_name("replay")
    arguments = [sys.executable, "-c", _PROGRAM, settings.bootstrap, name, str(directory)]
    arguments += [topics.impressions, topics.clicks, topics.dead_letters]
    for limit in (2_400, 6_000):
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            deadline = time.monotonic() + DEADLINE_S
            while int(process.stdout.readline()) < limit:
                assert time.monotonic() < deadline
            process.kill()
    reached: list[ReplayProgress] = []
    replayed = replay(
        settings,
        [DirectoryLog(directory)],
        1000,
        threading.Event(),
        topics=topics,
        settings=ReplaySettings(resume_as=name),
        hooks=ReplayHooks(progress=reached.append),
    )
    assert 2_400 <= replayed.resumed < IMPRESSIONS
    assert replayed.events == IMPRESSIONS + len(CLICKS)
    assert once(settings, topics)
    again = replay(
        settings,
        [DirectoryLog(directory)],
        1000,
        threading.Event(),
        topics=topics,
        settings=ReplaySettings(resume_as=name),
    )
    assert again.resumed == again.events == replayed.events
    assert once(settings, topics)


def test_a_replay_whose_offsets_kafka_forgot_resumes_without_duplicates(
    settings: KafkaSettings,
    topics: EventTopics,
    directory: Path,
    fresh_name: Callable[[str], str],
) -> None:
    named, stop = ReplaySettings(resume_as=fresh_name("replay")), threading.Event()

    def stop_halfway(now: ReplayProgress) -> None:
        if now.events > IMPRESSIONS // 2:
            stop.set()

    stopped = replay(
        settings,
        [DirectoryLog(directory)],
        1000,
        stop,
        topics=topics,
        settings=named,
        hooks=ReplayHooks(progress=stop_halfway),
    )
    assert stopped.stopped
    group = f"headrace.replay.{named.resume_as}"
    admin = AdminClient(settings.connection())
    admin.delete_consumer_groups([group])[group].result()
    again = replay(
        settings, [DirectoryLog(directory)], 1000, threading.Event(), topics=topics, settings=named
    )
    assert again.resumed == stopped.events
    assert once(settings, topics)


def test_a_stopped_replay_resumes_without_duplicates(
    settings: KafkaSettings,
    topics: EventTopics,
    directory: Path,
    fresh_name: Callable[[str], str],
) -> None:
    named = ReplaySettings(resume_as=fresh_name("replay"))
    stop = threading.Event()
    first = replay(
        settings,
        [DirectoryLog(directory)],
        1000,
        stop,
        topics=topics,
        settings=named,
        hooks=ReplayHooks(progress=lambda now: stop.set() if now.events > 2_000 else None),
    )
    assert first.stopped
    second = replay(
        settings, [DirectoryLog(directory)], 1000, threading.Event(), topics=topics, settings=named
    )
    assert second.resumed == first.events
    assert once(settings, topics)


def test_a_resumed_replay_refuses_other_files(
    settings: KafkaSettings,
    topics: EventTopics,
    directory: Path,
    tmp_path: Path,
    fresh_name: Callable[[str], str],
) -> None:
    named = ReplaySettings(resume_as=fresh_name("replay"))
    replay(
        settings, [DirectoryLog(directory)], 1000, threading.Event(), topics=topics, settings=named
    )
    other = write_directory(tmp_path / "other", [shown(1)], [])
    with pytest.raises(BadCheckpoint, match="other files"):
        replay(
            settings, [DirectoryLog(other)], 1000, threading.Event(), topics=topics, settings=named
        )


def test_a_resumed_replay_refuses_topics_that_were_created_again(
    settings: KafkaSettings,
    topics: EventTopics,
    tmp_path: Path,
    fresh_name: Callable[[str], str],
) -> None:
    named = ReplaySettings(resume_as=fresh_name("replay"))
    few = [DirectoryLog(write_directory(tmp_path / "few", [shown(1)], []))]
    for _ in range(2):
        replay(settings, few, 1000, threading.Event(), topics=topics, settings=named)
    admin = AdminClient(settings.connection())
    admin.delete_topics([topics.clicks])[topics.clicks].result()
    ensure_topics(settings, topics_for(fresh_name("model"), 3, topics))
    with pytest.raises(OffsetGone, match=f"{topics.clicks} was created again.*another name"):
        replay(settings, few, 1000, threading.Event(), topics=topics, settings=named)


def test_a_resumed_replay_refuses_logs_that_lost_its_lines(
    settings: KafkaSettings,
    topics: EventTopics,
    tmp_path: Path,
    fresh_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = ReplaySettings(resume_as=fresh_name("replay"))
    few = [DirectoryLog(write_directory(tmp_path / "few", [shown(i) for i in range(9)], []))]
    replay(settings, few, 1000, threading.Event(), topics=topics, settings=named)
    compared: list[Source] = []

    def cut(_: KafkaSettings, reached: Mapping[Source, ReadPosition]) -> list[Source]:
        compared.extend(reached)
        return [Source(topics.impressions, 1)]

    monkeypatch.setattr("headrace.ingest.replay.outputs.truncated", cut)
    with pytest.raises(OffsetGone, match=f"{topics.impressions}/1 lost records"):
        replay(settings, few, 1000, threading.Event(), topics=topics, settings=named)
    assert {source.topic for source in compared} == {topics.impressions, topics.clicks}  # ticks
