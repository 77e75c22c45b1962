"""Answers prediction requests: the hot path of a server.

Bodies stay raw bytes until a decoder made from the model spec parses and checks them in one step.
Computation runs in one of three places:

- A short request runs on the event loop. A hundred candidates take a fraction of a millisecond,
  which is less than a handover to another thread and back would add to the p99.
- Short requests that arrive together are scored as one batch (`models.micro_batching`).
- A long request, or one to a costly model, runs on a single thread beside the event loop.

Observers (prediction log, shadow models) receive the answer afterwards, by reference. They must
not block.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Response
from starlette.requests import ClientDisconnect

from headrace.runtime.http.bearer_tokens import Tokens
from headrace.runtime.http.http_errors import RequestRefused
from headrace.runtime.http.token_grants import TokenLimits
from headrace.serving.api.load_shedding import (
    BodySource,
    LoadShedder,
    WholeRequest,
    read_body,
    whole_body,
)
from headrace.serving.api.request_metrics import RequestMetrics
from headrace.serving.api.responses import (
    CandidateScore,
    PredictResponse,
    RankedCandidate,
    RankResponse,
    StatusFields,
    explained_answers,
)
from headrace.serving.models.micro_batching import MicroBatcher
from headrace.serving.models.prediction import (
    AnswerObserver,
    ReadyRequest,
    ReceivedRequest,
    RequestNames,
    RequestVerb,
    ScoredRequest,
    check_complete,
    check_fresh,
    explanations,
    names_of,
    score,
    uncertainties,
)
from headrace.serving.models.registry import ModelRegistry, Route, ServedModel
from headrace.serving.requests.candidates import CheckedRequest
from headrace.serving.requests.refusals import JSON, as_response, encode
from headrace.serving.requests.splitting_key import split_key
from headrace.serving.requests.strict_requests import check_known

_OF_JSON = (b"content-type", JSON.encode())
_CLIENT_GONE = 499


class _AnswerResponse(Response):
    """A successful response, built without Starlette's header processing."""

    def __init__(self, body: bytes) -> None:
        self.status_code, self.background, self.body = 200, None, body
        self.raw_headers = [(b"content-length", b"%d" % len(body)), _OF_JSON]


class PredictionHandler:
    """Answers prediction requests. Owns a thread; call `close`."""

    def __init__(
        self,
        models: ModelRegistry,
        shedder: LoadShedder,
        tokens: Tokens,
        metrics: RequestMetrics,
        now_ms: Callable[[], int],
        observers: Sequence[AnswerObserver] = (),
        *,
        limits: TokenLimits | None = None,
    ) -> None:
        self._models, self._shedder, self._tokens = models, shedder, tokens
        self._metrics, self._now_ms, self._observers = metrics, now_ms, observers
        self._limits = limits or TokenLimits(())
        self._aside = ThreadPoolExecutor(1, "aside")
        self._names, self._together = RequestNames(), MicroBatcher()

    def close(self) -> None:
        """Wait for computations on the thread, and end it."""
        self._aside.shutdown()

    async def answer(
        self, request: BodySource | WholeRequest, name: str, verb: RequestVerb
    ) -> Response:
        """Answer one request to the model or alias `name`, and count it.

        1. authorize  401 without a valid token, 403 or 429 beyond its limits, 404 for an unknown
                      model
        2. read       408, 413 or 415 if the body is late, too large or compressed
        3. admit      503 if too much work is queued already
        4. choose     the model, if the alias splits its requests
        5. compute    decode, check, encode, score, write
        """
        model, shedder, client = "", self._shedder, ""
        try:
            if self._tokens:
                token = self._tokens.check(request.headers.get("authorization"))
                client = self._limits.name(token)
                self._limits.admit(token, name)
            target = self._models.find(name)
            model = target.served.spec.name
            shedder.check()
            if isinstance(request, WholeRequest):
                body = whole_body(request, shedder.limits)
            else:
                body = await read_body(request, shedder)
            shedder.arrive()
            received = ReceivedRequest(target, body, verb, time.monotonic())
            try:
                if target.split is not None:
                    received = await self._to_arm(received, target.split.key)
                    model = received.target.served.spec.name
                written, seconds, candidates = await self._in_turn(received)
            finally:
                shedder.depart()
        except RequestRefused as refused:
            self._metrics.refused(model, refused.status, client)
            return as_response(refused)
        except ClientDisconnect:
            self._metrics.refused(model, _CLIENT_GONE, client)
            return Response(status_code=_CLIENT_GONE)  # never sent: the connection is closed
        self._metrics.answered(model, seconds, candidates, target.alias, client)
        return _AnswerResponse(written)

    async def _to_arm(self, received: ReceivedRequest, name: str) -> ReceivedRequest:
        """Choose the model by the key `name`. A request without it is split by its body."""
        target, body = received.target, received.body
        if len(body) > self._shedder.limits.aside_bytes:
            loop = asyncio.get_running_loop()
            key = await loop.run_in_executor(self._aside, split_key, body, name)
        else:
            key = split_key(body, name)
        return received._replace(target=self._models.arm(target, body if key is None else key))

    async def _in_turn(self, received: ReceivedRequest) -> tuple[bytes, float, int]:
        size = len(received.body)
        self._shedder.take(size)
        busy_s = None
        try:
            # count all requests that arrived together before computing the first one
            await asyncio.sleep(0)
            began_s = time.perf_counter()
            if received.target.served.costly or size > self._shedder.limits.aside_bytes:
                loop = asyncio.get_running_loop()
                waited_s = self._shedder.waiting_s
                written, candidates = await loop.run_in_executor(
                    self._aside, self._compute, received
                )
                seconds = time.perf_counter() - began_s
                busy_s = min(seconds, max(seconds - waited_s, seconds / 2))
            elif self._shedder.waiting == 1:
                written, candidates = self._compute(received)
                busy_s = seconds = time.perf_counter() - began_s
            else:
                written, candidates, busy_s = await self._compute_with_others(received)
                seconds = time.perf_counter() - began_s
        finally:
            self._shedder.done(size, busy_s)
        return written, seconds, candidates

    def _compute(self, received: ReceivedRequest) -> tuple[bytes, int]:
        """Return the answer and the count of candidates. Raises RequestRefused."""
        ready = self._check(received)
        written = self._write(received, ready, score(ready))
        return written, len(ready.request.candidates)

    async def _compute_with_others(self, received: ReceivedRequest) -> tuple[bytes, int, float]:
        """Like `_compute`, in a batch. Also return the seconds that this request took of it."""
        began_s = time.perf_counter()
        ready = self._check(received)
        request, busy_s = ready.request, time.perf_counter() - began_s
        scores, scoring_s = await self._together.predict(
            received.target.served.predictor, ready.rows, request.candidates, ready.now_ms
        )
        scored_s = time.perf_counter()
        written = self._write(received, ready, ready.scored(scores))
        busy_s += scoring_s + time.perf_counter() - scored_s
        return written, len(request.candidates), busy_s

    def _check(self, received: ReceivedRequest) -> ReadyRequest:
        target = received.target
        rows, now_ms = target.served.rows, self._now_ms()
        status = rows.status
        check_complete(status)
        request = received.read(target.served)
        if request.strict:
            self._check_known(target, received.body)
        check_fresh(request, status, now_ms)
        names = names_of(request.candidates, self._names)
        return ReadyRequest(target, request, status, now_ms, names, rows.reading(received.since_s))

    def _check_known(self, target: Route, body: bytes) -> None:
        """Refuse fields that no model of the alias reads. Raises RequestRefused (422)."""
        # not in `read`, by which shadows decode the request too: their fields may be fewer
        known = frozenset[str]().union(*(arm.decoder.known for arm in self._models.arms(target)))
        check_known(body, known if target.split is None else known | {target.split.key})

    def _write(
        self, received: ReceivedRequest, ready: ReadyRequest, scored: ScoredRequest
    ) -> bytes:
        if ready.request.uncertainty:
            scored = scored._replace(uncertainties=uncertainties(ready))
        if ready.request.explain:
            scored = scored._replace(explained=explanations(ready, scored))
        written = received.verb.write(scored)
        for each in self._observers:
            each.answered(scored, received)
        return written


class _ResponseFields:
    """Shared by the two routes."""

    def __init__(self) -> None:
        self._telling = StatusFields()

    def learned(self, scored: ScoredRequest) -> dict[str, Any]:
        """Return the fields of `ResponseBase` by name."""
        return {
            "model": scored.target.served.spec.name,
            "alias": scored.target.alias,
            "defaulted_rows": scored.defaulted,
            "request_id": scored.request.request_id,
            **self._telling.of(scored.status, scored.now_ms),
        }


class PredictVerb(_ResponseFields):
    """`:predict`: scores of all candidates, in request order."""

    def read(self, served: ServedModel, body: bytes) -> CheckedRequest:
        """Decode a request. Raises RequestRefused (413, 422)."""
        return served.decoder.decode(body)

    def write(self, scored: ScoredRequest) -> bytes:
        """Encode the predictions."""
        named = [scored.names, scored.scores.tolist()]
        count = len(scored.names)
        if scored.uncertainties is not None or scored.explained is not None:
            named.append(scored.uncertain(range(count)))
        if scored.explained is not None:
            named.append(explained_answers(scored.explained, count))
        predictions = list(itertools.starmap(CandidateScore, zip(*named, strict=True)))
        return encode(PredictResponse(**self.learned(scored), predictions=predictions))


class RankVerb(_ResponseFields):
    """`:rank`: the `top_k` candidates with the highest scores, in descending order."""

    def read(self, served: ServedModel, body: bytes) -> CheckedRequest:
        """Decode a request. Raises RequestRefused (413, 422)."""
        return served.decoder.decode_rank(body)

    def write(self, scored: ScoredRequest) -> bytes:
        """Encode the ranking."""
        assert scored.chosen is not None  # decode_rank always sets top_k
        places = scored.chosen.tolist()
        scores = scored.scores[scored.chosen].tolist()
        uncertain = scored.uncertain(places)
        parts = explained_answers(scored.explained, len(places))
        ranking = [
            RankedCandidate(place, scored.names[place], *each)
            for place, *each in zip(places, scores, uncertain, parts, strict=True)
        ]
        return encode(RankResponse(**self.learned(scored), ranking=ranking))
