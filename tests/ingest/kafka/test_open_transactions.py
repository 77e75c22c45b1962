"""Tests reading to the end of a topic while a transaction is open, against a real broker.

An open transaction also stands for one committed a moment ago. Until its markers are written, Kafka
answers readers of committed records in the same way.
"""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from headrace.ingest.errors import KafkaUnreachable
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import AtEnd, ReaderEvent, Record, Source
from headrace.ingest.kafka.reading.bounded_reader import offsets_at, read_all
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import TopicSpec, ensure_topics
from tests.ingest.joiner.joined import Joined

TIMEOUT_S = 30
FAR_MS = 10**14


@pytest.fixture
def source(settings: KafkaSettings, fresh_name: Callable[[str], str]) -> Source:
    """A topic with one record."""
    source = Source(fresh_name("topic"), 0)
    ensure_topics(settings, [TopicSpec(source.topic, 1)])
    writer = KafkaWriter(settings)
    writer.send(source, b"before")
    writer.close()
    return source


@pytest.fixture
def producer(settings: KafkaSettings, fresh_name: Callable[[str], str]) -> Iterator[Producer]:
    """A producer in an open transaction."""
    producer = Producer(
        {"bootstrap.servers": settings.bootstrap, "transactional.id": fresh_name("open")}
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    yield producer
    producer.close()


def write(producer: Producer, source: Source, value: bytes) -> None:
    producer.produce(source.topic, value, partition=source.partition)
    assert producer.flush(TIMEOUT_S) == 0


def test_a_whole_topic_read_waits_for_the_markers_of_a_transaction(
    settings: KafkaSettings, source: Source, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(producer, source, b"committed")
    poll, ends = KafkaReader.poll, list[AtEnd]()

    def committing(reader: KafkaReader, timeout_s: float) -> list[ReaderEvent]:
        happened = poll(reader, timeout_s)
        stable = [each for each in happened if isinstance(each, AtEnd)]
        if stable and not ends:
            producer.commit_transaction(TIMEOUT_S)
        ends.extend(stable)
        return happened

    monkeypatch.setattr(KafkaReader, "poll", committing)
    assert [each.value for each in read_all(settings, source.topic)] == [b"before", b"committed"]
    assert ends[0] == AtEnd(source, 1)  # before the commit


def test_a_whole_topic_read_names_a_partition_whose_transaction_stays_open(
    settings: KafkaSettings, source: Source, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(producer, source, b"open")
    monkeypatch.setattr("headrace.ingest.kafka.reading.bounded_reader.patience_s", lambda _: 0.0)
    records: list[Record] = []
    with pytest.raises(KafkaUnreachable, match=f"{source.topic}/0 to 2.* still open"):
        records.extend(read_all(settings, source.topic))


def test_the_offsets_of_a_time_are_past_what_an_open_transaction_hides(
    settings: KafkaSettings, source: Source, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(producer, source, b"committed")
    with monkeypatch.context() as impatient:
        impatient.setattr("headrace.ingest.kafka.reading.bounded_reader.patience_s", lambda _: 0.0)
        with pytest.raises(KafkaUnreachable, match=f"{source.topic}/0 to 2.* still open"):
            offsets_at(settings, source.topic, FAR_MS)
        assert offsets_at(settings, source.topic, 0) == {source: 0}
    producer.commit_transaction(TIMEOUT_S)
    assert offsets_at(settings, source.topic, FAR_MS)[source] >= 2


def test_the_lag_of_a_joiner_counts_an_open_transaction(
    kafka: str, producer: Producer, fresh_name: Callable[[str], str]
) -> None:
    joined = Joined.fresh(kafka, fresh_name, 1)
    assert joined.state.read().lag == 0
    write(producer, Source(joined.topics.impressions, 0), b"open")
    assert joined.state.read().lag == 1
