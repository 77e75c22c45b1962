"""Load shedding: refuses requests that would wait too long, and reads bodies within limits.

One thread computes, so admitted requests form a queue whose length is the next request's wait.
`LoadShedder` estimates that wait. It counts the queued bytes, and learns from every finished
request how long a byte takes on this machine with this model. A request that would wait longer
than `waiting_ms` gets a 503 with Retry-After at once, which costs almost nothing. Under any load,
admitted requests are therefore answered in time.

Requests that arrive during a computation are only seen after it. The longest wait is thus about
twice `waiting_ms`, never that of a backlog.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple, Protocol

from headrace.runtime.http.http_errors import RequestRefused
from headrace.serving.requests.limits import RequestLimits, too_large

_REQUEST_COST_BYTES = 2_000
"""Fixed cost of a request, in bytes of body that take as long."""
_FIRST_GUESS_S = 1e-7
"""Seconds for a byte before the first measurement: 10 MB/s."""
_NEWEST_SHARE = 0.05
"""Weight of the last request in the moving average: it spans about twenty requests."""


class LoadShedder:
    """The requests in progress, and an estimate of the time they need."""

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self.requests = 0
        """Requests that have arrived completely and are queued or computed."""
        self.reading_bytes = 0
        """Of bodies that are still arriving."""
        self._cost = 0
        self.waiting = 0
        """Requests that are queued or computed."""
        self._cost_s = _FIRST_GUESS_S

    @property
    def waiting_s(self) -> float:
        """Estimated seconds until the queue is empty."""
        return self._cost * self._cost_s

    def check(self) -> None:
        """Raise RequestRefused (503) if no further request is admitted now."""
        if self.requests >= self.limits.requests:
            expected = f"at most {self.limits.requests} requests in progress"
            raise _full(expected, f"{self.requests}")

    def arrive(self) -> None:
        """Admit a request that has arrived completely. Raises RequestRefused (503)."""
        self.check()
        self.requests += 1

    def hold(self, size_bytes: int) -> None:
        """Reserve memory for bytes of a body that is arriving. Raises RequestRefused (503)."""
        if self.reading_bytes + size_bytes > self.limits.reading_bytes:
            expected = f"at most {self.limits.reading_bytes} bytes of bodies that are arriving"
            raise _full(expected, f"{self.reading_bytes + size_bytes}")
        self.reading_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Undo `hold`."""
        self.reading_bytes -= size_bytes

    def depart(self) -> None:
        """Undo `arrive`."""
        self.requests -= 1

    def take(self, size_bytes: int) -> None:
        """Queue a body. Raises RequestRefused (503) if too much is ahead of it."""
        if self.waiting and self.waiting_s * 1000 > self.limits.waiting_ms:
            expected = f"at most {self.limits.waiting_ms} ms of queued work"
            raise _full(expected, f"{self.waiting_s * 1000:.0f} ms")
        self.waiting += 1
        self._cost += size_bytes + _REQUEST_COST_BYTES

    def done(self, size_bytes: int, busy_s: float | None) -> None:
        """Undo `take`. `busy_s`: seconds of computation, None if it failed."""
        cost = size_bytes + _REQUEST_COST_BYTES
        self.waiting -= 1
        self._cost -= cost
        if busy_s is not None:
            self._cost_s += _NEWEST_SHARE * (busy_s / cost - self._cost_s)


class BodySource(Protocol):
    """A request whose body may still be arriving."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers by name, case-insensitive."""

    def stream(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises ClientDisconnect."""


class WholeRequest(NamedTuple):
    """A request that has arrived completely."""

    headers: Mapping[str, str]
    """Headers by name, case-insensitive."""
    body: bytes


def whole_body(request: WholeRequest, limits: RequestLimits) -> bytes:
    """Return the body. Raises RequestRefused (413, 415)."""
    _check_encoding(request.headers)
    if len(request.body) > limits.body_bytes:
        raise too_large(limits)
    return request.body


async def read_body(request: BodySource, shedder: LoadShedder) -> bytes:
    """Return the whole body. Raises RequestRefused (408, 413, 415, 503), ClientDisconnect."""
    limits = shedder.limits
    _check_encoding(request.headers)
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limits.body_bytes:
        raise too_large(limits)
    parts, size, taken = [], 0, 0
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for part in request.stream():
                size += len(part)
                if size > limits.body_bytes:
                    raise too_large(limits)
                if part:
                    shedder.hold(len(part))
                    taken += len(part)
                    parts.append(part)
    except TimeoutError:
        expected = f"the whole body within {limits.body_timeout_s:g} s"
        raise RequestRefused(408, "", expected, f"{size} bytes") from None
    finally:
        shedder.release(taken)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_encoding(headers: Mapping[str, str]) -> None:
    encoding = headers.get("content-encoding")
    if encoding is not None and encoding.lower() not in ("", "identity"):
        raise RequestRefused(415, "Content-Encoding", "an uncompressed body", encoding)


def _full(expected: str, found: str) -> RequestRefused:
    return RequestRefused(503, "", expected, f"{found}: retry after Retry-After, or elsewhere")
