"""Writes events to Kafka and waits for the acknowledgements.

One idempotent producer serves all requests. The event loop itself polls it, so acknowledgements,
which are calls into Python, need no lock, no thread and no future for each event. The events of a
request share one callback that counts them down, and one future for the last.

Events without an acknowledgement within the deadline fail. Kafka may have written them or not; the
idempotent producer only ensures that it does not write them later. After a fatal error, as
librdkafka calls it, the producer guarantees nothing. The collector then stops, and the next one
starts with a new producer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as KafkaMessage

from headrace.ingest.errors import KafkaUnreachable, StreamError
from headrace.ingest.kafka.advertised_brokers import listed_topics
from headrace.ingest.kafka.error_translation import translate, translated
from headrace.ingest.kafka.producer import producer_config

if TYPE_CHECKING:
    from headrace.ingest.collector.validation import ValidatedEvent
    from headrace.ingest.kafka.settings import KafkaSettings

log = logging.getLogger(__name__)

_POLL_S = 0.001
"""Between two polls while events wait for their acknowledgement."""
_IDLE_POLL_S = 0.25
"""Between two polls otherwise: for errors of the client."""
_EVENTS_A_TURN = 1_000
"""Events handed to the client before other requests get a turn."""
_PROBE_S = 1.0
"""Wait for an answer from an unreachable Kafka, and between two attempts."""


class KafkaClient(Protocol):
    """The methods of a Kafka producer that `Delivery` uses."""

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        *,
        on_delivery: Callable[[KafkaError | None, KafkaMessage], None],
    ) -> int:
        """Queue messages; those that cannot be queued have `_error` afterwards."""

    def poll(self, timeout: float) -> int:
        """Run the callbacks of acknowledged and failed messages."""

    def list_topics(self, *, timeout: float) -> object:
        """Ask a broker for its topics."""

    def purge(self) -> None:
        """Fail all messages that wait."""

    def flush(self, timeout: float) -> int:
        """Wait for all acknowledgements."""

    def close(self) -> bool:
        """Disconnect."""


class Failure(NamedTuple):
    """An event of a batch that Kafka did not acknowledge."""

    message: ValidatedEvent
    error: StreamError


class Delivery:
    """Delivers events to Kafka; `run` must run as a task meanwhile.

    Raises KafkaUnreachable if no broker answers at the start, NotAllowed, KafkaRefused.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        deadline_s: float,
        linger_ms: int,
        make: Callable[[dict[str, Any]], KafkaClient] = Producer,
    ) -> None:
        self._settings, self.deadline_s = settings, deadline_s
        self.failure: StreamError | None = None
        """Set once, when the producer ends."""
        self.down_since_s: float | None = None
        """Monotonic time since when no broker answers; None while no outage is known."""
        self._batches = 0
        self._wanted = asyncio.Event()
        with translated("creating a producer", settings.bootstrap):
            self._producer = make(
                {
                    **producer_config(settings),
                    "linger.ms": linger_ms,
                    "delivery.timeout.ms": int(deadline_s * 1000),
                    "delivery.report.only.error": False,
                    # `MemoryBound` bounds what waits before it is read; the client's own
                    # limits would take effect in the middle of a batch
                    "queue.buffering.max.messages": 0,
                    "queue.buffering.max.kbytes": (1 << 31) - 1,
                    "error_cb": self._on_error,
                }
            )
        listed_topics(self._producer, settings)

    @property
    def lost(self) -> bool:
        """Whether no broker has answered for longer than the deadline."""
        since = self.down_since_s
        return since is not None and time.monotonic() - since > self.deadline_s

    async def send(self, topic: str, messages: Sequence[ValidatedEvent]) -> list[Failure]:
        """Write messages; return the failed ones, once each is acknowledged or failed."""
        if not messages:
            return []
        batch = _Batch(len(messages), asyncio.get_running_loop().create_future())
        self._batches += 1
        self._wanted.set()
        try:
            for begin in range(0, len(messages), _EVENTS_A_TURN):
                if begin:
                    await asyncio.sleep(0)
                self._queue(topic, messages[begin : begin + _EVENTS_A_TURN], batch)
            await batch.done
        finally:
            self._batches -= 1
        if batch.left_out < len(messages):
            self.down_since_s = None  # something was acknowledged
        if not batch.errors:
            return []
        return self._failures(messages, batch)

    async def run(self) -> None:
        """Poll for acknowledgements and errors, until cancelled."""
        purged = False
        while True:
            self._producer.poll(0.0)
            if self.failure is not None and not purged:
                purged = True
                self._producer.purge()  # requests that wait fail now, not at the deadline
            if self._batches:
                await asyncio.sleep(_POLL_S)
                continue
            self._wanted.clear()
            try:
                async with asyncio.timeout(_IDLE_POLL_S):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def probe(self) -> None:
        """While no broker answers, try to reach one, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_PROBE_S)
            if self.down_since_s is not None and await loop.run_in_executor(None, self._answers):
                self.down_since_s = None
                log.info("Kafka answers again")

    def close(self) -> None:
        """Disconnect, once no request waits."""
        self._producer.flush(0.1 if self.failure else self.deadline_s)
        self._producer.close()

    def _queue(self, topic: str, messages: Sequence[ValidatedEvent], batch: _Batch) -> None:
        queued: list[dict[str, Any]] = [{"key": key, "value": value} for _, key, value in messages]
        topic = self._settings.names.physical(topic)
        try:
            count = self._producer.produce_batch(topic, queued, on_delivery=batch.on_delivery)
        except KafkaException as error:
            for record in queued:
                batch.take(error.args[0], record["value"])
            return
        if count < len(queued):
            for record in queued:
                if "_error" in record:
                    batch.take(record["_error"], record["value"])

    def _failures(self, messages: Sequence[ValidatedEvent], batch: _Batch) -> list[Failure]:
        failures = []
        for message in messages:
            # equal messages are the same event: any of them may take the error
            errors = batch.errors.get(message.value)
            if errors:
                failures.append(Failure(message, self._translated(errors.pop())))
        return failures

    def _translated(self, error: KafkaError) -> StreamError:
        return self.failure or translate(error, "writing", self._settings.bootstrap)

    def _answers(self) -> bool:
        try:
            self._producer.list_topics(timeout=_PROBE_S)
        except KafkaException:
            return False
        return True

    def _on_error(self, error: KafkaError) -> None:
        ours = translate(error, "writing", self._settings.bootstrap)
        if error.fatal():
            if self.failure is None:
                log.error("the producer ended: %s", ours)
                self.failure = ours
            return
        log.warning("%s", ours)
        all_down = error.code() == KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
        if all_down and isinstance(ours, KafkaUnreachable) and self.down_since_s is None:
            self.down_since_s = time.monotonic()


class _Batch:
    """The events of one request that wait for their acknowledgement."""

    def __init__(self, count: int, done: asyncio.Future[None]) -> None:
        self.done = done
        self.errors: dict[bytes, list[KafkaError]] = {}
        self.left_out = 0
        self._left = count

    def on_delivery(self, error: KafkaError | None, message: KafkaMessage) -> None:
        """Count an event that was acknowledged or failed."""
        if error is not None:
            self.take(error, message.value() or b"")
        else:
            self._count()

    def take(self, error: KafkaError, value: bytes) -> None:
        """Count an event that failed."""
        self.errors.setdefault(value, []).append(error)
        self.left_out += 1
        self._count()

    def _count(self) -> None:
        self._left -= 1
        if not self._left and not self.done.done():  # else the request was cancelled
            self.done.set_result(None)
