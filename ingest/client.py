"""A client of the collector, for producers in Python.

    with CollectorClient("http://collector:8090", token) as client:
        client.impression({"impression_id": shown, "timestamp_ms": now_ms, "article_id": "a1"})
        client.click({"impression_id": shown, "timestamp_ms": now_ms})

Events wait in a bounded queue, and one thread sends them in batches. If the collector is overloaded
or unreachable, the client sends again, after the time in Retry-After and ever longer. Events that
the collector refuses for good go to `refused`. `close` returns when every event is acknowledged or
refused, or raises with the number of the others. Sending again is safe: the joiner drops a second
impression of the same id, and a second click.

A producer with a Kafka client needs no collector. It must choose partitions as all others do, or a
click does not meet its impression. `ingest.kafka.KafkaWriter` does so (`send(Source("impressions",
BY_KEY), event, impression_id)`). The key is the request id instead if clicks have it, too. Any
librdkafka with `partitioner=murmur2_random`, `acks=all`, `enable.idempotence=true` chooses the same
partitions, and any Java client with its defaults. Events are JSON. To send events in Avro or
Protobuf with a schema registry, decode them on the way: with a Kafka Connect
sink, or a loop over confluent-kafka's `AvroDeserializer` that writes with `KafkaWriter`. The joiner
does not decode them, because a registry that is down would stop it, and its input must stay
readable for years without one.
"""

from __future__ import annotations

import gzip
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import msgspec
import orjson
import urllib3

from headrace.runtime.counted_nouns import counted
from headrace.runtime.undecodable import UNDECODABLE

log = logging.getLogger(__name__)

IMPRESSIONS, CLICKS = "/v1/impressions", "/v1/clicks"

_BATCH_BYTES = 2 << 20
"""Most bytes of a body before compression: well within the collector's limit."""
_AGAIN = "not_acknowledged"
"""The only reason of a refused event after which it should be sent again."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Batch sizes and timeouts of a client."""

    batch_events: int = 500
    """Most events in one request."""
    linger_ms: int = 20
    """Time that an event waits for others to share a request."""
    queue_events: int = 50_000
    """Most events without an acknowledgement. At this number, `impression` and `click` block."""
    timeout_s: float = 30.0
    """Time to wait for an answer: longer than the collector's deadline, so that an answer comes."""
    first_wait_s: float = 0.1
    """Wait before a request is sent again. It doubles each time, with jitter."""
    longest_wait_s: float = 10.0


class UndeliverableEvent(NamedTuple):
    """An event that the collector refuses for good, and why."""

    event: bytes
    """The bytes that were sent."""
    reason: str
    field: str
    expected: str
    found: str


class NotDelivered(Exception):
    """The client was closed before all events were acknowledged."""

    def __init__(self, events: int, why: str) -> None:
        super().__init__(f"expected every event to be acknowledged, got {events} not: {why}")
        self.events = events


class CollectorClient:
    """Sends events to a collector; thread-safe.

    The sending thread calls `refused` with each event that the collector refuses for good; without
    `refused` it logs them. Impressions keep their order, and so do clicks. One request is under way
    at a time; a process that needs more throughput uses several clients.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        settings: ClientSettings | None = None,
        refused: Callable[[UndeliverableEvent], None] | None = None,
    ) -> None:
        self._settings = settings or ClientSettings()
        self._requests = _Requests(url.rstrip("/"), token, self._settings, refused or _log_refused)
        self._changed = threading.Condition()
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._unacknowledged = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="headrace-client", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        """Return address and state, without the token."""
        waiting = f"{counted(self._unacknowledged, 'event')} not yet acknowledged"
        return f"<CollectorClient {self._requests.url}: {'closed, ' * self._closed}{waiting}>"

    def impression(self, event: Mapping[str, object]) -> None:
        """Queue an impression, waiting while the queue is full."""
        self._put(IMPRESSIONS, event)

    def click(self, event: Mapping[str, object]) -> None:
        """Queue a click, waiting while the queue is full."""
        self._put(CLICKS, event)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every event so far is acknowledged or refused; None: without a limit.

        Raises NotDelivered if it takes longer; the events keep waiting.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._unacknowledged, timeout_s):
                raise NotDelivered(self._unacknowledged, self._requests.trouble)

    def close(self, timeout_s: float | None = 30.0) -> None:
        """Send the waiting events, then disconnect.

        Raises NotDelivered if that takes longer; those events may have arrived, or not.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        try:
            self.flush(timeout_s)
        finally:
            self._requests.give_up.set()
        self._thread.join()
        self._requests.close()

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _put(self, path: str, event: Mapping[str, object]) -> None:
        value = orjson.dumps(event)
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._unacknowledged < self._settings.queue_events
            )
            if self._closed:
                raise RuntimeError("expected an open client, got a closed one")
            self._waiting.append((path, value))
            self._unacknowledged += 1
            if len(self._waiting) in (1, self._settings.batch_events):
                self._changed.notify_all()

    def _run(self) -> None:
        while batch := self._next_batch():
            for path in (IMPRESSIONS, CLICKS):
                events = [value for at, value in batch if at == path]
                if events and not self._requests.deliver(path, events):
                    return  # the client was closed meanwhile
                with self._changed:
                    self._unacknowledged -= len(events)
                    self._changed.notify_all()

    def _next_batch(self) -> list[tuple[str, bytes]]:
        """Return events to send together; empty once the client is closed and all are sent."""
        settings = self._settings
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting)
            self._changed.wait_for(
                lambda: self._closed or len(self._waiting) >= settings.batch_events,
                settings.linger_ms / 1000,
            )
            batch: list[tuple[str, bytes]] = []
            size_bytes = 0
            while self._waiting and len(batch) < settings.batch_events:
                size_bytes += len(self._waiting[0][1])
                if batch and size_bytes > _BATCH_BYTES:
                    break
                batch.append(self._waiting.popleft())
            return batch


class _Requests:
    """Sends batches to the collector, repeating each until all its events are settled."""

    def __init__(
        self,
        url: str,
        token: str,
        settings: ClientSettings,
        refused: Callable[[UndeliverableEvent], None],
    ) -> None:
        self.url, self._refused = url, refused
        self._headers = {"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._pool = urllib3.PoolManager(retries=False, timeout=settings.timeout_s)
        self._settings = settings
        self.give_up = threading.Event()
        self.trouble = "no answer yet"

    def deliver(self, path: str, events: list[bytes]) -> bool:
        """Send events until each is acknowledged or refused; False if closed before."""
        backing_off_s = self._settings.first_wait_s
        while events := self._send(path, events):
            jitter_s = random.uniform(0.0, backing_off_s)  # noqa: S311
            if self.give_up.wait(self._retry_after_s + jitter_s):
                return False
            backing_off_s = min(2.0 * backing_off_s, self._settings.longest_wait_s)
        return True

    def close(self) -> None:
        """Disconnect."""
        self._pool.clear()

    def _send(self, path: str, events: list[bytes]) -> list[bytes]:
        """Send events once; return those to send again."""
        began_s = time.monotonic()
        self._retry_after_s = 0.0
        body = gzip.compress(b"\n".join(events), 1)
        try:
            response = self._pool.request("POST", self.url + path, body, headers=self._headers)
        except urllib3.exceptions.HTTPError as error:
            self._note(f"{type(error).__name__}: {error}")
            return events
        retry_after = response.headers.get("Retry-After", "")
        if retry_after.isdigit():
            self._retry_after_s = float(retry_after)
        try:
            answer = _decode(response.data)
        except UNDECODABLE:
            answer = _Answer()  # from a proxy before the collector
        if response.status == 200 or answer.refused:
            return self._left(events, answer.refused)
        why = answer.error or _Refused(expected="an answer of a collector", found="another")
        took_s = time.monotonic() - began_s
        self._note(
            f"{response.status} after {took_s:.1f} s: expected {why.expected}, got {why.found}"
        )
        if response.status not in (400, 413):
            return events  # try again: overloaded, or an operator must correct token or address
        if len(events) == 1:
            self._report(events[0], str(response.status), why)
            return []
        half = len(events) // 2
        return self._send(path, events[:half]) + self._send(path, events[half:])

    def _left(self, events: list[bytes], refused: list[_Refused]) -> list[bytes]:
        left = []
        for refusal in refused:
            event = events[refusal.index]
            if refusal.reason == _AGAIN:
                left.append(event)
                self.trouble = refusal.found
            else:
                self._report(event, refusal.reason, refusal)
        return left

    def _report(self, event: bytes, reason: str, why: _Refused) -> None:
        try:
            self._refused(UndeliverableEvent(event, reason, why.field, why.expected, why.found))
        except Exception:
            log.exception("the callback for refused events failed")  # the others must be sent

    def _note(self, trouble: str) -> None:
        self.trouble = f"{self.url}: {trouble}"
        log.warning("not sent yet: %s", self.trouble)


class _Refused(msgspec.Struct):
    """A refused event; without `index` and `reason`, the refusal of a whole request."""

    index: int = 0
    reason: str = ""
    field: str = ""
    expected: str = ""
    found: str = ""


class _Answer(msgspec.Struct):
    refused: list[_Refused] = []
    error: _Refused | None = None


_decode = msgspec.json.Decoder(_Answer).decode


def _log_refused(event: UndeliverableEvent) -> None:
    log.error(
        "refused, %s: expected %s, got %s: %.200r",
        event.field or "the event",
        event.expected,
        event.found,
        event.event,
    )
