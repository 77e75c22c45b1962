"""Sends events to a Kafka cluster without a pause, and reads back the examples joined from them.

The events have the present time. `JoinedExamples` therefore shows, for each partition, how old the
newest committed example is, and at the end whether every event became exactly one example.
"""

import contextlib
import json
import threading
import time
from collections import Counter
from typing import Self

from headrace.ingest.examples.batch import Kind, unpack
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import PartitionAssigned, Record, Source
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics

_BETWEEN_EVENTS_S = 0.004
"""Some 250 impressions a second: a transaction is under way most of the time."""
_CLICK_EACH = 4


class EventStream:
    """A context manager that sends impressions, and a click for every fourth one."""

    def __init__(self, kafka: KafkaSettings, topics: EventTopics, partitions: int) -> None:
        self._writer, self._topics, self._partitions = KafkaWriter(kafka), topics, partitions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send, name="events")
        self.error: Exception | None = None
        self.expected: Counter[tuple[Kind, str]] = Counter()
        """The examples of everything sent so far."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()
        with contextlib.suppress(Exception):
            self._writer.close()

    def finish(self) -> None:
        """Send no more; return when Kafka has every event."""
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error
        self._writer.flush()

    def _send(self) -> None:
        try:
            while not self._stop.wait(_BETWEEN_EVENTS_S):
                self._send_one(self.expected.total())
        except Exception as error:  # noqa: BLE001 (finish raises it)
            self.error = error

    def _send_one(self, number: int) -> None:
        name, now_ms = f"i{number}", int(time.time() * 1000)
        event = {"impression_id": name, "timestamp_ms": now_ms}
        partition = number % self._partitions
        shown = {**event, "request_id": name, "user": f"u{number % 97}", "item": f"a{number % 31}"}
        self._writer.send(Source(self._topics.impressions, partition), json.dumps(shown).encode())
        self.expected[Kind.SHOWN, name] += 1
        if number % _CLICK_EACH == 0:
            click = {**event, "timestamp_ms": now_ms + 1}
            self._writer.send(Source(self._topics.clicks, partition), json.dumps(click).encode())
            self.expected[Kind.CLICKED, name] += 1


class JoinedExamples:
    """A context manager that reads the committed examples as they come."""

    def __init__(self, kafka: KafkaSettings, topic: str, fields: FieldSet, partitions: int) -> None:
        self._reader = KafkaReader(kafka, None, [topic])
        self._fields = fields
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="examples")
        self.error: Exception | None = None
        self.found: Counter[tuple[Kind, str]] = Counter()
        self._newest_ms = dict.fromkeys(range(partitions), 0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._reader.close()

    def all_newer_than(self, event_ms: int) -> bool:
        """Whether every partition has an example of an event after this time."""
        assert self.error is None, self.error
        return all(newest_ms > event_ms for newest_ms in self._newest_ms.values())

    def _read(self) -> None:
        try:
            while not self._stop.is_set():
                for event in self._reader.poll(0.1):
                    if isinstance(event, PartitionAssigned):
                        self._reader.start({event.source: 0})
                    elif isinstance(event, Record):
                        self._take(event)
        except Exception as error:  # noqa: BLE001 (all_newer_than raises it)
            self.error = error

    def _take(self, record: Record) -> None:
        batch = unpack(record.value, self._fields)
        kinds = [Kind(kind) for kind in batch.kinds.tolist()]
        self.found.update(zip(kinds, batch.impression_ids.to_pylist(), strict=True))
        if len(batch):  # the first of a partition only has a checkpoint
            self._newest_ms[record.source.partition] = int(batch.event_ms.max())
