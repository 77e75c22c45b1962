"""A Kafka producer in memory, for tests of the collector.

Acknowledgements come when it is polled, as with the real producer. It fails on demand: values that
are never acknowledged, an outage, or a fatal error of the producer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import ClusterMetadata  # type: ignore[attr-defined]

Called = Callable[[KafkaError | None, Message], None]


class ProducedMessage(NamedTuple):
    """A message that was acknowledged."""

    topic: str
    key: bytes
    value: bytes


class FakeProducer:
    """A producer that appends to a list."""

    def __init__(self) -> None:
        self.written: list[ProducedMessage] = []
        self.config: dict[str, Any] = {}
        self.failing: dict[bytes, KafkaError] = {}
        """Errors by value: these values are not written."""
        self.refusing: set[bytes] = set()
        """Values that cannot be queued."""
        self.holding = False
        """While True, nothing is acknowledged."""
        self.down = False
        self.purged = self.closed = False
        self._queued: list[tuple[ProducedMessage, Called]] = []
        self._errors: list[KafkaError] = []

    def make(self, config: dict[str, Any]) -> FakeProducer:
        """Take a configuration, as the producer's class does."""
        self.config = config
        return self

    def say(self, error: KafkaError) -> None:
        """Report an error of the client at the next poll."""
        self._errors.append(error)

    def produce_batch(
        self, topic: str, messages: list[dict[str, Any]], *, on_delivery: Called
    ) -> int:
        """Queue messages."""
        queued = 0
        for message in messages:
            if message["value"] in self.refusing:
                message["_error"] = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
            else:
                self._queued.append((ProducedMessage(topic, **message), on_delivery))
                queued += 1
        return queued

    def poll(self, timeout: float) -> int:
        """Run the callbacks."""
        del timeout
        errors, self._errors = self._errors, []
        for error in errors:
            self.config["error_cb"](error)
        if self.holding and not self.purged:
            return 0
        queued, self._queued = self._queued, []
        for message, on_delivery in queued:
            failure = self.failing.get(message.value)
            if self.purged:
                failure = KafkaError(KafkaError._PURGE_QUEUE)
            if failure is None:
                self.written.append(message)
            on_delivery(failure, cast("Message", _Report(message)))
        return len(queued)

    def list_topics(self, *, timeout: float) -> object:
        """Answer, or fail while `down`."""
        del timeout
        if self.down:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return ClusterMetadata()

    def purge(self) -> None:
        """Fail all messages that wait, at the next poll."""
        self.purged = True

    def flush(self, timeout: float) -> int:
        """Acknowledge all messages."""
        return self.poll(timeout)

    def close(self) -> bool:
        """Disconnect."""
        self.closed = True
        return True


class _Report:
    """The message of a delivery report."""

    def __init__(self, message: ProducedMessage) -> None:
        self._message = message

    def value(self) -> bytes:
        return self._message.value
