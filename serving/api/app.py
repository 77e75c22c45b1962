"""Assembles the HTTP application of a server.

The two routes that take thousands of requests a second, `:predict` and `:rank`, bypass FastAPI and
work on raw bytes. All other routes are plain FastAPI.
"""

import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from fastapi import FastAPI, Request, Response
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headrace.runtime.http.bearer_tokens import Tokens
from headrace.runtime.http.docs_page import add_docs
from headrace.runtime.http.http_errors import RequestRefused
from headrace.runtime.http.server import Readiness
from headrace.runtime.http.token_grants import TokenGrant, TokenLimits
from headrace.serving.api.admin import AdminAdmission, add_admin
from headrace.serving.api.handler import PredictionHandler, PredictVerb, RankVerb
from headrace.serving.api.health import add_health, add_metrics, add_status
from headrace.serving.api.load_shedding import BodySource, LoadShedder, WholeRequest
from headrace.serving.api.openapi import document
from headrace.serving.api.request_metrics import RequestMetrics
from headrace.serving.deployments.deployment_status import DeploymentStatus
from headrace.serving.models.prediction import AnswerObserver, RequestVerb
from headrace.serving.models.registry import ModelRegistry
from headrace.serving.observers.request_coverage import RequestCoverage
from headrace.serving.requests.limits import RequestLimits
from headrace.serving.requests.refusals import as_response

Ask = Callable[[BodySource | WholeRequest, str], Coroutine[Any, Any, Response]]
"""Answers a request to the model or alias of this name."""

LONGEST_PATH = 200
"""Bytes of the longest path in the cache of routes. Bounds the cache's memory."""
_PATHS = 256
"""Paths in the cache of routes."""
_PLAIN = re.compile(rb"[\w/:.@~-]+").fullmatch
"""A path without percent escapes and without a query string."""
_MODELS = "/v1/models/"
_VERB = re.compile(r"^/v1/models/[^/]+:[^/]*$")


@dataclass(frozen=True, slots=True)
class AppParts:
    """Dependencies of an application."""

    models: ModelRegistry
    metrics: RequestMetrics
    registry: CollectorRegistry
    now_ms: Callable[[], int]
    limits: RequestLimits = field(default_factory=RequestLimits)
    readiness: Readiness = field(default_factory=Readiness)
    tokens: Tokens = field(default_factory=Tokens)
    """Tokens for predictions."""
    grants: Sequence[TokenGrant] = ()
    """Limits of the clients, in the order of `tokens`; empty: no limits."""
    admin_tokens: Tokens = field(default_factory=Tokens)
    """Tokens for changes of aliases."""
    admin_grants: Sequence[TokenGrant] = ()
    """Limits of administrators, in the order of `admin_tokens`; empty: no limits."""
    admin_open: bool = False
    """Whether aliases may be changed without a token if `admin_tokens` is empty."""
    observers: Sequence[AnswerObserver] = ()
    """Receive every answer."""
    coverage: RequestCoverage | None = None
    """Samples the fields of requests; None: no samples."""
    deployments: Callable[[], DeploymentStatus] | None = None
    """The models of the topic `deployments`; None: the server does not follow it."""
    metrics_here: bool = True
    """Whether to serve /metrics. False where several processes share a port: a scrape would reach
    any one of them."""


class App(FastAPI):
    """A FastAPI application whose `:predict` and `:rank` bypass middleware and routing.

    For a short request, FastAPI's middleware and its linear search of routes cost as much as the
    prediction itself.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.handlers: dict[str, Ask] = {}
        """Handlers by verb (`predict`, `rank`)."""
        self.handler_at = lru_cache(_PATHS)(self._handler_at)
        """A cached `handler_of` for raw paths of at most LONGEST_PATH bytes. None for paths with
        escapes or a query string."""

    def handler_of(self, path: str) -> tuple[Ask, str] | None:
        """Return the handler and the model's name for a POST to this path; None: FastAPI's."""
        name, _, verb = path.removeprefix(_MODELS).rpartition(":")
        ask = self.handlers.get(verb)
        return (ask, name) if ask is not None and name and "/" not in name else None

    def _handler_at(self, path: bytes) -> tuple[Ask, str] | None:
        return self.handler_of(path.decode()) if _PLAIN(path) else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Starlette."""
        if scope["type"] == "http" and scope["method"] == "POST":
            found = self.handler_of(scope["path"])
            if found is not None:
                ask, name = found
                answer = await ask(Request(scope, receive), name)
                await answer(scope, receive, send)
                return
        await super().__call__(scope, receive, send)


def make_app(parts: AppParts) -> App:
    """Return the application."""
    app = App(
        title="headrace",
        description="Predictions of models that learn from events within a second.",
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # behind TLS, it would send body and token again over http
    )
    models, shedder = parts.models, LoadShedder(parts.limits)
    parts.metrics.watch(shedder)
    observers = [*parts.observers, *filter(None, [parts.coverage])]
    client_limits = app.state.client_limits = TokenLimits(parts.grants)
    answering = PredictionHandler(
        *(models, shedder, parts.tokens, parts.metrics, parts.now_ms, observers),
        limits=client_limits,
    )
    verbs: dict[str, RequestVerb] = {"predict": PredictVerb(), "rank": RankVerb()}
    for name, verb in verbs.items():
        ask = app.handlers[name] = partial(answering.answer, verb=verb)
        path = f"/v1/models/{{name}}:{name}"
        app.router.routes.insert(0, Route(path, _routed(ask), methods=["POST"]))
    add_status(app, models, parts.now_ms, parts.coverage)
    admin_limits = app.state.admin_limits = TokenLimits(parts.admin_grants)
    admission = AdminAdmission(
        *(parts.admin_tokens, admin_limits, parts.metrics),
        open_to_all=parts.admin_open,
    )
    add_admin(app, models.aliases, admission)
    add_health(app, models, parts.readiness, parts.deployments)
    if parts.metrics_here:
        add_metrics(app, parts.registry)

    posts = " or ".join(f"POST /v1/models/NAME:{verb}" for verb in verbs)

    @app.exception_handler(RequestRefused)
    async def refuse(_: Request, refused: RequestRefused) -> Response:
        return as_response(refused)

    @app.exception_handler(HTTPException)
    async def refuse_path(request: Request, error: HTTPException) -> Response:
        found, headers = f"{request.method} {request.url.path}", error.headers or {}
        status, expected = error.status_code, f"the method {headers.get('Allow', 'another')}"
        if status == 405 and request.method == "POST" and _VERB.search(request.url.path):
            # the route of the status, a GET, takes any text as the name of a model
            status, headers, expected = 404, {}, posts
        elif status == 404:
            expected = f"{posts}, or another path of /docs"
        answer = as_response(RequestRefused(status, "", expected, found))
        answer.headers.update(headers)
        return answer

    described: list[str] = []

    def openapi() -> dict[str, Any]:
        names = models.names()
        if not app.openapi_schema or names != described:
            app.openapi_schema = document(app, models, asks_token=bool(parts.tokens))
            described[:] = names  # models may come and go
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    add_docs(app, openapi)
    app.state.answering = answering
    return app


def _routed(ask: Ask) -> Callable[[Request], Awaitable[Response]]:
    async def routed(request: Request) -> Response:
        return await ask(request, request.path_params["name"])

    return routed
