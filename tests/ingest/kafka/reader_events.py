"""Writes records to a real broker, and collects what a reader returns."""

import time
from collections.abc import Callable

from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import AtEnd, ReaderEvent, Record, Source
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.settings import KafkaSettings
from tests.ingest.kafka.made_topics import DEADLINE_S


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
