"""The HTTP routes of the collector, and the order of steps for a request.

The two routes for events are plain Starlette routes on raw bytes, without a validation library,
thread pool or middleware. The other routes are FastAPI's.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from headrace.ingest.collector import body as bodies
from headrace.ingest.collector.backpressure import CollectorLimits, MemoryBound, RequestShare
from headrace.ingest.collector.collector_metrics import CollectorMetrics
from headrace.ingest.collector.delivery import Delivery, Failure
from headrace.ingest.collector.openapi import document
from headrace.ingest.collector.responses import (
    NOT_ACKNOWLEDGED,
    REFUSED_BY_KAFKA,
    RETRY_AFTER_S,
    CollectorAnswer,
    EventRefusal,
    encode,
    status_of,
)
from headrace.ingest.collector.validation import check
from headrace.ingest.errors import WriteRefused
from headrace.ingest.events.json_schema import EventKind, event_schema
from headrace.runtime.clock import wall_ms
from headrace.runtime.http.bearer_tokens import Tokens
from headrace.runtime.http.docs_page import add_docs
from headrace.runtime.http.http_errors import RequestRefused
from headrace.runtime.http.server import Readiness
from headrace.runtime.http.token_grants import TokenLimits

_JSON = "application/json"
PATHS = {EventKind.IMPRESSION: "/v1/impressions", EventKind.CLICK: "/v1/clicks"}


@dataclass(frozen=True, slots=True)
class CollectorParts:
    """The parts of a collector."""

    topics: Mapping[EventKind, str]
    delivery: Delivery
    bound: MemoryBound
    tokens: Tokens
    clients: TokenLimits
    """The limits of the clients, in the order of their tokens."""
    metrics: CollectorMetrics
    readiness: Readiness
    now_ms: Callable[[], int] = wall_ms
    by_request: bool = False
    """Whether the request id of an event, if it has one, is its key."""


def make_app(parts: CollectorParts) -> FastAPI:
    """Return the application that writes events to the topics."""
    app = FastAPI(
        title="headrace collector",
        description="Accepts impressions and clicks, and acknowledges them once Kafka has them.",
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # behind TLS, it would send body and token again over http
    )
    for kind in parts.topics:
        # a plain Starlette route, before FastAPI's: FastAPI would resolve dependencies first
        answer = _Collecting(parts, kind).answer
        app.router.routes.insert(0, Route(PATHS[kind], answer, methods=["POST"]))
    _add_schemas(app)
    _add_health(app, parts.delivery, parts.readiness)

    @app.exception_handler(HTTPException)
    async def refuse_path(request: Request, error: HTTPException) -> Response:
        found = f"{request.method} {request.url.path}"
        allowed = (error.headers or {}).get("Allow", "another")
        expected = f"the method {allowed}"
        if error.status_code == 404:
            expected = " or ".join(f"POST {PATHS[kind]}" for kind in parts.topics)
        parts.metrics.refused("", error.status_code)
        answer = _refusal(RequestRefused(error.status_code, "", expected, found))
        answer.headers.update(error.headers or {})
        return answer

    def openapi() -> dict[str, Any]:
        if not app.openapi_schema:
            asks_token = bool(parts.tokens)
            app.openapi_schema = document(app, PATHS, parts.bound.limits, asks_token=asks_token)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    add_docs(app, openapi)
    return app


class _Collecting:
    """One of the two routes for events."""

    def __init__(self, parts: CollectorParts, kind: EventKind) -> None:
        self._parts, self._kind = parts, kind
        self._delivery, self._bound, self._metrics = parts.delivery, parts.bound, parts.metrics

    async def answer(self, request: Request) -> Response:
        """Answer one request.

        1. token    valid, else 401; within the limits of its client, else 429
        2. limits   room for one more request and its bytes, else 429; Kafka answers, else 503
        3. body     read, then admitted, unpacked and split within bounds, else 400, 408, 413, 415
        4. events   validate each; refuse invalid ones by index
        5. limits   room for the valid ones in the queue, else 429
        6. write    wait until Kafka has them, or the deadline passes
        7. answer   the number accepted, and the refused ones
        """
        headers, client, share = request.headers, "", RequestShare(self._bound)
        try:
            token = self._parts.tokens.check(headers.get("authorization"))
            client = self._parts.clients.name(token)
            self._parts.clients.admit(token)
            kind = bodies.content_type(headers.get("content-type", ""))
            packed = bodies.check_encoding(headers.get("content-encoding", ""))
            length = bodies.content_length(headers.get("content-length"), self._bound.limits)
            self._check_kafka()
            self._bound.check(1, 0, length)
            return await self._take(request, (kind, packed, client), share)
        except RequestRefused as refused:
            self._metrics.refused(self._kind, refused.status, client)
            return _refusal(refused)
        except ClientDisconnect:
            self._metrics.refused(self._kind, 499, client)
            return Response(status_code=499)  # the client is gone
        finally:
            share.give_back()

    async def _take(
        self, request: Request, sent: tuple[str, bool, str], share: RequestShare
    ) -> Response:
        """Answer a request of this content type, packed or not, of this client."""
        kind, packed, client = sent
        began_s = time.perf_counter()
        limits = self._bound.limits
        body = await _read(request, limits, share)
        share.take(requests=1)
        if packed:
            body = bodies.unpack_gzip(body, limits)
            share.take(bytes_up_to=len(body))
        events = bodies.split(body, kind, limits)
        parts = self._parts
        checked = check(events, parts.now_ms(), limits, by_request=parts.by_request)
        share.take(events=len(checked.messages))
        failures = await self._delivery.send(parts.topics[self._kind], checked.messages)
        refused = [*checked.refused, *map(self._not_written, failures)]
        refused.sort(key=lambda refusal: refusal.index)
        accepted = len(checked.messages) - len(failures)
        status = status_of(refused)
        self._metrics.answered(self._kind, status, accepted, refused, client)
        self._metrics.took(self._kind, time.perf_counter() - began_s)
        return _response(status, CollectorAnswer(accepted=accepted, refused=refused))

    def _check_kafka(self) -> None:
        failure = self._delivery.failure
        if failure is not None:
            raise RequestRefused(
                503, "", "a working Kafka producer", f"{failure}: this collector stops"
            )
        if self._delivery.lost:
            expected = (
                f"a Kafka broker that answered within the last {self._delivery.deadline_s:g} s"
            )
            raise RequestRefused(503, "", expected, "no answer")

    def _not_written(self, failure: Failure) -> EventRefusal:
        kafka_says_no = isinstance(failure.error, WriteRefused)
        return EventRefusal(
            index=failure.message.place,
            reason=REFUSED_BY_KAFKA if kafka_says_no else NOT_ACKNOWLEDGED,
            field="",
            expected="Kafka to accept it"
            if kafka_says_no
            else f"Kafka's acknowledgement within {self._delivery.deadline_s:g} s",
            found=str(failure.error),
        )


async def _read(request: Request, limits: CollectorLimits, share: RequestShare) -> bytes:
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for part in request.stream():
                size += len(part)
                if size > limits.body_bytes:
                    raise bodies.too_large(limits, "more")
                share.take(bytes_up_to=size)
                parts.append(part)
    except TimeoutError:
        expected = f"the whole body within {limits.body_timeout_s:g} s"
        raise RequestRefused(408, "", expected, f"{size} bytes of it") from None
    return b"".join(parts)


def _refusal(refused: RequestRefused) -> Response:
    answer = _response(refused.status, CollectorAnswer(error=refused.refusal))
    if refused.retry_s > 1:
        answer.headers["Retry-After"] = str(refused.retry_s)  # of a client beyond its rate
    if refused.status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    if refused.status in (401, 408, 413):
        answer.headers["Connection"] = "close"  # the rest of the body stays unread
    return answer


def _response(status: int, answer: CollectorAnswer) -> Response:
    response = Response(encode(answer), status, media_type=_JSON)
    if status in RETRY_AFTER_S:
        response.headers["Retry-After"] = str(RETRY_AFTER_S[status])
    return response


def _add_schemas(app: FastAPI) -> None:
    @app.get("/v1/schemas/{event}", tags=["events"], summary="JSON Schema of an event")
    async def schema(event: EventKind) -> Response:
        return Response(encode(event_schema(event)), media_type="application/schema+json")


def _add_health(app: FastAPI, delivery: Delivery, readiness: Readiness) -> None:
    @app.get("/health/live", tags=["health"], summary="Whether the process answers")
    async def live() -> Response:
        return Response(encode({"live": True}), media_type=_JSON)

    @app.get("/health/ready", tags=["health"], summary="Whether the collector accepts events")
    async def ready() -> Response:
        kafka = delivery.down_since_s is None and delivery.failure is None
        takes = kafka and not readiness.leaving
        body = encode({"ready": takes, "leaving": readiness.leaving, "kafka": kafka})
        return Response(body, 200 if takes else 503, media_type=_JSON)
