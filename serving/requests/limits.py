"""TODO."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.ingest.http import RequestRefused


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request may ask for, and all of them together."""

    body_bytes: int = 4 << 20
    """A thousand candidates of a hundred fields; more is a mistake or an attack."""
    candidates: int = 5_000
    """A request is answered in one piece, and the others wait: this bounds the wait."""
    requests: int = 1_000
    """Under way at a time, those that still send their bodies included: bounds memory."""
    waiting_ms: int = 50
    """Work that may be ahead of a request when it is taken; five times what it should take."""
    body_timeout_s: float = 10.0
    """For all of a body: a client that stalls holds room that others need."""
    aside_bytes: int = 128 << 10
    """A longer body is computed on a thread beside the event loop, so that short ones pass it."""


def too_large(limits: RequestLimits) -> RequestRefused:
    """Return the refusal of a body that is too long."""
    return RequestRefused(413, "", f"at most {limits.body_bytes} bytes", "more")
