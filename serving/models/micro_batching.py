"""Micro-batching: scores requests of one candidate that arrive together in one call of the model.

Building arrays for one event and calling a kernel takes longer than the kernel itself, and hardly
longer for eight events. A request of one candidate therefore yields to the event loop once. By then
all requests of the same turn have joined the batch, and the first to resume computes it. Every
request gets the score that it would get alone, from rows at least as new as those it found.
"""

import asyncio
import contextlib
import time

from headrace.ingest.features.encoder import Event
from headrace.serving.models.predictor import Predictor, Scores
from headrace.serving.replicas.status import RowSource
from headrace.serving.requests.candidates import Candidates


class _Batch:
    """One call of a model; open until the first of its requests resumes."""

    __slots__ = ("events", "rows", "scores", "seconds")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.rows: RowSource | None = None
        """Rows of the last request that joined: the newest."""
        self.scores: Scores | None = None
        self.seconds = 0.0


class MicroBatcher:
    """Collects the requests of one turn of the event loop. For one thread only."""

    def __init__(self) -> None:
        self._open: dict[Predictor, _Batch] = {}

    async def predict(
        self, predictor: Predictor, rows: RowSource, candidates: Candidates, now_ms: int
    ) -> tuple[Scores, float]:
        """Return the scores of `predictor.predict`, and this request's share of the seconds."""
        if len(candidates) != 1:
            began_s = time.perf_counter()
            scores = predictor.predict(rows, candidates, now_ms)
            return scores, time.perf_counter() - began_s
        call = self._open.get(predictor)
        if call is None:
            call = self._open[predictor] = _Batch()
        place, call.rows = len(call.events), rows
        call.events.append(candidates.only(now_ms))
        await asyncio.sleep(0)
        if self._open.get(predictor) is call:
            del self._open[predictor]
            began_s = time.perf_counter()
            with contextlib.suppress(Exception):  # below, each is scored alone: one of them fails
                call.scores = predictor.predict_events(call.rows, call.events)
            call.seconds = (time.perf_counter() - began_s) / len(call.events)
        if call.scores is None:
            return predictor.predict(rows, candidates, now_ms), call.seconds
        return call.scores[place : place + 1], call.seconds
