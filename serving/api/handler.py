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

from headrace.ingest.http import RequestRefused
from headrace.serving.api.load_shedding import WholeRequest, read_body, whole_body
from headrace.serving.api.responses import (
    CandidateScore,
    PredictResponse,
    RankedCandidate,
    RankResponse,
    StatusFields,
)
from headrace.serving.models import (
    AnswerObserver,
    MicroBatcher,
    ReadyRequest,
    RequestNames,
    ScoredRequest,
    check_complete,
    check_fresh,
    names_of,
    score,
    uncertainties,
)
from headrace.serving.requests import JSON, as_response, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.ingest.http import Tokens
    from headrace.serving.api.load_shedding import BodySource, LoadShedder
    from headrace.serving.api.request_metrics import RequestMetrics
    from headrace.serving.models import ModelRegistry, Route, ServedModel
    from headrace.serving.requests import CheckedRequest

_OF_JSON = (b"content-type", JSON.encode())
_NO_HEADERS: Mapping[str, str] = {}
_CLIENT_GONE = 499


class EncodedAnswer(NamedTuple):
    """An answer as bytes."""

    body: bytes
    headers: Mapping[str, str] = _NO_HEADERS


class _AnswerResponse(Response):
    """The response to a request that was answered, made with less ado than others."""

    def __init__(self, written: EncodedAnswer) -> None:
        self.status_code, self.background, self.body = 200, None, written.body
        self.raw_headers = [(b"content-length", b"%d" % len(written.body))]
        if written.headers:
            named = ((name.lower(), value) for name, value in written.headers.items())
            self.raw_headers += [(name.encode(), value.encode()) for name, value in named]
        if "Content-Type" not in written.headers:
            self.raw_headers.append(_OF_JSON)


class ProtocolAdapter(Protocol):
    """How one protocol reads requests and writes answers."""

    def read(self, served: ServedModel, body: bytes, headers: Mapping[str, str]) -> CheckedRequest:
        """Return what is asked of this model. Raises RequestRefused."""

    def write(self, scored: ScoredRequest) -> EncodedAnswer:
        """Return the answer."""

    def refuse(self, refused: RequestRefused) -> Response:
        """Return the answer to a request that has none."""


class PredictionHandler:
    """Answers requests; `close` ends its thread."""

    def __init__(
        self,
        models: ModelRegistry,
        room: LoadShedder,
        tokens: Tokens,
        metrics: RequestMetrics,
        now_ms: Callable[[], int],
        beside: Sequence[AnswerObserver] = (),
    ) -> None:
        self._models, self._room, self._tokens = models, room, tokens
        self._metrics, self._now_ms, self._beside = metrics, now_ms, beside
        self._aside = ThreadPoolExecutor(1, "aside")
        self._names, self._together = RequestNames(), MicroBatcher()

    def close(self) -> None:
        """Wait for what is computed aside."""
        self._aside.shutdown()

    async def answer(
        self, request: BodySource | WholeRequest, name: str, face: ProtocolAdapter
    ) -> Response:
        """PredictResponse one request to the model or alias `name`, and count it.

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
                if isinstance(request, WholeRequest):
                    body = whole_body(request, room.limits)
                else:
                    body = await read_body(request, room.limits)
                written, seconds, candidates = await self._in_turn(
                    target, body, request.headers, face
                )
            finally:
                room.depart()
        except RequestRefused as refused:
            self._metrics.refused(model, refused.status)
            return face.refuse(refused)
        except ClientDisconnect:
            self._metrics.refused(model, _CLIENT_GONE)
            return Response(status_code=_CLIENT_GONE)  # nobody reads it
        self._metrics.answered(model, seconds, candidates)
        return _AnswerResponse(written)

    async def _in_turn(
        self, target: Route, body: bytes, headers: Mapping[str, str], face: ProtocolAdapter
    ) -> tuple[EncodedAnswer, float, int]:
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
        self,
        target: Route,
        body: bytes,
        headers: Mapping[str, str],
        face: ProtocolAdapter,
        since_s: float,
    ) -> tuple[EncodedAnswer, int]:
        """Return the answer to a body, and how many candidates it has. Raises RequestRefused.

        since_s: when it was there, by the clock that never goes back.
        """
        ready = self._read(target, body, headers, face, since_s)
        written = self._write(ready, score(ready), body, headers, face)
        return written, len(ready.asked.candidates)

    async def _compute_with_others(
        self,
        target: Route,
        body: bytes,
        headers: Mapping[str, str],
        face: ProtocolAdapter,
        since_s: float,
    ) -> tuple[EncodedAnswer, int, float]:
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
        self,
        target: Route,
        body: bytes,
        headers: Mapping[str, str],
        face: ProtocolAdapter,
        since_s: float,
    ) -> ReadyRequest:
        served = target.served
        standing, now_ms = served.rows.standing, self._now_ms()
        check_complete(standing)
        asked = face.read(served, body, headers)
        check_fresh(asked, standing, now_ms)
        names = names_of(asked.candidates, self._names)
        return ReadyRequest(target, asked, standing, now_ms, names, served.rows.reading(since_s))

    def _write(
        self,
        ready: ReadyRequest,
        scored: ScoredRequest,
        body: bytes,
        headers: Mapping[str, str],
        face: ProtocolAdapter,
    ) -> EncodedAnswer:
        if ready.asked.uncertainty:
            scored = scored._replace(uncertainties=uncertainties(ready))
        written = face.write(scored)
        for each in self._beside:
            each.answered(scored, lambda other: face.read(other, body, headers))
        return written


class _JsonAdapter:
    """What our own two routes have in common."""

    def __init__(self) -> None:
        self._telling = StatusFields()

    def learned(self, scored: ScoredRequest) -> dict[str, Any]:
        """Return what every answer says of the information that it came from, by name."""
        return {
            "model": scored.target.served.spec.name,
            "alias": scored.target.alias,
            "defaulted_rows": scored.defaulted,
            "request_id": scored.asked.request_id,
            **self._telling.of(scored.standing, scored.now_ms),
        }

    def refuse(self, refused: RequestRefused) -> Response:
        return as_response(refused)


class PredictAdapter(_JsonAdapter):
    """`:predict`: all candidates, in their order."""

    def read(self, served: ServedModel, body: bytes, headers: Mapping[str, str]) -> CheckedRequest:  # noqa: ARG002
        """Return what is asked. Raises RequestRefused (413, 422)."""
        return served.decoder.decode(body)

    def write(self, scored: ScoredRequest) -> EncodedAnswer:
        """Return the predictions."""
        named = [scored.names, scored.scores.tolist()]
        if scored.uncertainties is not None:
            named.append(scored.uncertainties.tolist())
        predictions = list(itertools.starmap(CandidateScore, zip(*named, strict=True)))
        return EncodedAnswer(
            encode(PredictResponse(**self.learned(scored), predictions=predictions))
        )


class RankAdapter(_JsonAdapter):
    """`:rank`: the likeliest candidates, the likeliest first."""

    def read(self, served: ServedModel, body: bytes, headers: Mapping[str, str]) -> CheckedRequest:  # noqa: ARG002
        """Return what is asked. Raises RequestRefused (413, 422)."""
        return served.decoder.decode_rank(body)

    def write(self, scored: ScoredRequest) -> EncodedAnswer:
        """Return the ranking."""
        assert scored.chosen is not None  # a request to rank has a top_k
        places = scored.chosen.tolist()
        scores = scored.scores[scored.chosen].tolist()
        ranking = [
            RankedCandidate(place, scored.names[place], each, uncertain)
            for place, each, uncertain in zip(places, scores, scored.uncertain(places), strict=True)
        ]
        return EncodedAnswer(encode(RankResponse(**self.learned(scored), ranking=ranking)))
