"""Reads and writes a real broker."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.ingest.errors import Fenced, MissingTopic, OffsetGone, StreamError
from headrace.ingest.kafka.protocols import (
    AtEnd,
    Committed,
    PartitionAssigned,
    PartitionRevoked,
    ReaderEvent,
    Record,
    Source,
)
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.reading.offset_store import KafkaOffsets
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, ensure_topics, topics_for
from headrace.ingest.kafka.transactions import KafkaTransactions
from tests.ingest.kafka.made_topics import DEADLINE_S, make_topic
from tests.ingest.kafka.reader_events import numbered, poll_until, until_end, values, write

FreshName = Callable[[str], str]


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
    assert reader.bounds(source) == (0, 4)
    assert [(r.offset, r.value) for r in read_all(settings, topic)] == [(2, b"seen")]
    producer.close()


def test_an_end_below_one_that_was_reached_before_is_asked_for_again(
    settings: KafkaSettings, topic: str, reader: KafkaReader
) -> None:
    source = Source(topic, 0)
    reader.poll(0.0)
    with ThreadPoolExecutor(1) as aside:
        asked = aside.submit(reader.bounds, source, 2)  # as if a broker that was cut off answered
        write(settings, source, numbered(2))
        assert asked.result(DEADLINE_S) == (0, 2)


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
    assert reader.bounds(Source(topic, 0)) == (0, 0)
    assert not consumer.times
    consumer.times = 1
    with pytest.raises(MissingTopic, match="absent"):
        reader.bounds(Source("absent", 0))


def test_a_thread_that_asks_a_closed_reader_gets_an_error_that_metrics_expect(
    settings: KafkaSettings, topic: str
) -> None:
    reader = KafkaReader(settings, None, [topic])
    reader.close()
    with pytest.raises(StreamError, match="expected an open client, got a closed one"):
        reader.bounds(Source(topic, 0))


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
    other_topic = make_topic(settings, fresh_name("topic"), 1)
    other = KafkaReader(settings, None, [other_topic])
    assert reader.topic_id(topic) == reader.topic_id(topic) != ""
    assert "" != other.topic_id(other_topic) != reader.topic_id(topic)
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
    assert reader.bounds(source) == (0, 7)
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
