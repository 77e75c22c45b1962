"""How much the collector takes at a time, and what it says when it has enough.

Whatever was read and is not yet acknowledged by Kafka lies in memory: `AdmissionControl` counts it,
before it is read where the length is known. A request that would not fit is told to come back later
(429), which costs next to nothing, instead of being taken and timing out.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.ingest.events import LARGEST_VALUE_BYTES
from headrace.ingest.http import RequestRefused


@dataclass(frozen=True, slots=True)
class CollectorLimits:
    """What one request may bring, and all of them together."""

    body_bytes: int = 8 << 20
    """As it comes and, if it is compressed, as it is unpacked: some 10,000 events."""
    batch_events: int = 10_000
    """A batch is checked in one go while others wait: some 50 ms."""
    event_bytes: int = LARGEST_VALUE_BYTES
    """Should it become a dead letter after all, all of it is in there to be repaired."""
    requests: int = 256
    """That wait for their bodies or for Kafka."""
    waiting_events: int = 200_000
    """Not yet acknowledged: a second or two of what Kafka takes."""
    waiting_bytes: int = 64 << 20
    """The same, and bodies being read; about three times this is the most memory taken."""
    body_timeout_s: float = 30.0
    """For all of a body: a client that stalls holds room that others need."""


class AdmissionControl:
    """What is taken of the limits now."""

    def __init__(self, limits: CollectorLimits) -> None:
        self.limits = limits
        self.requests = self.events = self.bytes = 0

    def enter(self, size_bytes: int) -> None:
        """Let a request in that brings so many bytes. Raises RequestRefused (429)."""
        if self.requests >= self.limits.requests:
            raise _full(f"at most {self.limits.requests} requests waiting", self.requests)
        self.take_bytes(size_bytes)
        self.requests += 1

    def take_bytes(self, size_bytes: int) -> None:
        """Take memory. Raises RequestRefused (429)."""
        if self.bytes and self.bytes + size_bytes > self.limits.waiting_bytes:
            expected = f"at most {self.limits.waiting_bytes} bytes waiting for Kafka"
            raise _full(expected, self.bytes + size_bytes)
        self.bytes += size_bytes

    def take_events(self, count: int) -> None:
        """Take places in the queue. Raises RequestRefused (429)."""
        if self.events and self.events + count > self.limits.waiting_events:
            expected = f"at most {self.limits.waiting_events} events waiting for Kafka"
            raise _full(expected, self.events + count)
        self.events += count

    def leave(self, size_bytes: int, events: int) -> None:
        """Give back what a request took."""
        self.requests -= 1
        self.bytes -= size_bytes
        self.events -= events


def _full(expected: str, found: int) -> RequestRefused:
    return RequestRefused(429, "", expected, f"{found}: send it again after Retry-After")
