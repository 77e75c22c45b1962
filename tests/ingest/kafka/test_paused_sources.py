"""Pauses and resumes the partitions of a real broker."""

from typing import Any, cast

import confluent_kafka
from confluent_kafka import TopicPartition

from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.settings import KafkaSettings
from tests.ingest.kafka.reader_events import numbered, poll_until, until_end, values, write


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


class Overheard:
    """A consumer whose resumes and seeks are noted."""

    def __init__(self, consumer: confluent_kafka.Consumer) -> None:
        self._consumer = consumer
        self.calls: list[tuple[str, int, int | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.calls += [("resume", each.partition, None) for each in partitions]
        self._consumer.resume(partitions)

    def seek(self, partition: TopicPartition) -> None:
        self.calls.append(("seek", partition.partition, partition.offset))
        self._consumer.seek(partition)


def test_resumed_sources_are_sought_which_wakes_a_client_that_had_nothing_to_fetch(
    settings: KafkaSettings, topic: str, reader: KafkaReader
) -> None:
    source, other = Source(topic, 0), Source(topic, 1)
    write(settings, source, numbered(5))
    reader.poll(0.0)
    reader.start({source: 0, other: 0})
    until_end(reader, source, 5)
    reader.pause([source, other])
    write(settings, source, numbered(5, first=5))
    assert not values(reader.poll(0.1))
    overheard = Overheard(reader._consumer)
    reader._consumer = cast("Any", overheard)
    reader.resume([source, other])
    assert overheard.calls == [
        ("resume", 0, None),
        ("resume", 1, None),
        ("seek", 0, 5),
        ("seek", 1, 0),
    ]
    assert values(until_end(reader, source, 10)) == numbered(5, first=5)
