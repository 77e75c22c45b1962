"""Tests that the Kafka fakes behave as their protocols require."""

from inspect import signature

import pytest

from headrace.ingest.kafka.fakes import ListReader, ListTransactions, ListWriter
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import (
    AtEnd,
    Committed,
    PartitionAssigned,
    PartitionRevoked,
    Reader,
    Record,
    Source,
    Writer,
)
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.transactions import KafkaTransactions, Outgoing, Transactions

SOURCE, OTHER = Source("t", 0), Source("t", 1)


def record(offset: int, source: Source = SOURCE) -> Record:
    return Record(source, offset, 0, str(offset).encode())


@pytest.mark.parametrize(
    ("protocol", "fake", "real"),
    [
        (Reader, ListReader, KafkaReader),
        (Writer, ListWriter, KafkaWriter),
        (Transactions, ListTransactions, KafkaTransactions),
    ],
    ids=lambda each: each.__name__,
)
def test_a_kafka_fake_has_the_methods_of_the_real_class_with_the_same_parameters(
    protocol: type, fake: type, real: type
) -> None:
    names = [name for name, each in vars(protocol).items() if name[0] != "_" and callable(each)]
    assert names
    for name in names:
        of_fake, of_real = (signature(getattr(each, name)).parameters for each in (fake, real))
        assert list(of_fake) == list(of_real), name


def test_a_list_reader_delivers_nothing_before_start_and_then_everything_in_order() -> None:
    reader = ListReader({SOURCE: [record(0), record(2), record(5)]}, largest_poll=2)
    assert reader.poll(0.0) == [PartitionAssigned(SOURCE)]
    assert reader.poll(0.0) == []
    reader.start({SOURCE: 1})
    assert reader.poll(0.0) == [record(2), record(5), AtEnd(SOURCE, 6)]
    assert reader.poll(0.0) == []
    added = reader.append(SOURCE, b"6")
    assert reader.poll(0.0) == [added, AtEnd(SOURCE, 7)]
    reader.start({SOURCE: 0})
    assert reader.poll(0.0) == [record(0), record(2)]


def test_a_paused_source_of_a_list_reader_is_silent_until_resumed() -> None:
    reader = ListReader({SOURCE: [record(0)], OTHER: [record(0, OTHER)]})
    reader.poll(0.0)
    reader.start({SOURCE: 0, OTHER: 0})
    reader.pause([SOURCE])
    assert reader.poll(0.0) == [record(0, OTHER), AtEnd(OTHER, 1)]
    reader.resume([SOURCE])
    assert reader.poll(0.0) == [record(0), AtEnd(SOURCE, 1)]


def test_a_revoked_source_of_a_list_reader_is_silent_until_assigned_and_started() -> None:
    reader = ListReader({SOURCE: [record(0)]})
    reader.poll(0.0)
    reader.start({SOURCE: 0})
    reader.lose(SOURCE)
    assert reader.poll(0.0) == [PartitionRevoked(SOURCE)]
    reader.start({SOURCE: 0})
    assert reader.poll(0.0) == []
    reader.gain(SOURCE)
    assert reader.poll(0.0) == [PartitionAssigned(SOURCE)]
    reader.start({SOURCE: 0})
    assert reader.poll(0.0) == [record(0), AtEnd(SOURCE, 1)]


def test_a_list_transaction_is_written_completely_or_not_at_all() -> None:
    transactions = ListTransactions()
    transactions.failures = [RuntimeError("first")]  # type: ignore[list-item]
    messages, offsets = [Outgoing(SOURCE, b"v")], {SOURCE: Committed(1, "m")}
    for _ in range(2):
        try:
            transactions.write(messages, offsets)
        except RuntimeError:
            assert transactions.written == []
            assert transactions.committed([SOURCE]) == {}
    assert transactions.written == messages
    assert transactions.committed([SOURCE, OTHER]) == offsets
