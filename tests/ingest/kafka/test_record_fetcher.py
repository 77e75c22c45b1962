"""Single messages are read again by their offsets, from lists and from a real broker."""

import time
from collections.abc import Callable
from contextlib import closing

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.ingest.errors import OffsetGone
from headrace.ingest.kafka.fakes import ListReader
from headrace.ingest.kafka.protocols import Committed, PartitionAssigned, Record, Source
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.reading.record_fetcher import RecordFetcher
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.transactions import KafkaTransactions, Outgoing
from tests.ingest.kafka.reader_events import poll_until

SOURCE, OTHER = Source("t", 0), Source("t", 1)


def _records(offsets: list[int], source: Source = SOURCE) -> list[Record]:
    return [Record(source, offset, 0, str(offset).encode()) for offset in offsets]


def test_messages_are_fetched_in_any_order_each_by_its_offset() -> None:
    held = {SOURCE: _records([3, 5, 6]), OTHER: _records([0, 4], OTHER)}
    fetcher = RecordFetcher(lambda: ListReader(held))
    for source, offset in [(SOURCE, 6), (SOURCE, 3), (OTHER, 4), (SOURCE, 5), (SOURCE, 5)]:
        record = fetcher.fetch(source, offset)
        assert record is not None
        assert (record.source, record.offset) == (source, offset)
    fetcher.close()


@pytest.mark.parametrize(("offset", "found"), [(2, "begins at 3"), (4, "5 as the next offset")])
def test_a_message_that_kafka_deleted_is_gone(offset: int, found: str) -> None:
    fetcher = RecordFetcher(lambda: ListReader({SOURCE: _records([3, 5])}))
    with pytest.raises(OffsetGone, match=found):
        fetcher.fetch(SOURCE, offset)
    assert fetcher.fetch(SOURCE, 5) is not None


def test_a_committed_message_is_fetched_from_a_broker_until_it_is_deleted(
    settings: KafkaSettings, topic: str, fresh_name: Callable[[str], str]
) -> None:
    source = Source(topic, 1)
    with closing(KafkaReader(settings, fresh_name("group"), [topic])) as member:
        poll_until(member, lambda happened: PartitionAssigned(source) in happened)
        transactions = KafkaTransactions(settings, fresh_name("writer"), member)
        for number in range(3):
            transactions.write([Outgoing(source, b"%d" % number)], {source: Committed(number, "")})
        transactions.close()
    written = [each for each in read_all(settings, topic) if each.source == source]
    with closing(RecordFetcher(lambda: KafkaReader(settings, None, [topic]))) as fetcher:
        for record in [*written[::-1], *written]:
            assert _fetched(fetcher, record) == record.value
        admin = AdminClient(settings.connection())
        future = admin.delete_records(
            [TopicPartition(settings.names.physical(topic), 1, written[1].offset + 1)]
        )
        [done] = future.values()
        done.result(30)
        for record in written[:2]:
            with pytest.raises(OffsetGone):
                _fetched(fetcher, record)
        assert _fetched(fetcher, written[2]) == written[2].value


def _fetched(fetcher: RecordFetcher, record: Record) -> bytes:
    deadline_s = time.monotonic() + 30
    while (found := fetcher.fetch(record.source, record.offset)) is None:
        assert time.monotonic() < deadline_s
    return found.value
