"""Tests dead letters: their content, which are open, and that a repaired event returns once."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.ingest.dead_letters.letter import (
    Letter,
    Origin,
    SettledLetters,
    pack,
    pack_settled,
    unpack,
)
from headrace.ingest.dead_letters.letter_retry import Repairs, Retried, retry
from headrace.ingest.dead_letters.reader import Choice, DeadLetters
from headrace.ingest.dead_letters.repairs import BadRepair, FileRepairs, as_line, function_repairs
from headrace.ingest.errors import Fenced
from headrace.ingest.events.contract import LARGEST_VALUE_BYTES, Reason
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Record, Source
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, ensure_topics, topics_for
from tests.ingest.events_of import spec_of
from tests.ingest.joiner.joined import Joined

NOW_MS = 1_767_225_600_000
ROOT = Path(__file__).resolve().parents[3]


def letter(record: Record, reason: str = Reason.NO_TIME) -> Letter:
    read = unpack(pack(record, reason))
    assert isinstance(read, Letter)
    return read


def record(
    offset: int, value: bytes, topic: str = "impressions", key: bytes | None = b"k"
) -> Record:
    return Record(Source(topic, 0), offset, NOW_MS + offset, value, key)


# -------------------------------------------------------------------- content


def test_a_dead_letter_keeps_the_event_its_key_and_its_origin() -> None:
    read = letter(record(7, b'{"a":1}', key=b"shown-1"))
    assert read.origin == Origin("impressions", 0, 7, NOW_MS + 7)
    assert (read.event, read.key, read.reason_name) == ({"a": 1}, "shown-1", "no_time")


def test_a_dead_letter_of_binary_bytes_keeps_them_and_the_original_length() -> None:
    value = b"\xff" * (LARGEST_VALUE_BYTES + 5)
    read = letter(record(0, value, key=b"\xfe"))
    assert read.event_bytes == value[:LARGEST_VALUE_BYTES]
    assert read.value_bytes == len(value)
    assert (read.event, read.key, read.key_base64) == (None, None, b"\xfe")


def test_settlements_dead_letters_and_foreign_messages_are_distinguished() -> None:
    settled = SettledLetters(retried=(Origin("t", 1, 2, 3),), discarded=(Origin("t", 1, 4, 5),))
    assert unpack(pack_settled(settled)) == settled
    assert unpack(b"hello") is None
    assert unpack(b'{"settled":1}') is None


CHOICES = {
    "a word": (Choice(reason="bad_time"), [4, 5]),
    "a part of the sentence": (Choice(reason="found none"), [0, 1, 2, 3]),
    "a topic": (Choice(topic="clicks"), [1, 3, 5]),
    "times": (Choice(since_ms=NOW_MS + 1, until_ms=NOW_MS + 5), [1, 2, 3, 4]),
    "all of it": (
        Choice(reason="no_time", topic="clicks", since_ms=NOW_MS + 2, until_ms=NOW_MS + 9),
        [3],
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_dead_letters_are_selected_by_reason_topic_and_time(name: str) -> None:
    choice, offsets = CHOICES[name]
    reasons = [*[Reason.NO_TIME] * 4, *[Reason.BAD_TIME] * 2]
    topics = ["impressions", "clicks"] * 3
    letters = [letter(record(i, b"{}", topics[i]), reasons[i]) for i in range(6)]
    assert [each.offset for each in letters if choice.takes(each)] == offsets


# -------------------------------------------------------------------- repairs


def test_an_edited_line_of_the_shown_dead_letters_is_a_repair() -> None:
    first, second, third = (letter(record(i, b'{"impression_id":"a"}')) for i in range(3))
    edited = json.loads(as_line(first))
    edited["event"]["timestamp_ms"] = NOW_MS
    given_up = {**json.loads(as_line(second)), "event": None}
    repairs = FileRepairs([json.dumps(edited).encode(), b"\n", json.dumps(given_up).encode()], "f")
    assert repairs.repair(first) == {"impression_id": "a", "timestamp_ms": NOW_MS}
    assert repairs.repair(second).__class__.__name__ == "DiscardLetter"
    assert repairs.repair(third) is None
    assert repairs.unused == set()


WRONG_LINES = {
    "not JSON": (b"hello", "expected a line of `dead-letters --json`"),
    "no event": (
        b'{"topic":"t","partition":0,"offset":1,"append_ms":2,"value":"[]"}',
        "expected `event`",
    ),
    "still broken": (
        b'{"topic":"t","partition":0,"offset":1,"append_ms":2,"event":{"impression_id":"a"}}',
        "the joiner would refuse this event again: expected timestamp_ms",
    ),
    "without an id": (
        b'{"topic":"t","partition":0,"offset":1,"append_ms":2,"event":{"timestamp_ms":1767225600000}}',
        "expected impression_id, found none",
    ),
}


@pytest.mark.parametrize("name", WRONG_LINES)
def test_an_invalid_line_of_repairs_is_refused_with_its_number(name: str) -> None:
    wrong, text = WRONG_LINES[name]
    good = b'{"topic":"t","partition":0,"offset":9,"append_ms":2,"event":null}'
    with pytest.raises(BadRepair, match=r"repaired\.ndjson:2: ") as raised:
        FileRepairs([good, wrong], "repaired.ndjson")
    assert text in str(raised.value)
    with pytest.raises(BadRepair, match="each letter once"):
        FileRepairs([good, good], "repaired.ndjson")


def test_a_function_repairs_dead_letters_and_its_errors_name_the_letter(tmp_path: Path) -> None:
    path = tmp_path / "repair.py"
    path.write_text(
        "def repair(event, letter):\n"
        "    if letter.reason_name == 'no_time':\n"
        "        return {**event, 'timestamp_ms': letter.append_ms}\n"
        "    return 1 / 0 if letter.offset == 5 else letter.offset if letter.offset else None\n"
    )
    repairs = function_repairs(path)
    broken = letter(record(3, b'{"impression_id":"a"}'))
    assert repairs(broken) == {"impression_id": "a", "timestamp_ms": NOW_MS + 3}
    assert repairs(letter(record(0, b"[]"), Reason.NOT_AN_OBJECT)) is None
    with pytest.raises(BadRepair, match="an object or None for impressions/0@4, got int"):
        repairs(letter(record(4, b"[]"), Reason.NOT_AN_OBJECT))
    with pytest.raises(BadRepair, match="impressions/0@5: ZeroDivisionError"):
        repairs(letter(record(5, b"[]"), Reason.NOT_AN_OBJECT))
    path.write_text("x = 1\n")
    with pytest.raises(BadRepair, match="expected a function repair"):
        function_repairs(path)
    with pytest.raises(BadRepair, match="No such file"):
        function_repairs(tmp_path / "absent.py")


# -------------------------------------------------------------------- with Kafka


def with_time(letter: Letter) -> dict[str, object]:
    return {**(letter.event or {}), "timestamp_ms": NOW_MS}


@dataclass
class Topics:
    """Topics for one test."""

    kafka: KafkaSettings
    model: str
    names: EventTopics

    def write(self, records: Iterable[Record], reason: str = Reason.NO_TIME) -> None:
        writer = KafkaWriter(self.kafka)
        for each in records:
            writer.send(Source(self.names.dead_letters, 0), pack(each, reason))
        writer.close()

    def broken(self, count: int, first: int = 0) -> list[Record]:
        topics = (self.names.impressions, self.names.clicks)
        return [
            record(i, b'{"impression_id":"broken-%d"}' % i, topics[i % 2])
            for i in range(first, first + count)
        ]

    def open(self, choice: Choice | None = None) -> list[Letter]:
        return list(DeadLetters(self.kafka, self.names.dead_letters).letters(choice or Choice()))

    def retry(self, repairs: Repairs, choice: Choice | None = None) -> Retried:
        return retry(self.kafka, repairs, choice or Choice(), threading.Event(), self.names)

    def events(self) -> list[tuple[str, str]]:
        """Return the topic and the id of each event that was sent back, by key."""
        return sorted(
            (topic, (each.key or b"").decode())
            for topic in (self.names.impressions, self.names.clicks)
            for each in read_all(self.kafka, topic)
        )

    def expected(self, count: int) -> list[tuple[str, str]]:
        return sorted((each.source.topic, f"broken-{each.offset}") for each in self.broken(count))


@pytest.fixture
def topics(kafka: str, fresh_name: Callable[[str], str]) -> Topics:
    names = EventTopics(*(fresh_name(stem) for stem in ("shown", "clicked", "dead")))
    made = Topics(KafkaSettings(kafka), fresh_name("model"), names)
    ensure_topics(made.kafka, topics_for(made.model, 2, names))
    return made


def test_a_repaired_event_is_sent_back_once_over_any_number_of_retries(topics: Topics) -> None:
    topics.write(topics.broken(6))
    topics.write(topics.broken(3))  # the joiner of another model wrote the same letters
    shown = topics.open()
    assert [each.offset for each in shown] == list(range(6))
    lines: list[Any] = [json.loads(as_line(each)) for each in shown]
    for line in lines:
        line["event"]["timestamp_ms"] = NOW_MS
    lines[1]["event"] = None
    repaired = [json.dumps(line).encode() for line in lines[:4]]
    first = topics.retry(FileRepairs(repaired, "f").repair)
    assert (first.sent, first.discarded, first.left, first.refused) == (3, 1, 2, [])
    assert [each.offset for each in topics.open()] == [4, 5]
    again = FileRepairs(repaired, "f")
    second = topics.retry(again.repair)
    assert (second.sent, second.discarded, second.left) == (0, 0, 2)
    assert len(again.unused) == 4
    expected = [pair for pair in topics.expected(4) if pair[1] != "broken-1"]
    assert topics.events() == expected
    assert topics.retry(with_time).sent == 2
    assert topics.open() == []


def test_a_repair_that_the_joiner_would_refuse_again_is_not_sent(topics: Topics) -> None:
    topics.write([*topics.broken(1), record(1, b"{}", topic="elsewhere")])

    def nothing(letter: Letter) -> dict[str, object]:
        return {"impression_id": "a"} | ({} if letter.offset == 0 else {"timestamp_ms": NOW_MS})

    done = topics.retry(nothing)
    assert (done.sent, done.left) == (0, 2)
    assert done.refused[0][1] == Reason.NO_TIME.value
    assert "got elsewhere" in done.refused[1][1]
    assert topics.events() == []
    assert len(topics.open()) == 2


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_dead_letter_retry_killed_around_its_commit_sends_each_event_once(
    topics: Topics, moment: str
) -> None:
    topics.write(topics.broken(40))
    names = (topics.names.impressions, topics.names.clicks, topics.names.dead_letters)
    module = "tests.ingest.dead_letters.retry_process"
    command = [sys.executable, "-m", module, topics.kafka.bootstrap, *names]
    killed = subprocess.run([*command, moment], cwd=ROOT, timeout=120, check=False)
    assert killed.returncode == -9
    done = topics.retry(with_time)
    assert done.sent == (40 if moment == "before" else 0)
    assert topics.events() == topics.expected(40)
    assert topics.open() == []


def test_a_retry_waits_for_a_settlement_hidden_by_an_open_joiner_transaction(
    topics: Topics, fresh_name: Callable[[str], str]
) -> None:
    topics.write(topics.broken(1))
    joining = Producer(
        {"bootstrap.servers": topics.kafka.bootstrap, "transactional.id": fresh_name("joiner")}
    )
    joining.init_transactions(30)
    joining.begin_transaction()
    joining.produce(topics.names.dead_letters, pack(topics.broken(2)[1], Reason.NO_TIME))
    joining.flush(30)
    writer = KafkaWriter(topics.kafka)
    settled = SettledLetters(retried=(topics_origin(topics, 0),))
    writer.send(Source(topics.names.dead_letters, 0), pack_settled(settled), b"settled")
    writer.close()
    ending = threading.Timer(0.5, joining.commit_transaction)
    ending.start()
    assert [each.offset for each in topics.open()] == [1]
    ending.join()
    joining.close()


def topics_origin(topics: Topics, offset: int) -> Origin:
    lain = topics.broken(1, first=offset)[0]
    return Origin(lain.source.topic, 0, offset, lain.append_ms)


def test_the_first_of_two_concurrent_retries_is_fenced(topics: Topics) -> None:
    topics.write(topics.broken(3))

    def overtaken(letter: Letter) -> dict[str, object]:
        if letter.offset == 0:
            assert topics.retry(with_time).sent == 3
        return with_time(letter)

    with pytest.raises(Fenced):
        topics.retry(overtaken)
    assert topics.events() == topics.expected(3)


def test_framed_and_empty_messages_of_each_compression_are_repaired_once(
    topics: Topics, tmp_path: Path
) -> None:
    path, codecs = tmp_path / "repair.py", ("gzip", "snappy", "lz4", "zstd")
    path.write_text(
        "import json\n"
        "def repair(event, letter):\n"
        "    assert event is None\n"
        "    return json.loads(letter.event_bytes[5:]) if letter.event_bytes else None\n"
    )
    events = dict.fromkeys(codecs, b'{"impression_id":"%s","timestamp_ms":%d}')
    framed = {}
    for codec, text in events.items():
        options = {"bootstrap.servers": topics.kafka.bootstrap, "compression.type": codec}
        producer, topic = Producer(options), topics.names.impressions
        framed[codec] = b"\0\0\0\0\7" + text % (codec.encode(), NOW_MS)
        producer.produce(topic, framed[codec], codec)
        producer.produce(topic, None, codec)
        producer.produce(topic, text % (b"good-" + codec.encode(), NOW_MS))
        producer.flush()
    joined = Joined(topics.kafka, topics.model, topics.names, spec_of(), partitions=2)
    with joined.process() as process:
        joined.wait(lambda: joined.state.read().dead_letters == 8, process)
        letters = topics.open()
        found = {(each.key, each.reason): each.event_bytes for each in letters}
        assert found == {
            **{(codec, Reason.NOT_JSON): framed[codec] for codec in codecs},
            **{(codec, Reason.EMPTY): b"" for codec in codecs},
        }
        repaired = [topics.retry(function_repairs(path)) for _ in range(2)]
        assert [(each.sent, each.left) for each in repaired] == [(4, 4), (0, 4)]
        joined.wait(lambda: joined.state.read().impressions == 8, process)
    assert joined.state.read().examples == 8
