"""The HTTP face of a server: prediction, status, health, metrics.

Prediction takes raw bytes and gives raw bytes: the body is decoded and checked by a type made from
the model spec, and no validation library, thread pool or middleware stands on its path. The rest is
plain FastAPI. Prediction is computed on the event loop: it takes a fraction of a millisecond for a
hundred candidates, less than handing it to another thread and back would cost the p99.
"""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.routing import Route

from serving.answer import Answer, Prediction, Status, age, encode, status
from serving.errors import Refusal, RefusalBody, Refused
from serving.openapi import document
from serving.request import ID, Limits, RequestDecoder, too_large

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    from prometheus_client import CollectorRegistry

    from learner.spec import ModelSpec
    from serving.follower import Follower
    from serving.metrics import RequestMetrics
    from serving.predictor import Predictor

log = logging.getLogger(__name__)

_JSON = "application/json"
_RETRY_AFTER_S = "1"


@dataclass(frozen=True, slots=True)
class Served:
    """A model with all that answers for it."""

    spec: ModelSpec
    decoder: RequestDecoder
    predictor: Predictor
    follower: Follower


class Readiness:
    """Whether a server wants requests: withdrawn first when it is told to leave."""

    def __init__(self) -> None:
        self.leaving = False


def make_app(
    models: Mapping[str, Served],
    metrics: RequestMetrics,
    registry: CollectorRegistry,
    readiness: Readiness,
    now_ms: Callable[[], int],
    limits: Limits,
) -> FastAPI:
    """Return the application that serves `models`, by name."""
    app = FastAPI(
        title="headrace",
        description="Predictions from a model that has learned from what happened a moment ago.",
        openapi_url="/openapi.json",
        redoc_url=None,
    )
    predict = _Prediction(models, metrics, now_ms, limits)
    # a Starlette route, for FastAPI's own would resolve dependencies that this one does not have;
    # and the first, for routes are tried in turn
    app.router.routes.insert(
        0, Route("/v1/models/{name}:predict", predict.answer, methods=["POST"])
    )
    _add_status(app, models, now_ms)
    _add_health(app, models, readiness)

    @app.get("/metrics", tags=["health"], summary="Metrics in Prometheus format")
    def show_metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.exception_handler(HTTPException)
    async def refuse_path(request: Request, error: HTTPException) -> Response:
        found = f"{request.method} {request.url.path}"
        expected = "a path of /docs" if error.status_code == 404 else "another method"
        refusal = Refusal(field="", expected=expected, found=found)
        answer = _refusal(Refused(error.status_code, refusal))
        answer.headers.update(error.headers or {})
        return answer

    def openapi() -> dict[str, Any]:
        if not app.openapi_schema:
            app.openapi_schema = document(app, models)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


class _Prediction:
    """The hot path."""

    def __init__(
        self,
        models: Mapping[str, Served],
        metrics: RequestMetrics,
        now_ms: Callable[[], int],
        limits: Limits,
    ) -> None:
        self._models, self._metrics = models, metrics
        self._now_ms, self._limits = now_ms, limits

    async def answer(self, request: Request) -> Response:
        """Answer one request, and count it."""
        name = request.path_params["name"]
        try:
            served = _known(self._models, name)
            body = await _body(request, self._limits)
            began = time.perf_counter()
            answer = self._predict(served, body)
        except Refused as refused:
            self._metrics.refused(name if name in self._models else "", refused.status)
            return _refusal(refused)
        encoded = encode(answer)
        self._metrics.answered(name, time.perf_counter() - began, len(answer.predictions))
        return Response(encoded, media_type=_JSON)

    def _predict(self, served: Served, body: bytes) -> Answer:
        standing = served.follower.standing
        if not standing.complete:
            refusal = Refusal(
                field="",
                expected=f"all {standing.buckets} buckets of the model copied",
                found=f"{standing.copied}: ask again in a moment",
            )
            raise Refused(503, refusal)
        asked = served.decoder.decode(body)
        now_ms = self._now_ms()
        scores = served.predictor.predict(
            served.follower.table,
            asked.context,
            asked.candidates,
            now_ms if asked.timestamp_ms is None else asked.timestamp_ms,
        )
        return Answer(
            served.spec.name,
            standing.version,
            age(standing, now_ms),
            _named(asked.candidates, scores),
            asked.request_id,
        )


def _named(
    candidates: Sequence[Mapping[str, Any]], scores: npt.NDArray[np.float64]
) -> list[Prediction]:
    drawn = secrets.token_hex(12)  # one draw a request, for all that have no name
    return [
        Prediction(each.get(ID) or f"{drawn}-{i}", score)
        for i, (each, score) in enumerate(zip(candidates, scores.tolist(), strict=True))
    ]


async def _body(request: Request, limits: Limits) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limits.body_bytes:
            raise too_large(limits)
        parts.append(part)
    return b"".join(parts)


def _known(models: Mapping[str, Served], name: str) -> Served:
    served = models.get(name)
    if served is None:
        expected = f"one of the models served here: {', '.join(sorted(models))}"
        raise Refused(404, Refusal(field="model", expected=expected, found=name))
    return served


def _refusal(refused: Refused) -> Response:
    headers = {"Retry-After": _RETRY_AFTER_S} if refused.status == 503 else None
    body = encode(RefusalBody(refused.refusal))
    return Response(body, refused.status, headers, media_type=_JSON)


def _status(served: Served, now_ms: int) -> Status:
    spec = served.spec
    return status(spec.name, spec.architecture, spec.fingerprint, served.follower, now_ms)


def _add_status(app: FastAPI, models: Mapping[str, Served], now_ms: Callable[[], int]) -> None:
    @app.get("/v1/models", tags=["models"], summary="How every model stands")
    async def all_models() -> Response:
        now = now_ms()
        body = encode({"models": [_status(each, now) for each in models.values()]})
        return Response(body, media_type=_JSON)

    @app.get("/v1/models/{name}", tags=["models"], summary="How a model stands")
    async def one_model(name: str) -> Response:
        try:
            return Response(encode(_status(_known(models, name), now_ms())), media_type=_JSON)
        except Refused as refused:
            return _refusal(refused)


def _add_health(app: FastAPI, models: Mapping[str, Served], readiness: Readiness) -> None:
    @app.get("/health/live", tags=["health"], summary="Whether the process answers at all")
    async def live() -> Response:
        return Response(encode({"live": True}), media_type=_JSON)

    @app.get("/health/ready", tags=["health"], summary="Whether predictions are answered")
    async def ready() -> Response:
        waiting = [name for name, each in models.items() if not each.follower.standing.complete]
        answers = not waiting and not readiness.leaving
        body = encode({"ready": answers, "leaving": readiness.leaving, "incomplete": waiting})
        return Response(body, 200 if answers else 503, media_type=_JSON)
