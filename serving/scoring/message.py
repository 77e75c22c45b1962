"""Encodes the score of an impression as a message of a topic of scores.

    {"impression_id": "i1", "timestamp_ms": 1760000000000, "request_id": "r1", "model": "news",
     "version": 812, "state": "fresh", "score": 0.043}

The key is the impression id, so a score is in the same partition as its impression and its click.
Time and request are those of the impression. `version` and `state` are as in a server's answer.
"""

import msgspec

from headrace.ingest.events.contract import IMPRESSION_ID, REQUEST_ID, TIME
from headrace.serving.replicas.status import ReplicaStatus

Event = dict[str, object]


class ScoreMessage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The score of one impression."""

    impression_id: str
    timestamp_ms: int
    request_id: str | None = None
    model: str
    version: int
    state: str
    snapshot: str = ""
    score: float
    """Click probability."""


_encode = msgspec.json.Encoder().encode


def message_of(
    event: Event, score: float, model: str, status: ReplicaStatus, state: str
) -> tuple[bytes, bytes]:
    """Return key and value for the score of an event from `read_event`."""
    name, time_ms, request = event[IMPRESSION_ID], event[TIME], event.get(REQUEST_ID)
    assert isinstance(name, str) and isinstance(time_ms, int)  # `read_event` checked both
    message = ScoreMessage(
        impression_id=name,
        timestamp_ms=time_ms,
        request_id=request if isinstance(request, str) else None,
        model=model,
        version=status.version,
        state=state,
        snapshot=status.snapshot,
        score=score,
    )
    return name.encode(), _encode(message)
