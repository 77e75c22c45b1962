"""One candidate that was scored, as the topic `predictions` has it.

    {"impression_id": "i1", "time": 1760000000000, "request_id": "r1", "model": "news",
     "alias": "production", "version": 812, "score": 0.043, "fields": {"article_id": "a1", ...}}

The key is the impression id, so that a prediction meets its impression and its click. `fields` are
those that the model reads, as they came: an impression is `fields` with id and time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.ingest.events import TIME
from headrace.serving.requests import ID

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.serving.models import ScoredRequest


class PredictionMessage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What was said of one candidate."""

    impression_id: str
    time: int
    """When it was shown, or asked for, in ms."""
    request_id: str | None = None
    model: str
    alias: str
    """The alias that was asked, or the shadow's; empty if the model was asked by its name."""
    version: int
    score: float
    fields: dict[str, object]


_encode = msgspec.json.Encoder().encode


def messages_of(scored: ScoredRequest) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of every candidate that the answer has."""
    chosen = None if scored.chosen is None else set(scored.chosen.tolist())
    target, scores = scored.target, scored.scores.tolist()
    for place, event in enumerate(scored.asked.candidates.events(scored.now_ms)):
        if chosen is not None and place not in chosen:
            continue
        name = scored.names[place]
        event.pop(ID, None)
        time_ms = event.pop(TIME)
        assert isinstance(time_ms, int)  # the request was checked
        message = PredictionMessage(
            impression_id=name,
            time=time_ms,
            request_id=scored.asked.request_id,
            model=target.served.spec.name,
            alias=target.alias,
            version=scored.standing.version,
            score=scores[place],
            fields=event,
        )
        yield name.encode(), _encode(message)
