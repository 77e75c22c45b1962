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
from headrace.ingest.kafka.topics import ensure_topics, topics_for
from headrace.ingest.replay.replayer import ReplayProgress, ReplaySettings
from tests.ingest.logs.event_directories import clicked, shown, write_directory
from tests.ingest.replay.conftest import PARTITIONS, Replays

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
def directory(tmp_path: Path) -> Path:
    impressions = [shown(i) for i in range(IMPRESSIONS)]
    return write_directory(tmp_path / "log", impressions, [clicked(i) for i in CLICKS])


def sent(settings: KafkaSettings, topic: str) -> Counter[str]:
    events = (json.loads(record.value) for record in read_all(settings, topic))
    return Counter(event["impression_id"] for event in events if "impression_id" in event)


def once(replays: Replays) -> bool:
    impressions, clicks = (
        sent(replays.kafka, replays.topics.impressions),
        sent(replays.kafka, replays.topics.clicks),
    )
    assert set(impressions.values()) == {1}
    assert set(clicks.values()) == {1}
    return len(impressions) == IMPRESSIONS and len(clicks) == len(CLICKS)


def test_a_replay_killed_at_any_moment_resumes_without_duplicates(
    replays: Replays, directory: Path, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("replay")
    arguments = [sys.executable, "-c", _PROGRAM, replays.kafka.bootstrap, name, str(directory)]
    arguments += [replays.topics.impressions, replays.topics.clicks, replays.topics.dead_letters]
    for limit in (2_400, 6_000):
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            deadline = time.monotonic() + DEADLINE_S
            while int(process.stdout.readline()) < limit:
                assert time.monotonic() < deadline
            process.kill()
    reached: list[ReplayProgress] = []
    replayed = replays.send(
        directory, settings=ReplaySettings(resume_as=name), progress=reached.append
    )
    assert 2_400 <= replayed.resumed < IMPRESSIONS
    assert replayed.events == IMPRESSIONS + len(CLICKS)
    assert once(replays)
    again = replays.send(directory, settings=ReplaySettings(resume_as=name))
    assert again.resumed == again.events == replayed.events
    assert once(replays)


def test_a_replay_whose_offsets_kafka_forgot_resumes_without_duplicates(
    replays: Replays, directory: Path, fresh_name: Callable[[str], str]
) -> None:
    named, stop = ReplaySettings(resume_as=fresh_name("replay")), threading.Event()

    def stop_halfway(now: ReplayProgress) -> None:
        if now.events > IMPRESSIONS // 2:
            stop.set()

    stopped = replays.send(directory, stop=stop, settings=named, progress=stop_halfway)
    assert stopped.stopped
    group = f"headrace.replay.{named.resume_as}"
    admin = AdminClient(replays.kafka.connection())
    admin.delete_consumer_groups([group])[group].result()
    again = replays.send(directory, settings=named)
    assert again.resumed == stopped.events
    assert once(replays)


def test_a_resumed_replay_refuses_other_files(
    replays: Replays, directory: Path, tmp_path: Path, fresh_name: Callable[[str], str]
) -> None:
    named = ReplaySettings(resume_as=fresh_name("replay"))
    replays.send(directory, settings=named)
    other = write_directory(tmp_path / "other", [shown(1)], [])
    with pytest.raises(BadCheckpoint, match="other files"):
        replays.send(other, settings=named)


def test_a_resumed_replay_refuses_topics_that_were_created_again(
    replays: Replays, tmp_path: Path, fresh_name: Callable[[str], str]
) -> None:
    named = ReplaySettings(resume_as=fresh_name("replay"))
    few = write_directory(tmp_path / "few", [shown(1)], [])
    for _ in range(2):
        replays.send(few, settings=named)
    admin = AdminClient(replays.kafka.connection())
    admin.delete_topics([replays.topics.clicks])[replays.topics.clicks].result()
    ensure_topics(replays.kafka, topics_for(fresh_name("model"), PARTITIONS, replays.topics))
    with pytest.raises(
        OffsetGone, match=f"{replays.topics.clicks} was created again.*another name"
    ):
        replays.send(few, settings=named)


def test_a_resumed_replay_refuses_logs_that_lost_its_lines(
    replays: Replays,
    tmp_path: Path,
    fresh_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = ReplaySettings(resume_as=fresh_name("replay"))
    few = write_directory(tmp_path / "few", [shown(i) for i in range(9)], [])
    replays.send(few, settings=named)
    compared: list[Source] = []

    def cut(_: KafkaSettings, reached: Mapping[Source, ReadPosition]) -> list[Source]:
        compared.extend(reached)
        return [Source(replays.topics.impressions, 1)]

    monkeypatch.setattr("headrace.ingest.replay.outputs.truncated", cut)
    with pytest.raises(OffsetGone, match=f"{replays.topics.impressions}/1 lost records"):
        replays.send(few, settings=named)
    assert {source.topic for source in compared} == {
        replays.topics.impressions,
        replays.topics.clicks,
    }  # ticks
