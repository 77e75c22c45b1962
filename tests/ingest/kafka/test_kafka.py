"""Tests the Kafka reader, writer and topics against a real broker."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any, cast

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.ingest.errors import (
    Fenced,
    KafkaRefused,
    KafkaUnreachable,
    MissingTopic,
    OffsetGone,
    StreamError,
    TopicMismatch,
    WriteRefused,
)
from headrace.ingest.kafka.bounded_reader import read_all
from headrace.ingest.kafka.consumer import KafkaReader
from headrace.ingest.kafka.offset_store import KafkaOffsets
from headrace.ingest.kafka.producer import BY_KEY, KafkaWriter
from headrace.ingest.kafka.protocols import (
    AtEnd,
    Committed,
    PartitionAssigned,
    PartitionRevoked,
    ReaderEvent,
    Record,
    Source,
)
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import (
    STATUS_TOPIC,
    EventTopics,
    TopicSpec,
    check_co_partitioned,
    ensure_topics,
    topics_for,
)
from headrace.ingest.kafka.transactions import KafkaTransactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    FreshName = Callable[[str], str]

DEADLINE_S = 90.0


@pytest.fixture
def settings(kafka: str) -> KafkaSettings:
    return KafkaSettings(kafka)


@pytest.fixture
def topic(settings: KafkaSettings, fresh_name: FreshName) -> str:
    return make_topic(settings, fresh_name("topic"), 2)


@pytest.fixture
def reader(settings: KafkaSettings, topic: str) -> Iterator[KafkaReader]:
    opened = KafkaReader(settings, None, [topic])
    yield opened
    opened.close()


def make_topic(settings: KafkaSettings, name: str, partitions: int) -> str:
    ensure_topics(settings, [TopicSpec(name, partitions)])
    return name


def write(settings: KafkaSettings, source: Source, values: list[bytes]) -> None:
    writer = KafkaWriter(settings)
    for value in values:
        writer.send(source, value)
    writer.close()


def poll_until(
    reader: KafkaReader, enough: Callable[[list[ReaderEvent]], bool]
) -> list[ReaderEvent]:
    happened: list[ReaderEvent] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while not enough(happened):
        assert time.monotonic() < deadline_s, f"only {happened[-20:]}"
        happened += reader.poll(0.05)
    return happened


def until_end(reader: KafkaReader, source: Source, offset: int) -> list[ReaderEvent]:
    return poll_until(reader, lambda happened: AtEnd(source, offset) in happened)


def values(happened: list[ReaderEvent]) -> list[bytes]:
    return [h.value for h in happened if isinstance(h, Record)]


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [str(i).encode() for i in range(first, first + count)]


# -------------------------------------------------------------------- reader


def test_an_assigned_source_delivers_nothing_before_start_and_then_all_records(
    settings: KafkaSettings, topic: str, reader: KafkaReader
) -> None:
    source, other = Source(topic, 0), Source(topic, 1)
    write(settings, source, numbered(100))
    write(settings, other, numbered(3))
    assert reader.poll(0.0) == [PartitionAssigned(source), PartitionAssigned(other)]
    reader.start({other: 3})
    assert until_end(reader, other, 3) == [AtEnd(other, 3)]
    reader.start({source: 40})
    happened = until_end(reader, source, 100)
    assert values(happened) == numbered(60, 40)
    assert {h.source for h in happened} == {source}


def test_records_have_the_append_time_of_the_broker(
    settings: KafkaSettings, fresh_name: FreshName
) -> None:
    events = EventTopics(*(fresh_name(stem) for stem in ("shown", "clicked", "dead")))
    ensure_topics(settings, topics_for(fresh_name("model"), 1, events))
    before_ms = time.time_ns() // 1_000_000
    write(settings, Source(events.impressions, 0), [b"{}"])
    [record] = read_all(settings, events.impressions)
    assert before_ms <= record.append_ms <= time.time_ns() // 1_000_000


def test_a_reader_started_at_an_earlier_offset_delivers_from_there(
    settings: KafkaSettings, topic: str, reader: KafkaReader
) -> None:
    source = Source(topic, 0)
    write(settings, source, numbered(20_000))
    reader.poll(0.0)
    reader.start({source: 0})
    poll_until(reader, lambda happened: len(happened) > 100)
    reader.start({source: 50})
    assert values(until_end(reader, source, 20_000)) == numbered(19_950, 50)


def test_a_kafka_client_that_forgets_a_seek_delivers_no_record_twice(
    settings: KafkaSettings, topic: str, reader: KafkaReader
) -> None:
    source = Source(topic, 1)
    write(settings, source, numbered(9))
    reader.start({source: 4})
    reader._consumer.seek(TopicPartition(topic, 1, 0))
    assert values(until_end(reader, source, 9)) == numbered(5, first=4)
    reader._consumer.seek(TopicPartition(topic, 1, 0))
    write(settings, source, numbered(3, first=9))
    assert values(until_end(reader, source, 12)) == numbered(3, first=9)


def test_a_paused_source_is_silent_and_resumes_at_its_position(
    settings: KafkaSettings, topic: str, reader: KafkaReader
) -> None:
    source, other = Source(topic, 0), Source(topic, 1)
    write(settings, source, numbered(20_000))
    reader.poll(0.0)
    reader.start({source: 0, other: 0})
    before = poll_until(reader, lambda happened: len(happened) > 100)
    reader.pause([source])
    write(settings, other, numbered(5))
    while_paused = until_end(reader, other, 5)
    assert {h.source for h in while_paused} == {other}
    reader.resume([source])
    after = until_end(reader, source, 20_000)
    assert values([h for h in before + after if h.source == source]) == numbered(20_000)


def test_a_reader_reports_the_end_again_after_new_records(
    settings: KafkaSettings, topic: str, reader: KafkaReader
) -> None:
    source = Source(topic, 0)
    reader.poll(0.0)
    reader.start({source: 0})
    until_end(reader, source, 0)
    write(settings, source, [b"x"])
    assert [type(h) for h in until_end(reader, source, 1)] == [Record, AtEnd]
    assert reader.poll(0.1) == []
    reader.start({source: 0})
    assert [type(h) for h in until_end(reader, source, 1)] == [Record, AtEnd]


def test_the_end_of_a_source_is_past_the_transaction_marker(
    settings: KafkaSettings, topic: str, reader: KafkaReader, fresh_name: FreshName
) -> None:
    source = Source(topic, 0)
    reader.poll(0.0)
    reader.start({source: 0})
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": settings.bootstrap, "transactional.id": fresh_name("txn")}
    )
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"never", partition=0)
    producer.flush()
    producer.abort_transaction(10)
    producer.begin_transaction()
    producer.produce(topic, b"seen", partition=0)
    producer.commit_transaction(10)
    assert values(until_end(reader, source, 4)) == [b"seen"]
    assert reader.held(source) == (0, 4)
    assert [(r.offset, r.value) for r in read_all(settings, topic)] == [(2, b"seen")]
    producer.close()


class WithoutPartitions:
    """A consumer that does not know the partitions of its topics, this many times."""

    def __init__(self, consumer: Any, times: int) -> None:
        self._consumer, self.times = consumer, times

    def get_watermark_offsets(self, *args: Any, **kwargs: Any) -> Any:
        if self.times:
            self.times -= 1
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        return self._consumer.get_watermark_offsets(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


def test_a_reader_waits_for_partitions_that_its_client_does_not_have_after_an_outage(
    topic: str, reader: KafkaReader
) -> None:
    reader.poll(0.0)
    consumer = WithoutPartitions(reader._consumer, times=2)
    reader._consumer = cast("Any", consumer)
    assert reader.held(Source(topic, 0)) == (0, 0)
    assert not consumer.times
    consumer.times = 1
    with pytest.raises(MissingTopic, match="absent"):
        reader.held(Source("absent", 0))


def test_a_thread_that_asks_a_closed_reader_gets_an_error_that_metrics_expect(
    settings: KafkaSettings, topic: str
) -> None:
    reader = KafkaReader(settings, None, [topic])
    reader.close()
    with pytest.raises(StreamError, match="expected an open client, got a closed one"):
        reader.held(Source(topic, 0))


def test_a_reader_stops_at_a_deleted_offset_and_skips_no_gap(
    settings: KafkaSettings, topic: str, reader: KafkaReader
) -> None:
    source = Source(topic, 0)
    write(settings, source, numbered(3))
    reader.poll(0.0)
    reader.start({source: 1_000})
    with pytest.raises(OffsetGone):
        until_end(reader, source, 1_000)


def test_a_recreated_topic_has_another_id(
    settings: KafkaSettings, topic: str, reader: KafkaReader, fresh_name: FreshName
) -> None:
    other = KafkaReader(settings, None, [make_topic(settings, fresh_name("topic"), 1)])
    assert reader.topic_id(topic) == reader.topic_id(topic) != ""
    assert other.topic_id(other_topic := next(iter(other._sources.values())).topic)
    assert other.topic_id(other_topic) != reader.topic_id(topic)
    other.close()


def owned(happened: list[ReaderEvent]) -> set[Source]:
    ours: set[Source] = set()
    for happening in happened:
        if isinstance(happening, PartitionAssigned):
            ours.add(happening.source)
        elif isinstance(happening, PartitionRevoked):
            ours.discard(happening.source)
    return ours


def test_two_readers_of_a_group_each_get_impressions_p_with_clicks_p(
    settings: KafkaSettings, fresh_name: FreshName
) -> None:
    topics = [make_topic(settings, fresh_name(stem), 4) for stem in ("impressions", "clicks")]
    group = fresh_name("group")
    readers = [KafkaReader(settings, group, topics) for _ in range(2)]
    heard: list[list[ReaderEvent]] = [[], []]
    deadline_s = time.monotonic() + DEADLINE_S
    while not all(len(owned(h)) == 4 for h in heard):
        assert time.monotonic() < deadline_s, [owned(h) for h in heard]
        for mine, reader in zip(heard, readers, strict=True):
            mine.extend(reader.poll(0.05))
    for mine in heard:
        by_topic = [{s.partition for s in owned(mine) if s.topic == topic} for topic in topics]
        assert by_topic[0] == by_topic[1]
    readers[0].close()
    happened = poll_until(readers[1], lambda h: len(owned(heard[1] + h)) == 8)
    assert not any(isinstance(h, Record) for h in happened)
    readers[1].close()


def test_a_restarted_instance_takes_its_partitions_and_fences_its_predecessor(
    settings: KafkaSettings, topic: str, fresh_name: FreshName
) -> None:
    group = fresh_name("group")
    first = KafkaReader(settings, group, [topic], instance="one")
    poll_until(first, lambda happened: len(owned(happened)) == 2)
    second = KafkaReader(settings, group, [topic], instance="one")
    poll_until(second, lambda happened: len(owned(happened)) == 2)
    with pytest.raises(Fenced):
        poll_until(first, lambda _: False)
    first.close()
    second.close()


class CalledFenced:
    """A consumer that once reports that another member with its instance joined."""

    def __init__(self, consumer: confluent_kafka.Consumer) -> None:
        self._consumer, self._told = consumer, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def poll(self, timeout_s: float) -> confluent_kafka.Message | None:
        if self._told:
            return self._consumer.poll(timeout_s)
        self._told = True
        fenced = KafkaError(KafkaError.FENCED_INSTANCE_ID).str()
        return confluent_kafka.Message(
            error=KafkaError(KafkaError._FATAL, f"Fatal error: {fenced}: Fatal consumer error")
        )


def test_an_instance_called_fenced_without_a_successor_joins_again(
    settings: KafkaSettings, topic: str, fresh_name: FreshName
) -> None:
    reader = KafkaReader(settings, fresh_name("group"), [topic], instance="one")
    happened = poll_until(reader, lambda happened: len(owned(happened)) == 2)
    sources = owned(happened)
    reader.start(dict.fromkeys(sources, 0))
    reader._consumer = cast("Any", CalledFenced(reader._consumer))
    happened = poll_until(
        reader, lambda happened: any(isinstance(h, PartitionAssigned) for h in happened)
    )
    assert (
        {h.source for h in happened if isinstance(h, PartitionRevoked)}
        == sources
        == owned(happened)
    )
    source = Source(topic, 1)
    write(settings, source, numbered(7))
    reader.start({source: 0})
    assert values(until_end(reader, source, 7)) == numbered(7)
    assert reader.held(source) == (0, 7)
    reader.close()


def test_commits_of_a_reader_are_the_committed_offsets_of_its_group(
    settings: KafkaSettings, topic: str, fresh_name: FreshName
) -> None:
    reader = KafkaReader(settings, fresh_name("group"), [topic])
    poll_until(reader, lambda happened: len(owned(happened)) == 2)
    source = Source(topic, 1)
    assert reader.committed([source]) == {}
    write(settings, source, numbered(7))
    reader.start({source: 0})
    reader.commit({source: 7})
    poll_until(reader, lambda _: reader.committed([source]) == {source: (7, "", -1)})
    reader.close()


def test_a_member_that_was_dropped_reads_its_committed_offsets_before_it_polls(
    settings: KafkaSettings, topic: str, fresh_name: FreshName
) -> None:
    group, source = fresh_name("group"), Source(topic, 0)
    offsets = KafkaOffsets(settings, group)
    transactions = KafkaTransactions(settings, fresh_name("writer"), offsets)
    transactions.write([], {source: Committed(7, "saved", 3)})
    transactions.close()
    offsets.close()
    first = KafkaReader(settings, group, [topic], instance="one")
    poll_until(first, lambda happened: len(owned(happened)) == 2)
    second = KafkaReader(settings, group, [topic], instance="one")  # fences the first
    poll_until(second, lambda happened: len(owned(happened)) == 2)
    second.close()
    assert first.committed([source]) == {source: (7, "saved", 3)}
    first.close()


def test_a_wrong_kafka_address_fails_within_seconds_with_its_name() -> None:
    nowhere = KafkaSettings("127.0.0.1:9", connect_timeout_s=1.0)
    for connect in (
        lambda: KafkaReader(nowhere, "group", ["topic"]),
        lambda: KafkaWriter(nowhere),
        lambda: ensure_topics(nowhere, topics_for("model")),
        lambda: list(read_all(nowhere, "topic")),
    ):
        with pytest.raises(KafkaUnreachable, match=r"127\.0\.0\.1:9 .*--kafka.*HEADRACE_KAFKA"):
            connect()


def test_the_error_for_a_missing_topic_names_it(
    settings: KafkaSettings, fresh_name: FreshName
) -> None:
    missing = fresh_name("missing")
    with pytest.raises(MissingTopic, match=missing):
        KafkaReader(settings, "group", [missing])


def test_client_settings_that_exactly_once_depends_on_are_refused() -> None:
    with pytest.raises(KafkaRefused, match=r"acks, isolation\.level"):
        KafkaSettings("a:1", client={"isolation.level": "read_uncommitted", "acks": "0"})
    assert (
        KafkaSettings("a:1", client={"security.protocol": "SSL"}).connection()["security.protocol"]
        == "SSL"
    )


# -------------------------------------------------------------------- writer


def test_keyed_messages_go_to_the_partition_of_their_murmur2_hash(
    settings: KafkaSettings, fresh_name: FreshName
) -> None:
    topics = [make_topic(settings, fresh_name("topic"), 4) for _ in range(2)]
    writer = KafkaWriter(settings)
    for topic in topics:
        for i in range(50):
            writer.send(Source(topic, BY_KEY), str(i).encode(), str(i).encode())
    writer.close()
    for topic in topics:
        placed = {record.value: record.source.partition for record in read_all(settings, topic)}
        assert placed == {
            str(i).encode(): confluent_kafka.murmur2(str(i).encode(), 4) for i in range(50)
        }


def _narrow(settings: KafkaSettings, fresh_name: FreshName) -> tuple[str, KafkaWriter]:
    """Return a topic that accepts only short messages, and a writer."""
    topic = fresh_name("narrow")
    ensure_topics(settings, [TopicSpec(topic, 1, {"max.message.bytes": "10000"})])
    return topic, KafkaWriter(settings)


def test_a_writer_raises_an_error_for_a_message_that_is_too_large(
    settings: KafkaSettings, fresh_name: FreshName
) -> None:
    topic, writer = _narrow(settings, fresh_name)
    # above the topic's limit but not the client's, and random, so compression does not help
    writer.send(Source(topic, 0), secrets.token_bytes(20_000))
    with pytest.raises(WriteRefused, match=topic):
        writer.flush()
    with pytest.raises(WriteRefused):
        writer.send(Source(topic, 0), b"after")
    with pytest.raises(WriteRefused):
        writer.close()


def test_a_writer_that_never_flushes_raises_the_error_of_a_refused_message(
    settings: KafkaSettings, fresh_name: FreshName
) -> None:
    topic, writer = _narrow(settings, fresh_name)
    writer.send(Source(topic, 0), secrets.token_bytes(20_000))

    def send_on() -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            writer.send(Source(topic, 0), b"after")
            time.sleep(
                0.01
            )  # slow enough that the queue never fills: send polls the client when it is full

    with pytest.raises(WriteRefused, match=topic):
        send_on()
    with pytest.raises(WriteRefused):
        writer.close()


# -------------------------------------------------------------------- topics


def test_topics_are_created_once_and_verified_afterwards(
    settings: KafkaSettings, fresh_name: FreshName
) -> None:
    events = EventTopics(*(fresh_name(stem) for stem in ("shown", "clicked", "dead")))
    specs = topics_for(fresh_name("model"), 3, events)
    ensure_topics(settings, specs)
    ensure_topics(settings, specs)
    alone = (events.dead_letters, STATUS_TOPIC)
    names = [spec.name for spec in specs if spec.name not in alone]
    assert check_co_partitioned(settings, names) == 3


def test_a_topic_with_other_settings_is_refused_with_each_difference(
    settings: KafkaSettings, fresh_name: FreshName
) -> None:
    name = fresh_name("shown")
    ensure_topics(settings, [TopicSpec(name, 2)])
    wanted = TopicSpec(name, 3, {"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(TopicMismatch) as raised:
        ensure_topics(settings, [wanted])
    assert f"topic {name}: expected 3 partitions, got 2" in str(raised.value)
    assert "expected message.timestamp.type=LogAppendTime, got CreateTime" in str(raised.value)


def test_topics_with_different_partition_counts_are_refused_with_the_counts(
    settings: KafkaSettings, fresh_name: FreshName
) -> None:
    shown = make_topic(settings, fresh_name("shown"), 2)
    clicked = make_topic(settings, fresh_name("clicked"), 3)
    with pytest.raises(TopicMismatch, match=f"got {shown} 2, {clicked} 3"):
        check_co_partitioned(settings, [shown, clicked])
    with pytest.raises(MissingTopic, match="got no absent"):
        check_co_partitioned(settings, [shown, "absent"])
