"""How much a server takes at a time, and what it says when it has enough.

One thread computes, so what is taken and not yet answered is a queue, and its length is the time
that the next request would wait. `LoadShedder` knows how long: it counts the bytes that wait and
learns, from each request it has seen through, how long a byte takes on this machine with this
model. Who would wait for longer than `waiting_ms` is told at once to come back (503, Retry-After),
which costs next to nothing: so under any load those who are answered are answered in time.

Requests that arrive while one is computed are not seen until it is done; so the longest wait is
about twice `waiting_ms`, and never that of a backlog.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.ingest.http import RequestRefused
from headrace.serving.requests import RequestLimits, too_large

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

_REQUEST_COST_BYTES = 2_000
"""What a request costs whatever is in it, as bytes of body that would take as long."""
_FIRST_GUESS_S = 1e-7
"""For a byte, before anything was measured: 10 MB/s."""
_NEWEST_SHARE = 0.05
"""Weight of the last request in the mean: some twenty requests are remembered."""


class LoadShedder:
    """What is under way now, and how long it will take."""

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self.requests = 0
        """Bodies being read, waiting or computed."""
        self._cost = 0
        self._waiting = 0
        self._cost_s = _FIRST_GUESS_S

    @property
    def waiting_s(self) -> float:
        """How long what is taken will take."""
        return self._cost * self._cost_s

    @property
    def waiting(self) -> int:
        """How many were taken and have no answer yet."""
        return self._waiting

    def arrive(self) -> None:
        """Let a request in to read its body. Raises RequestRefused (503)."""
        if self.requests >= self.limits.requests:
            expected = f"at most {self.limits.requests} requests under way"
            raise _full(expected, f"{self.requests}")
        self.requests += 1

    def depart(self) -> None:
        """Take `arrive` back."""
        self.requests -= 1

    def take(self, size_bytes: int) -> None:
        """Queue a body. Raises RequestRefused (503) if too much is ahead of it."""
        if self._waiting and self.waiting_s * 1000 > self.limits.waiting_ms:
            expected = f"at most {self.limits.waiting_ms} ms of work ahead of a request"
            raise _full(expected, f"{self.waiting_s * 1000:.0f} ms")
        self._waiting += 1
        self._cost += size_bytes + _REQUEST_COST_BYTES

    def done(self, size_bytes: int, busy_s: float | None) -> None:
        """Take `take` back; `busy_s` is how long it took, None if it failed."""
        cost = size_bytes + _REQUEST_COST_BYTES
        self._waiting -= 1
        self._cost -= cost
        if busy_s is not None:
            self._cost_s += _NEWEST_SHARE * (busy_s / cost - self._cost_s)


class BodySource(Protocol):
    """A request whose body may yet have to come."""

    @property
    def headers(self) -> Mapping[str, str]:
        """By name, whatever its case."""

    def stream(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes. Raises ClientDisconnect."""


class WholeRequest(NamedTuple):
    """A request that is all there."""

    headers: Mapping[str, str]
    """By name, whatever its case."""
    body: bytes


def whole_body(request: WholeRequest, limits: RequestLimits) -> bytes:
    """Return the body. Raises RequestRefused (413, 415)."""
    _check_encoding(request.headers)
    if len(request.body) > limits.body_bytes:
        raise too_large(limits)
    return request.body


async def read_body(request: BodySource | WholeRequest, limits: RequestLimits) -> bytes:
    """Return the whole body. Raises RequestRefused (408, 413, 415), ClientDisconnect."""
    if isinstance(request, WholeRequest):
        return whole_body(request, limits)
    _check_encoding(request.headers)
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for part in request.stream():
                size += len(part)
                if size > limits.body_bytes:
                    raise too_large(limits)
                if part:
                    parts.append(part)
    except TimeoutError:
        expected = f"the whole body within {limits.body_timeout_s:g} s"
        raise RequestRefused(408, "", expected, f"{size} bytes of it") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_encoding(headers: Mapping[str, str]) -> None:
    encoding = headers.get("content-encoding")
    if encoding is not None and encoding.lower() not in ("", "identity"):
        raise RequestRefused(415, "Content-Encoding", "a body that is not packed", encoding)


def _full(expected: str, found: str) -> RequestRefused:
    return RequestRefused(
        503, "", expected, f"{found}: ask again after Retry-After, or another server"
    )
