"""`Writer` on Kafka: an idempotent producer that reports undelivered messages.

A message that is not delivered within `lost_timeout_s` is an error of the whole writer. The next
`send` or `flush` raises it, and so does each one after. So no message is dropped silently, and no
caller continues as if it had been written.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.ingest.errors import StreamError
from headrace.ingest.kafka.advertised_brokers import listed_topics
from headrace.ingest.kafka.error_translation import translate, translated, unreachable
from headrace.ingest.kafka.topics import LARGEST_MESSAGE_BYTES
from headrace.runtime.counted_nouns import counted

if TYPE_CHECKING:
    from headrace.ingest.kafka.protocols import Source
    from headrace.ingest.kafka.settings import KafkaSettings

BY_KEY = -1
"""Partition of a target: Kafka's murmur2 of the key chooses it; without a key it is random."""

_QUEUE_MESSAGES = 200_000
_QUEUE_KBYTES = 64 << 10
"""Most messages and kilobytes that wait in memory; `send` blocks beyond."""

_LISTEN_S = 0.1
"""Interval at which `send` polls the client, whose reports would pile up during an outage."""


def producer_config(settings: KafkaSettings) -> dict[str, object]:
    """Return the configuration that every producer of headrace shares."""
    return {
        **settings.connection(),
        "enable.idempotence": True,
        "acks": "all",
        "compression.type": "lz4",
        # as Kafka's Java clients do, so that a click meets its impression whatever its producer
        "partitioner": "murmur2_random",
        "message.max.bytes": LARGEST_MESSAGE_BYTES,
        "queue.buffering.max.messages": _QUEUE_MESSAGES,
        "queue.buffering.max.kbytes": _QUEUE_KBYTES,
        "delivery.report.only.error": True,  # a call into Python for each message costs more
    }


def read_new_partitions(
    producer: Producer, target: Source, error: KafkaException, settings: KafkaSettings
) -> None:
    """Make a client find a partition that was added to its topic; any other error is raised.

    A client reads the partitions of a topic every five minutes only.
    """
    if error.args[0].code() == KafkaError._UNKNOWN_PARTITION:  # noqa: SLF001
        topic = settings.names.physical(target.topic)
        found = producer.list_topics(topic, settings.connect_timeout_s)
        if target.partition in found.topics[topic].partitions:
            return
    raise error


class KafkaWriter:
    """Writes messages in order within each partition, exactly once.

    Not thread-safe. Raises KafkaUnreachable if no broker answers.
    """

    def __init__(self, settings: KafkaSettings, linger_ms: int = 2) -> None:
        self._settings = settings
        self._failure: StreamError | None = None
        self._heard_s = 0.0
        with translated("creating a producer", settings.bootstrap):
            self._producer = Producer(
                {
                    **producer_config(settings),
                    "linger.ms": linger_ms,
                    "delivery.timeout.ms": int(settings.lost_timeout_s * 1000),
                    "on_delivery": self._on_delivery,
                    "error_cb": self._on_error,
                }
            )
        try:
            listed_topics(self._producer, settings)
        except BaseException:
            self._producer.close()  # its callbacks keep this writer, and its threads would go on
            raise

    def send(self, target: Source, value: bytes, key: bytes | None = None) -> None:
        """Queue a message, waiting while the queue is full; partition `BY_KEY`: by its key.

        Raises WriteRefused, or the error of an earlier message.
        """
        topic = self._settings.names.physical(target.topic)
        while True:
            try:
                self._producer.produce(topic, value, key, target.partition)
            except KafkaException as error:
                read_new_partitions(self._producer, target, error, self._settings)
            except BufferError:
                self._producer.poll(0.05)  # the queue empties as Kafka acknowledges
                self._raise_failure()
            else:
                break
        if time.monotonic() > self._heard_s + _LISTEN_S:
            self._producer.poll(0.0)
            self._heard_s = time.monotonic()
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def flush(self) -> None:
        """Wait until Kafka has every message. Raises KafkaUnreachable or WriteRefused."""
        # each message ends delivered or failed within its delivery timeout
        self._producer.flush(self._settings.lost_timeout_s + 1.0)
        self._raise_failure()
        if len(self._producer):
            doing = (
                f"{counted(len(self._producer), 'message was', 'messages were')} not acknowledged"
            )
            raise unreachable(self._settings.bootstrap, doing)

    def close(self) -> None:
        """Flush and disconnect."""
        try:
            self.flush()
        finally:
            self._producer.close()

    def _raise_failure(self) -> None:
        self._producer.poll(0.0)
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failure is None:
            doing = f"writing to {message.topic()}/{message.partition()}"
            self._failure = translate(error, doing, self._settings.bootstrap)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal() and self._failure is None:
            self._failure = translate(error, "writing", self._settings.bootstrap)
