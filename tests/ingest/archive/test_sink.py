"""Tests the archiver: every record is in Parquet once, by hour, also after kills."""

import errno
import json
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pyarrow.parquet
import pytest
from fsspec.implementations.local import LocalFileSystem

from headrace.deploy.local.services.ports import free_port
from headrace.ingest.archive.archiver import Archiver, ArchiveSettings, run_archiver
from headrace.ingest.archive.parquet_folder import ArchiveError, ArchiveFolder
from headrace.ingest.errors import DamagedMessage
from headrace.ingest.examples.batch import pack
from headrace.ingest.joiner.core.input import EventSide
from headrace.ingest.kafka.fakes import ListReader
from headrace.ingest.kafka.producer import BY_KEY, KafkaWriter
from headrace.ingest.kafka.protocols import Record, Source
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import STATUS_TOPIC, EventTopics, ensure_topics, topics_for
from headrace.ingest.status import unpack
from tests.ingest.joiner.partition import Partition, shown, tick
from tests.ingest.joiner.partition import records as shown_records

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
SHOWN = Source("impressions", 0)
DEADLINE_S = 60


def event(i: int) -> bytes:
    time_ms = START_MS + i * HOUR_MS // 20
    return json.dumps({"impression_id": f"i{i}", "timestamp_ms": time_ms, "x": i}).encode()


def records(count: int) -> list[Record]:
    return [Record(SHOWN, 2 * i, START_MS, event(i)) for i in range(count)]


def read(directory: Path, topic: str = "impressions") -> list[dict[str, Any]]:
    found = pyarrow.dataset.dataset(directory / topic, partitioning="hive").to_table()
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def drain(sink: Archiver) -> None:
    for _ in range(40):
        sink.step(0.0)


@contextmanager
def archiving(
    directory: Path,
    topics: dict[Source, list[Record]],
    settings: ArchiveSettings | None = None,
    examples: str | None = None,
    **clocks: Any,
) -> Iterator[Archiver]:
    """Yield an archiver of these records that has read all it can, and release its folder."""
    folder = ArchiveFolder(str(directory))
    reader = ListReader(topics, largest_poll=7)
    try:
        sink = Archiver(reader, folder, examples, settings or ArchiveSettings(), **clocks)
        drain(sink)
        yield sink
    finally:
        folder.close()


def test_the_archiver_writes_every_event_to_the_file_of_its_hour(tmp_path: Path) -> None:
    with archiving(tmp_path, {SHOWN: records(100)}, ArchiveSettings(30)) as sink:
        sink.finish()
    rows = read(tmp_path)
    assert sorted(row["offset"] for row in rows) == [2 * i for i in range(100)]
    for row in rows:
        assert json.loads(row["event"])["impression_id"] == row["impression_id"]
        hour = time.strftime("%Y-%m-%dT%H", time.gmtime(row["timestamp_ms"] / 1000))
        assert row["hour"] == hour
    assert not list((tmp_path / "_writing").iterdir())


def test_an_archiver_whose_folder_is_full_waits_and_writes_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(LocalFileSystem, "pipe_file", full)
    with archiving(tmp_path, {SHOWN: records(100)}, ArchiveSettings(30)) as sink:
        stopped_at = sink.positions()
        assert not sink.step(0.0)
        assert sink.full and sink.positions() == stopped_at, "nothing is read without room"
        monkeypatch.undo()
        drain(sink)
        sink.finish()
        assert sink.step(0.0), "the folder has room"
    assert sorted(row["offset"] for row in read(tmp_path)) == [2 * i for i in range(100)]


def test_an_archiver_that_stops_writes_for_a_bounded_time_and_the_next_one_writes_the_rest(
    tmp_path: Path,
) -> None:
    topic = {
        Source("impressions", at): [
            each._replace(source=Source("impressions", at)) for each in rows
        ]
        for at, rows in enumerate([records(14)] * 12)
    }
    now_s = [0.0]
    slow: dict[str, Any] = {
        "now_s": lambda: now_s[0],
        "wrote": lambda *_: now_s.__setitem__(0, now_s[0] + 3.0),  # a machine with much work
        "stopping": lambda: now_s[0] >= 1.0,
    }
    with archiving(tmp_path, topic, ArchiveSettings(most_rows=14), **slow) as sink:
        assert now_s[0] == 3.0, "the step under way writes no other partition"
        left = sink.finish(5.0)
        assert now_s[0] == 9.0
        assert left == 9 * 14
    with archiving(tmp_path, topic, ArchiveSettings(most_rows=14)) as sink:
        assert sink.finish() == 0
    rows = read(tmp_path)
    assert sorted((row["partition"], row["offset"]) for row in rows) == [
        (partition, 2 * i) for partition in range(12) for i in range(14)
    ]


EXAMPLES = Source("examples.news", 0)


def messages(*before: int) -> list[Record]:
    """Return messages of one example, each with its number of examples before it."""
    partition = Partition()
    partition.offer(EventSide.IMPRESSIONS, shown_records(EventSide.IMPRESSIONS, [shown("i", 1)]))
    partition.offer(EventSide.CLICKS, shown_records(EventSide.CLICKS, [tick(1000)]))
    one = partition.joiner.advance(0).examples
    return [
        Record(EXAMPLES, i, START_MS, pack(replace(one, before=each)))
        for i, each in enumerate(before)
    ]


@pytest.mark.parametrize(
    "damage",
    [lambda blob: blob[:-200], lambda blob: blob.replace(b"77777", b"7x777")],
    ids=["cut off", "an invalid number"],
)
def test_a_damaged_message_of_examples_stops_the_archiver_until_an_operator_names_it(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    sound, other = messages(77777, 77777)
    topic = {EXAMPLES: [sound, other._replace(value=damage(other.value))]}
    with (
        pytest.raises(DamagedMessage, match=r"examples.news/0@1: .*--skip-damaged"),
        archiving(tmp_path, topic, None, EXAMPLES.topic),
    ):
        pass
    named = ArchiveSettings(skip_damaged=("examples.news/0@1",))
    with archiving(tmp_path, topic, named, EXAMPLES.topic) as sink:
        sink.finish()
        assert sink.positions() == {EXAMPLES: 2}
    assert [row["offset"] for row in read(tmp_path, EXAMPLES.topic)] == [0]


def test_the_archiver_names_the_examples_that_kafka_did_not_deliver(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with archiving(tmp_path, {EXAMPLES: messages(5, 6, 9)}, None, EXAMPLES.topic):
        assert caplog.messages == ["examples.news/0@2: 2 examples before it are missing"]


def test_the_archiver_keeps_messages_that_are_not_events(tmp_path: Path) -> None:
    deep = b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"
    odd = [b"not json", b"\xff\xfe", b'{"timestamp_ms": 5}', b"", deep]
    topic = {SHOWN: [Record(SHOWN, i, START_MS, value) for i, value in enumerate(odd)]}
    with archiving(tmp_path, topic) as sink:
        sink.finish()
    rows = sorted(read(tmp_path), key=lambda row: row["offset"])
    texts = ["not json", None, '{"timestamp_ms": 5}', "", deep.decode()]
    assert [row["event"] for row in rows] == texts
    assert rows[1]["raw"] == b"\xff\xfe"
    assert {row["timestamp_ms"] for row in rows} == {None}


class Killed(Exception):
    """Kills the archiver here."""


def test_an_archiver_killed_at_any_file_system_call_writes_no_row_twice(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    dice = random.Random(seed)
    for life in range(60):
        folder = ArchiveFolder(str(tmp_path))
        calls = dice.randrange(1, 25) if life < 59 else 10**6

        def counted(method: Any) -> Any:
            def call(*arguments: Any, **named: Any) -> Any:
                nonlocal calls
                calls -= 1
                if calls == 0:
                    raise Killed
                return method(*arguments, **named)

            return call

        class Deadly:
            def __getattr__(self, name: str, files: Any = folder._files) -> Any:
                return counted(getattr(files, name))

        folder._files = Deadly()
        reader = ListReader({SHOWN: records(120)}, largest_poll=5)
        sink = Archiver(reader, folder, None, ArchiveSettings(most_rows=dice.choice([5, 12])))
        try:
            drain(sink)
            sink.finish()
        except Killed:
            pass
        folder.close()
        there = (tmp_path / "impressions").is_dir()
        seen = [row["offset"] for row in read(tmp_path)] if there else []
        assert len(seen) == len(set(seen)), f"seed {seed}, life {life}"
    assert sorted(seen) == [2 * i for i in range(120)], f"seed {seed}"


def test_the_archiver_writes_a_few_rows_once_they_are_old(tmp_path: Path) -> None:
    now_s = 0.0
    settings, topic = ArchiveSettings(most_age_s=10.0), {SHOWN: records(3)}
    with archiving(tmp_path, topic, settings, now_s=lambda: now_s) as sink:
        assert not (tmp_path / "impressions").exists()
        now_s = 10.0
        drain(sink)
        assert len(read(tmp_path)) == 3


def test_the_archiver_refuses_a_gap_and_a_recreated_topic(tmp_path: Path) -> None:
    with archiving(tmp_path, {SHOWN: records(3)}) as sink:
        sink.finish()
        with pytest.raises(ArchiveError, match="expected a folder"):
            ArchiveFolder(str(tmp_path))  # in use
    late = {SHOWN: [Record(SHOWN, 50, START_MS, event(1))]}
    with pytest.raises(ArchiveError, match="retention removed"), archiving(tmp_path, late):
        pass
    folder, behind = ArchiveFolder(str(tmp_path)), ListReader({SHOWN: records(3)})
    behind.old_end = 1  # of a broker that was cut off: not asked about what was read
    with closing(folder):
        drain(Archiver(behind, folder, None, ArchiveSettings()))
    folder, again = ArchiveFolder(str(tmp_path)), ListReader({SHOWN: records(3)})
    again.topic_id = lambda topic: "another"  # type: ignore[method-assign]
    with pytest.raises(ArchiveError, match="recreated"), closing(folder):
        drain(Archiver(again, folder, None, ArchiveSettings()))


_PROGRAM = """
import sys, threading, signal
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics
from headrace.ingest.archive.archiver import ArchiveSettings, run_archiver
bootstrap, url, *topics = sys.argv[1:]
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
settings = ArchiveSettings(most_rows=500, most_age_s=0.2)
run_archiver(settings, KafkaSettings(bootstrap), None, url, stop, EventTopics(*topics))
"""


def test_an_archiver_process_killed_twice_writes_every_row_once(
    kafka: str, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    settings = KafkaSettings(kafka)
    topics = EventTopics(*(fresh_name(stem) for stem in ("shown", "clicked", "dead")))
    ensure_topics(settings, topics_for(fresh_name("model"), 2, topics))
    writer = KafkaWriter(settings)
    target = Source(topics.impressions, BY_KEY)
    arguments = [sys.executable, "-c", _PROGRAM, kafka, str(tmp_path)]
    arguments += [topics.impressions, topics.clicks, topics.dead_letters]
    sent = 0
    for life in range(3):
        for i in range(sent, sent + 1500):
            writer.send(target, event(i), f"i{i}".encode())
        writer.flush()
        sent += 1500
        goal = sent if life == 2 else sent - 1000
        with subprocess.Popen(arguments) as process:
            deadline = time.monotonic() + DEADLINE_S
            while True:
                assert time.monotonic() < deadline
                assert process.poll() is None
                there = (tmp_path / topics.impressions).is_dir()
                if there and len(_offsets(tmp_path, topics.impressions)) >= goal:
                    break
            process.send_signal(signal.SIGKILL if life < 2 else signal.SIGTERM)
    writer.close()
    rows = read(tmp_path, topics.impressions)
    assert len(rows) == sent
    assert len({row["impression_id"] for row in rows}) == sent
    published = {
        (status.process, figure.labels.get("topic"), status.ended)
        for status in (unpack(each.value) for each in read_all(settings, STATUS_TOPIC))
        for figure in status.figures
    }
    assert ("sink", topics.impressions, True) in published, "no last status"


def test_an_idle_sink_answers_scrapes_and_stops_while_they_come(
    kafka: str, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    settings, port = KafkaSettings(kafka), free_port()
    topics = EventTopics(*(fresh_name(stem) for stem in ("shown", "clicked", "dead")))
    ensure_topics(settings, topics_for(fresh_name("model"), 6, topics))
    stop, left, lags = threading.Event(), threading.Event(), list[str]()
    archive = ArchiveSettings(metrics_port=port)

    def scrape() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", None, 30) as answer:
                lines = answer.read().decode().splitlines()
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionError):  # not listening, or not any more
                return ""
            raise
        except ConnectionError:
            return ""
        return next((line for line in lines if line.startswith("headrace_sink_lag ")), "")

    def scrape_on() -> None:
        while not left.is_set():
            lags.append(scrape())

    run = (archive, settings, None, str(tmp_path), stop, topics)
    sink = threading.Thread(target=run_archiver, args=run, daemon=True)
    scrapers = [threading.Thread(target=scrape_on, daemon=True) for _ in range(3)]
    sink.start()
    deadline = time.monotonic() + DEADLINE_S
    while scrape() != "headrace_sink_lag 0.0":
        assert time.monotonic() < deadline
    for each in scrapers:
        each.start()
    while len(lags) < 50:
        assert time.monotonic() < deadline
    stop.set()
    sink.join(DEADLINE_S)
    assert not sink.is_alive()
    left.set()
    for each in scrapers:
        each.join(DEADLINE_S)
    assert "headrace_sink_lag 0.0" in lags


def _offsets(directory: Path, topic: str) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for path in (directory / topic).glob("hour=*/*.parquet"):
        try:
            rows = pyarrow.parquet.read_metadata(path).num_rows
        except FileNotFoundError:
            continue  # removed by the next process meanwhile
        found += [(0, 0)] * rows
    return found
