"""Answers of the collector: one shape for all of them.

    {"accepted": 998, "refused": [{"index": 3, "reason": "bad_time", "field": "timestamp_ms",
     "expected": "a whole number of milliseconds", "found": "\\"yesterday\\""}, ...]}

A batch is validated event by event: invalid events are refused by index and the others accepted, so
that one broken producer does not block the rest of its batch. The status is that of the worst
event. A request that is refused as a whole accepts no event and has `error` instead.
"""

from collections.abc import Sequence

import msgspec

from headrace.runtime.http.http_errors import RequestRefusal

TOO_LARGE = "too_large"
NOT_ACKNOWLEDGED = "not_acknowledged"
REFUSED_BY_KAFKA = "refused_by_kafka"

RETRY_AFTER_S = {429: 1, 503: 2}
"""A queue empties fast; a broker takes longer to come back."""


class EventRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """One event that was not accepted."""

    index: int
    """Index in the batch, from 0; blank lines do not count."""
    reason: str
    """Code of the reason: that of a dead letter, `too_large`, `not_acknowledged` (Kafka may have
    the event or not: send it again), or `refused_by_kafka` (do not send it again)."""
    field: str
    """The invalid field; empty if the event itself is invalid."""
    expected: str
    found: str


class CollectorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request."""

    accepted: int = 0
    """Events that Kafka has persisted."""
    refused: list[EventRefusal] = []
    error: RequestRefusal | msgspec.UnsetType = msgspec.UNSET
    """Set if the request was refused as a whole."""


def status_of(refused: Sequence[EventRefusal]) -> int:
    """Return the HTTP status: 503 if some event should be sent again, else 413 or 422."""
    if not refused:
        return 200
    reasons = {refusal.reason for refusal in refused}
    if NOT_ACKNOWLEDGED in reasons:
        return 503
    return 413 if reasons == {TOO_LARGE} else 422


encode = msgspec.json.Encoder().encode
