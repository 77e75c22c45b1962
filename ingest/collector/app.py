"""The HTTP routes of the collector, and the order of steps for a request.

The two routes for events are plain Starlette routes on raw bytes, without a validation library,
thread pool or middleware. The other routes are FastAPI's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from headrace.ingest.collector import body as bodies
from headrace.ingest.collector.backpressure import CollectorLimits, MemoryBound
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
from headrace.runtime.http.bearer_tokens import Tokens
from headrace.runtime.http.docs_page import add_docs
from headrace.runtime.http.http_errors import RequestRefused
from headrace.runtime.http.token_grants import TokenLimits

if TYPE_CHECKING:
    from headrace.ingest.collector.collector_metrics import CollectorMetrics
    from headrace.ingest.collector.delivery import Delivery, Failure
    from headrace.runtime.http.server import Readiness

_JSON = "application/json"
PATHS = {EventKind.IMPRESSION: "/v1/impressions", EventKind.CLICK: "/v1/clicks"}


class CollectorClients(NamedTuple):
    """The tokens of the clients, and their limits in the same order."""

    tokens: Tokens
    limits: TokenLimits = TokenLimits(())


def make_app(
    topics: Mapping[EventKind, str],
    delivery: Delivery,
    bound: MemoryBound,
    clients: CollectorClients,
    metrics: CollectorMetrics,
    readiness: Readiness,
    now_ms: Callable[[], int],
    *,
    by_request: bool = False,
) -> FastAPI:
    """Return the application that writes events to `topics`.

    by_request: whether the request id of an event, if it has one, is its key.
    """
    app = FastAPI(
        title="headrace collector",
        description="Accepts impressions and clicks, and acknowledges them once Kafka has them.",
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # behind TLS, it would send body and token again over http
    )
    for kind, topic in topics.items():
        collecting = _Collecting(kind, topic, delivery, bound, clients, metrics, now_ms, by_request)
        # a plain Starlette route, before FastAPI's: FastAPI would resolve dependencies first
        app.router.routes.insert(0, Route(PATHS[kind], collecting.answer, methods=["POST"]))
    _add_schemas(app)
    _add_health(app, delivery, readiness)

    @app.exception_handler(HTTPException)
    async def refuse_path(request: Request, error: HTTPException) -> Response:
        found = f"{request.method} {request.url.path}"
        allowed = (error.headers or {}).get("Allow", "another")
        expected = "a path of /docs" if error.status_code == 404 else f"the method {allowed}"
        metrics.refused("", error.status_code)
        answer = _refusal(RequestRefused(error.status_code, "", expected, found))
        answer.headers.update(error.headers or {})
        return answer

    def openapi() -> dict[str, Any]:
        if not app.openapi_schema:
            app.openapi_schema = document(app, PATHS, bound.limits, asks_token=bool(clients.tokens))
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    add_docs(app, openapi)
    return app


class _Collecting:
    """One of the two routes for events."""

    def __init__(
        self,
        kind: EventKind,
        topic: str,
        delivery: Delivery,
        bound: MemoryBound,
        clients: CollectorClients,
        metrics: CollectorMetrics,
        now_ms: Callable[[], int],
        by_request: bool,
    ) -> None:
        self._by_request = by_request
        self._kind, self._topic = kind, topic
        self._delivery, self._bound, self._clients = delivery, bound, clients
        self._metrics, self._now_ms = metrics, now_ms

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
        headers, client = request.headers, ""
        try:
            token = self._clients.tokens.check(headers.get("authorization"))
            client = self._clients.limits.name(token)
            self._clients.limits.admit(token)
            kind = bodies.content_type(headers.get("content-type", ""))
            packed = bodies.check_encoding(headers.get("content-encoding", ""))
            length = bodies.content_length(headers.get("content-length"), self._bound.limits)
            self._check_kafka()
            self._bound.check(length)
        except RequestRefused as refused:
            self._metrics.refused(self._kind, refused.status, client)
            return _refusal(refused)
        taken = _Taken(self._bound)
        try:
            return await self._take(request, (kind, packed, client), taken)
        except RequestRefused as refused:
            self._metrics.refused(self._kind, refused.status, client)
            return _refusal(refused)
        except ClientDisconnect:
            self._metrics.refused(self._kind, 499, client)
            return Response(status_code=499)  # the client is gone
        finally:
            taken.give_back()

    async def _take(self, request: Request, sent: tuple[str, bool, str], taken: _Taken) -> Response:
        """Answer a request of this content type, packed or not, of this client."""
        kind, packed, client = sent
        began_s = time.perf_counter()
        limits = self._bound.limits
        body = await _read(request, limits, taken)
        taken.request()
        if packed:
            body = bodies.unpack_gzip(body, limits)
            taken.more_bytes(len(body))
        events = bodies.split(body, kind, limits)
        checked = check(events, self._now_ms(), limits, by_request=self._by_request)
        taken.events(len(checked.messages))
        failures = await self._delivery.send(self._topic, checked.messages)
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


class _Taken:
    """The share of the limits that one request holds; given back however the request ends."""

    def __init__(self, bound: MemoryBound) -> None:
        self._bound = bound
        self._requests = self._bytes = self._events = 0

    def more_bytes(self, total: int) -> None:
        """Reserve memory for a body of `total` bytes, beyond the bytes reserved already."""
        if total > self._bytes:
            self._bound.take_bytes(total - self._bytes)
            self._bytes = total

    def request(self) -> None:
        """Reserve a place: the request has arrived completely."""
        self._bound.enter()
        self._requests = 1

    def events(self, count: int) -> None:
        """Reserve places in the queue."""
        self._bound.take_events(count)
        self._events = count

    def give_back(self) -> None:
        """Release everything."""
        self._bound.leave(self._requests, self._bytes, self._events)


async def _read(request: Request, limits: CollectorLimits, taken: _Taken) -> bytes:
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for part in request.stream():
                size += len(part)
                if size > limits.body_bytes:
                    raise bodies.too_large(limits, "more")
                taken.more_bytes(size)
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
