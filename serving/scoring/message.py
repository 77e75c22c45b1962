"""One impression's score, as a topic of scores has it.

    {"impression_id": "i1", "timestamp_ms": 1760000000000, "request_id": "r1", "model": "news",
     "version": 812, "state": "fresh", "score": 0.043}

The key is the impression id, so that a score meets its impression and its click. Time and request
are the impression's own. `version` and `state` are what a server's answer would say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.ingest.events import IMPRESSION_ID, REQUEST_ID, TIME

if TYPE_CHECKING:
    from headrace.serving.replicas import ReplicaStatus

    Event = dict[str, object]


class ScoreMessage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is said of one impression."""

    impression_id: str
    timestamp_ms: int
    request_id: str | None = None
    model: str
    version: int
    state: str
    snapshot: str = ""
    score: float
    """Probability of a click."""


_encode = msgspec.json.Encoder().encode


def message_of(
    event: Event, score: float, model: str, standing: ReplicaStatus, state: str
) -> tuple[bytes, bytes]:
    """Return key and value of an event's score; the event was read by `read_event`."""
    name, time_ms, request = event[IMPRESSION_ID], event[TIME], event.get(REQUEST_ID)
    assert isinstance(name, str) and isinstance(time_ms, int)  # else it is no event
    message = ScoreMessage(
        impression_id=name,
        timestamp_ms=time_ms,
        request_id=request if isinstance(request, str) else None,
        model=model,
        version=standing.version,
        state=state,
        snapshot=standing.snapshot,
        score=score,
    )
    return name.encode(), _encode(message)
