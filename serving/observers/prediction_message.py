"""Encodes one scored candidate as a message of the topic `predictions`.

    {"impression_id": "i1", "time": 1760000000000, "request_id": "r1", "model": "news",
     "alias": "production", "version": 812, "score": 0.043, "fields": {"article_id": "a1", ...}}

The key is the impression id, so a prediction is in the same partition as its impression and its
click. `fields` are the fields that the model reads, unchanged: with id and time they are an
impression.
"""

from collections.abc import Iterator

import msgspec

from headrace.ingest.events.contract import TIME
from headrace.serving.models.prediction import ScoredRequest
from headrace.serving.requests.candidates import ID


class PredictionMessage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The prediction of one candidate."""

    impression_id: str
    time: int
    """Time of the candidate, or of the request, in ms."""
    request_id: str | None = None
    model: str
    alias: str
    """The requested alias, or the shadow's; empty if the request named the model."""
    version: int
    score: float
    fields: dict[str, object]


_encode = msgspec.json.Encoder().encode


def messages_of(scored: ScoredRequest) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of every candidate in the answer."""
    chosen = None if scored.chosen is None else set(scored.chosen.tolist())
    target, scores = scored.target, scored.scores.tolist()
    for place, event in enumerate(scored.request.candidates.events(scored.now_ms)):
        if chosen is not None and place not in chosen:
            continue
        name = scored.names[place]
        event.pop(ID, None)
        time_ms = event.pop(TIME)
        assert isinstance(time_ms, int)  # the decoder checked it
        message = PredictionMessage(
            impression_id=name,
            time=time_ms,
            request_id=scored.request.request_id,
            model=target.served.spec.name,
            alias=target.alias,
            version=scored.status.version,
            score=scores[place],
            fields=event,
        )
        yield name.encode(), _encode(message)
