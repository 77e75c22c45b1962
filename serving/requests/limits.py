"""Limits of one request and of all requests together."""

from dataclasses import dataclass

from headrace.runtime.http.http_errors import RequestRefused


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of requests. They bound memory and the wait of other requests."""

    body_bytes: int = 4 << 20
    """A thousand candidates of a hundred fields. A larger body is a mistake or an attack."""
    candidates: int = 5_000
    """Candidates of a request. It is computed in one piece, so this bounds the others' wait."""
    explained: int = 100
    """Explained scores of a request. A network is computed once more for each field."""
    requests: int = 1_000
    """Concurrent complete requests. A request whose body is still arriving does not count, so a
    stalled client takes no place of another."""
    reading_bytes: int = 64 << 20
    """Total of the bodies that are still arriving: bounds memory."""
    waiting_ms: int = 50
    """Queued work above which a request is refused: five times the expected latency."""
    body_timeout_s: float = 10.0
    """Time for a whole body."""
    aside_bytes: int = 128 << 10
    """A longer body is computed on a thread, so that short requests can overtake it."""


def too_large(limits: RequestLimits) -> RequestRefused:
    """Return the refusal of a body above the limit."""
    return RequestRefused(413, "", f"at most {limits.body_bytes} bytes", "more")
