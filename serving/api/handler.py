"""The hot path: from a request to its answer, whatever protocol it came in.

Bodies are raw bytes, decoded and checked by a type made from the model spec; no validation library
or middleware stands here. A short request is computed on the event loop: it takes a fraction of a
millisecond for a hundred candidates, less than handing it to another thread and back would cost the
p99. A long one, or one of a model that is costly, is computed on one thread beside it. Those of one
candidate that came together are scored together (`models.together`).

What others do with an answer (the log of predictions, shadow models) gets it afterwards, by
reference, and must not wait.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fastapi import Response
from starlette.requests import ClientDisconnect

from headrace.serving.api.load_shedding import Whole, read_body, whole_body
from headrace.serving.api.responses import Answer, Prediction, Ranked, Ranking, Telling
from headrace.serving.models.micro_batching import Together
from headrace.serving.models.prediction import (
    Beside,
    Ready,
    RequestNames,
    Scored,
    check_complete,
    check_fresh,
    names_of,
    score,
    uncertainties,
)
from headrace.serving.requests.refusals import JSON, Refused, as_response, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.ingest.http.bearer_tokens import Tokens
    from headrace.serving.api.load_shedding import Arrived, Room
    from headrace.serving.api.metrics import RequestMetrics
    from headrace.serving.models.registry import Models, Served, Target
    from headrace.serving.requests.candidates import Asked

_OF_JSON = (b"content-type", JSON.encode())
_NO_HEADERS: Mapping[str, str] = {}
_CLIENT_GONE = 499
_LONGEST_SHOWN = 80
"""Of a name that is none of ours: a snapshot's has less."""


class Written(NamedTuple):
    """An answer as bytes."""

    body: bytes
    headers: Mapping[str, str] = _NO_HEADERS


class _Answered(Response):
    """The response to a request that was answered, made with less ado than others."""

    def __init__(self, written: Written) -> None:
        self.status_code, self.background, self.body = 200, None, written.body
        self.raw_headers = [(b"content-length", b"%d" % len(written.body))]
        if written.headers:
            named = ((name.lower(), value) for name, value in written.headers.items())
            self.raw_headers += [(name.encode(), value.encode()) for name, value in named]
        if "Content-Type" not in written.headers:
            self.raw_headers.append(_OF_JSON)


class Face(Protocol):
    """How one protocol reads requests and writes answers."""

    def read(self, served: Served, body: bytes, headers: Mapping[str, str]) -> Asked:
        """Return what is asked of this model. Raises Refused."""

    def write(self, scored: Scored) -> Written:
        """Return the answer."""

    def refuse(self, refused: Refused) -> Response:
        """Return the answer to a request that has none."""


class Answering:
    """Answers requests; `close` ends its thread."""

    def __init__(
        self,
        models: Models,
        room: Room,
        tokens: Tokens,
        metrics: RequestMetrics,
        now_ms: Callable[[], int],
        beside: Sequence[Beside] = (),
    ) -> None:
        self._models, self._room, self._tokens = models, room, tokens
        self._metrics, self._now_ms, self._beside = metrics, now_ms, beside
        self._aside = ThreadPoolExecutor(1, "aside")
        self._names, self._together = RequestNames(), Together()

    def close(self) -> None:
        """Wait for what is computed aside."""
        self._aside.shutdown()

    async def answer(self, request: Arrived | Whole, name: str, face: Face) -> Response:
        """Answer one request to the model or alias `name`, and count it.

        1. who      a good token, else 401; a model, else 404
        2. body     read, within its bounds, else 408, 413 or 415
        3. room     so much work ahead and no more, else 503
        4. compute  decode, check, encode, score, write
        """
        model, room = "", self._room
        try:
            if self._tokens:
                self._tokens.check(request.headers.get("authorization"))
            target = self._models.find(name)
            model = target.served.spec.name
            room.arrive()
            try:
                if isinstance(request, Whole):
                    body = whole_body(request, room.limits)
                else:
                    body = await read_body(request, room.limits)
                written, seconds, candidates = await self._in_turn(
                    target, body, request.headers, face
                )
            finally:
                room.depart()
        except Refused as refused:
            self._metrics.refused(model, refused.status)
            return face.refuse(refused)
        except ClientDisconnect:
            self._metrics.refused(model, _CLIENT_GONE)
            return Response(status_code=_CLIENT_GONE)  # nobody reads it
        self._metrics.answered(model, seconds, candidates)
        return _Answered(written)

    async def _in_turn(
        self, target: Target, body: bytes, headers: Mapping[str, str], face: Face
    ) -> tuple[Written, float, int]:
        size = len(body)
        self._room.take(size)
        busy_s, since_s = None, time.monotonic()
        try:
            # those who arrived together are all counted before the first of them is computed
            await asyncio.sleep(0)
            began_s = time.perf_counter()
            if target.served.costly or size > self._room.limits.aside_bytes:
                loop = asyncio.get_running_loop()
                waited_s = self._room.waiting_s
                written, candidates = await loop.run_in_executor(
                    self._aside, self.compute, target, body, headers, face, since_s
                )
                seconds = time.perf_counter() - began_s
                busy_s = min(seconds, max(seconds - waited_s, seconds / 2))
            elif self._room.waiting == 1:
                written, candidates = self.compute(target, body, headers, face, since_s)
                busy_s = seconds = time.perf_counter() - began_s
            else:
                written, candidates, busy_s = await self._compute_with_others(
                    target, body, headers, face, since_s
                )
                seconds = time.perf_counter() - began_s
        finally:
            self._room.done(size, busy_s)
        return written, seconds, candidates

    def compute(
        self, target: Target, body: bytes, headers: Mapping[str, str], face: Face, since_s: float
    ) -> tuple[Written, int]:
        """Return the answer to a body, and how many candidates it has. Raises Refused.

        since_s: when it was there, by the clock that never goes back.
        """
        ready = self._read(target, body, headers, face, since_s)
        written = self._write(ready, score(ready), body, headers, face)
        return written, len(ready.asked.candidates)

    async def _compute_with_others(
        self, target: Target, body: bytes, headers: Mapping[str, str], face: Face, since_s: float
    ) -> tuple[Written, int, float]:
        """Return what `compute` does, and how many seconds of it are this request's."""
        began_s = time.perf_counter()
        ready = self._read(target, body, headers, face, since_s)
        asked, busy_s = ready.asked, time.perf_counter() - began_s
        scores, scoring_s = await self._together.predict(
            target.served.predictor, ready.rows, asked.candidates, ready.now_ms
        )
        scored_s = time.perf_counter()
        written = self._write(ready, ready.scored(scores), body, headers, face)
        busy_s += scoring_s + time.perf_counter() - scored_s
        return written, len(asked.candidates), busy_s

    def _read(
        self, target: Target, body: bytes, headers: Mapping[str, str], face: Face, since_s: float
    ) -> Ready:
        served = target.served
        standing, now_ms = served.rows.standing, self._now_ms()
        check_complete(standing)
        asked = face.read(served, body, headers)
        check_fresh(asked, standing, now_ms)
        names = names_of(asked.candidates, self._names)
        return Ready(target, asked, standing, now_ms, names, served.rows.reading(since_s))

    def _write(
        self, ready: Ready, scored: Scored, body: bytes, headers: Mapping[str, str], face: Face
    ) -> Written:
        if ready.asked.uncertainty:
            scored = scored._replace(uncertainties=uncertainties(ready))
        written = face.write(scored)
        for each in self._beside:
            each.answered(scored, lambda other: face.read(other, body, headers))
        return written


class _Json:
    """What our own two routes have in common."""

    def __init__(self) -> None:
        self._telling = Telling()

    def learned(self, scored: Scored) -> dict[str, Any]:
        """Return what every answer says of the information that it came from, by name."""
        return {
            "model": scored.target.served.spec.name,
            "alias": scored.target.alias,
            "defaulted_rows": scored.defaulted,
            "request_id": scored.asked.request_id,
            **self._telling.of(scored.standing, scored.now_ms),
        }

    def refuse(self, refused: Refused) -> Response:
        return as_response(refused)


class PredictFace(_Json):
    """`:predict`: all candidates, in their order."""

    def read(self, served: Served, body: bytes, headers: Mapping[str, str]) -> Asked:  # noqa: ARG002
        """Return what is asked. Raises Refused (413, 422)."""
        return served.decoder.decode(body)

    def write(self, scored: Scored) -> Written:
        """Return the predictions."""
        named = [scored.names, scored.scores.tolist()]
        if scored.uncertainties is not None:
            named.append(scored.uncertainties.tolist())
        predictions = list(itertools.starmap(Prediction, zip(*named, strict=True)))
        return Written(encode(Answer(**self.learned(scored), predictions=predictions)))


class RankFace(_Json):
    """`:rank`: the likeliest candidates, the likeliest first."""

    def read(self, served: Served, body: bytes, headers: Mapping[str, str]) -> Asked:  # noqa: ARG002
        """Return what is asked. Raises Refused (413, 422)."""
        return served.decoder.decode_rank(body)

    def write(self, scored: Scored) -> Written:
        """Return the ranking."""
        assert scored.chosen is not None  # a request to rank has a top_k
        places = scored.chosen.tolist()
        scores = scored.scores[scored.chosen].tolist()
        ranking = [
            Ranked(place, scored.names[place], each, uncertain)
            for place, each, uncertain in zip(places, scores, scored.uncertain(places), strict=True)
        ]
        return Written(encode(Ranking(**self.learned(scored), ranking=ranking)))
