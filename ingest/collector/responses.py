"""What the collector answers: one shape for everything.

    {"accepted": 998, "refused": [{"index": 3, "reason": "bad_time", "field": "timestamp_ms",
     "expected": "a whole number of milliseconds", "found": "\\"yesterday\\""}, ...]}

A batch is taken event by event: a bad one is refused by its place and the others are accepted, so
that one broken producer cannot hold up what came with it. The status is that of the worst event.
A request refused as a whole accepts nothing and has `error` instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.ingest.http import RequestRefusal  # noqa: TC001  (msgspec reads it)

if TYPE_CHECKING:
    from collections.abc import Sequence

TOO_LARGE = "too_large"
NOT_ACKNOWLEDGED = "not_acknowledged"
REFUSED_BY_KAFKA = "refused_by_kafka"

RETRY_AFTER_S = {429: 1, 503: 2}
"""Seconds after which to try again: a queue empties fast, a broker takes longer to come back."""


class EventRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """One event that was not accepted."""

    index: int
    """Its place in the batch, from 0; blank lines do not count."""
    reason: str
    """A word to tell programs by: as the dead letters would say it, or `too_large`, or
    `not_acknowledged`: then Kafka may have it or not, and it is right to send it again; or
    `refused_by_kafka`: it will never have it."""
    field: str
    """Which field is at fault; empty if none or all."""
    expected: str
    found: str


class CollectorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request."""

    accepted: int = 0
    """Events that Kafka has, written for good."""
    refused: list[EventRefusal] = []
    error: RequestRefusal | msgspec.UnsetType = msgspec.UNSET
    """Only of a request refused as a whole."""


def status_of(refused: Sequence[EventRefusal]) -> int:
    """Return the HTTP status: 503 if some event is worth sending again, else that of bad ones."""
    if not refused:
        return 200
    reasons = {each.reason for each in refused}
    if NOT_ACKNOWLEDGED in reasons:
        return 503
    return 413 if reasons == {TOO_LARGE} else 422


encode = msgspec.json.Encoder().encode
