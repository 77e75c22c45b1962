"""Requests of one candidate that came together are scored by one call of the model.

To make arrays of one event and to call a kernel takes longer than what the kernel does, and hardly
longer for eight events. So who asks for one candidate gives way once: all that came in the same
turn of the event loop have asked by then, and the first to go on computes for all of them. Each is
answered from rows at least as new as those that it found, with the score that it would have alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from headrace.serving.requests import EventCandidates

if TYPE_CHECKING:
    from headrace.ingest.features import Event
    from headrace.serving.models.predictor import Predictor, Scores
    from headrace.serving.replicas import RowSource
    from headrace.serving.requests import Candidates


class _Batch:
    """One call, for those who ask until the first of them goes on."""

    __slots__ = ("events", "rows", "scores", "seconds")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.rows: RowSource | None = None
        """Of the last who asked: the newest."""
        self.scores: Scores | None = None
        self.seconds = 0.0


class MicroBatcher:
    """Who asks in this turn of the event loop. Of one thread."""

    def __init__(self) -> None:
        self._open: dict[Predictor, _Batch] = {}

    async def predict(
        self, predictor: Predictor, rows: RowSource, candidates: Candidates, now_ms: int
    ) -> tuple[Scores, float]:
        """Return what `predictor.predict` does, and how many seconds of it are this request's."""
        if not isinstance(candidates, EventCandidates) or len(candidates) != 1:
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
            with contextlib.suppress(Exception):  # whose fault it was shows below
                call.scores = predictor.predict_events(call.rows, call.events)
            call.seconds = (time.perf_counter() - began_s) / len(call.events)
        if call.scores is None:
            return predictor.predict(rows, candidates, now_ms), call.seconds
        return call.scores[place : place + 1], call.seconds
