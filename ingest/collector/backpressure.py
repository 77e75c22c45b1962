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

    def check(self, requests: int, events: int, size_bytes: int) -> None:
        """Raise RequestRefused (429) if so much more would exceed the limits."""
        limits = self.limits
        for used, more, most, noun in (
            (self.requests, requests, limits.requests, "request"),
            (self.events, events, limits.waiting_events, "event"),
            (self.bytes, size_bytes, limits.waiting_bytes, "byte"),
        ):
            if used and used + more > most:
                expected = f"at most {counted(most, noun)} waiting for Kafka"
                found = f"{used + more}: send it again after Retry-After"
                raise RequestRefused(429, "", expected, found)


class RequestShare:
    """The share of the limits that one request holds; given back however the request ends."""

    def __init__(self, bound: MemoryBound) -> None:
        self._bound = bound
        self.requests = self.events = self.bytes = 0

    def take(self, *, requests: int = 0, events: int = 0, bytes_up_to: int = 0) -> None:
        """Reserve places, and memory beyond the bytes reserved already.

        Raises RequestRefused (429).
        """
        more_bytes = max(0, bytes_up_to - self.bytes)
        self._bound.check(requests, events, more_bytes)
        self._add(requests, events, more_bytes)

    def give_back(self) -> None:
        """Release everything."""
        self._add(-self.requests, -self.events, -self.bytes)

    def _add(self, requests: int, events: int, size_bytes: int) -> None:
        for held in (self._bound, self):
            held.requests += requests
            held.events += events
            held.bytes += size_bytes
