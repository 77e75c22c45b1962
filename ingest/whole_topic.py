"""A topic from its beginning to its present end: for tools, reports and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.kafka_reader import KafkaReader
from ingest.stream import AtEnd, Gained, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest.settings import KafkaSettings


def read_all(settings: KafkaSettings, topic: str) -> Iterator[Record]:
    """Yield every committed record of a topic, from its beginning to its present end.

    In order within a partition. Raises KafkaUnreachable, MissingTopic.
    """
    reader = KafkaReader(settings, None, [topic])
    try:
        sources = [h.source for h in reader.poll(0.0) if isinstance(h, Gained)]
        held = {source: reader.held(source) for source in sources}
        reading = {source for source, (first, end) in held.items() if first < end}
        reader.start({source: held[source][0] for source in reading})
        while reading:
            for happening in reader.poll(settings.connect_timeout_s):
                if isinstance(happening, Record):
                    if happening.offset < held[happening.source][1]:
                        yield happening
                    else:
                        reading.discard(happening.source)
                elif isinstance(happening, AtEnd):
                    reading.discard(happening.source)
    finally:
        reader.close()
