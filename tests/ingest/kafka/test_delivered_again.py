"""Tests that a reader drops what the client delivers again, or out of order, and reads on."""

from contextlib import closing

from confluent_kafka import KafkaError, Message

from headrace.ingest.kafka.protocols import AtEnd, Source
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.settings import KafkaSettings
from tests.ingest.kafka.mock_broker import mock_broker
from tests.ingest.kafka.reader_events import numbered, until_end, values, write

SOURCE = Source("topic", 0)
AGAIN = (
    [1, 2, 3],  # delivered before
    [2, 4, 3],  # out of order
)


def message(offset: int, error: KafkaError | None = None) -> Message:
    return Message("topic", 0, offset, value=b"x", error=error, timestamp=(1, 1), leader_epoch=0)


def test_a_reader_drops_records_delivered_before_with_the_end_behind_them_and_reads_on() -> None:
    with mock_broker() as broker:
        broker.create("topic", 1)
        settings = KafkaSettings(broker.bootstrap)
        write(settings, SOURCE, numbered(5))
        with closing(KafkaReader(settings, None, ["topic"])) as reader:
            reader.poll(0.0)
            for offsets in AGAIN:
                reader.start({SOURCE: 2})
                end = message(5, KafkaError(KafkaError._PARTITION_EOF))
                assert reader._events([*map(message, offsets), end]) == []
                found = until_end(reader, SOURCE, 5)
                assert values(found) == numbered(3, first=2)
                assert found[-1] == AtEnd(SOURCE, 5)
