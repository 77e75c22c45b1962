"""Bounds the memory of the collector and refuses requests beyond it.

Events that are read and not yet acknowledged by Kafka are in memory. `MemoryBound` counts
their bytes before it reads them, if the length is known. A request beyond the limits gets status
429 at once. That costs next to nothing; accepting the request and timing out would cost its memory.
"""

from dataclasses import dataclass

from headrace.ingest.events.contract import LARGEST_VALUE_BYTES
from headrace.runtime.counted_nouns import counted
from headrace.runtime.http.http_errors import RequestRefused


@dataclass(frozen=True, slots=True)
class CollectorLimits:
    """Limits of one request, and of all requests together."""

    body_bytes: int = 8 << 20
    """As sent and, if compressed, as unpacked: some 10,000 events."""
    batch_events: int = 10_000
    """A batch is validated in one go, while other requests wait: some 50 ms."""
    event_bytes: int = LARGEST_VALUE_BYTES
    """An event of this size fits into a dead letter completely, so that it can be repaired."""
    requests: int = 256
    """Whole requests that wait for Kafka. One whose body is still arriving is not among them: its
    bytes count as they come, so a stalled client takes no place of another."""
    waiting_events: int = 200_000
    """Events not yet acknowledged: a second or two of Kafka's throughput."""
    waiting_bytes: int = 64 << 20
    """Bytes not yet acknowledged or being read; the process needs about three times this memory."""
    body_timeout_s: float = 30.0
    """For a complete body: a stalled client holds memory that other requests need."""


class MemoryBound:
    """The requests, events and bytes in use."""

    def __init__(self, limits: CollectorLimits) -> None:
        self.limits = limits
        self.requests = self.events = self.bytes = 0

    def check(self, size_bytes: int) -> None:
        """Raise RequestRefused (429) if a request with such a body would not be admitted now."""
        self._check_requests()
        self._check_bytes(size_bytes)

    def enter(self) -> None:
        """Admit a request that has arrived completely. Raises RequestRefused (429)."""
        self._check_requests()
        self.requests += 1

    def take_bytes(self, size_bytes: int) -> None:
        """Reserve memory for bytes that have arrived. Raises RequestRefused (429)."""
        self._check_bytes(size_bytes)
        self.bytes += size_bytes

    def _check_requests(self) -> None:
        if self.requests >= self.limits.requests:
            raise _full(
                f"at most {counted(self.limits.requests, 'request')} waiting", self.requests
            )

    def _check_bytes(self, size_bytes: int) -> None:
        if self.bytes and self.bytes + size_bytes > self.limits.waiting_bytes:
            expected = f"at most {self.limits.waiting_bytes} bytes waiting for Kafka"
            raise _full(expected, self.bytes + size_bytes)

    def take_events(self, count: int) -> None:
        """Reserve places in the queue. Raises RequestRefused (429)."""
        if self.events and self.events + count > self.limits.waiting_events:
            expected = f"at most {counted(self.limits.waiting_events, 'event')} waiting for Kafka"
            raise _full(expected, self.events + count)
        self.events += count

    def leave(self, requests: int, size_bytes: int, events: int) -> None:
        """Release what a request reserved."""
        self.requests -= requests
        self.bytes -= size_bytes
        self.events -= events


def _full(expected: str, found: int) -> RequestRefused:
    return RequestRefused(429, "", expected, f"{found}: send it again after Retry-After")
