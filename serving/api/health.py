"""How models stand, and whether the server is well: for people, balancers and Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from headrace.ingest.http import RequestRefused
from headrace.serving.api.responses import status
from headrace.serving.requests import JSON, as_response, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from headrace.ingest.http import Readiness
    from headrace.serving.models import ModelRegistry


def add_status(app: FastAPI, models: ModelRegistry, now_ms: Callable[[], int]) -> None:
    """Add what tells of models."""

    @app.get("/v1/models", tags=["models"], summary="How every model stands")
    async def all_models() -> Response:
        now = now_ms()
        body = encode({"models": [status(each, now) for each in models]})
        return Response(body, media_type=JSON)

    @app.get("/v1/models/{name}", tags=["models"], summary="How a model, or an alias, stands")
    async def one_model(name: str) -> Response:
        try:
            served = models.find(name).served
        except RequestRefused as refused:
            return as_response(refused)
        return Response(encode(status(served, now_ms())), media_type=JSON)


def add_health(app: FastAPI, models: ModelRegistry, readiness: Readiness) -> None:
    """Add what a balancer asks."""

    @app.get("/health/live", tags=["health"], summary="Whether the process answers at all")
    async def live() -> Response:
        return Response(encode({"live": True}), media_type=JSON)

    @app.get("/health/ready", tags=["health"], summary="Whether predictions are answered")
    async def ready() -> Response:
        waiting = [each.spec.name for each in models if not each.rows.standing.complete]
        # one that cannot be completed is no reason to leave the others unasked
        failed = [each.spec.name for each in models if each.rows.failure is not None]
        answers = set(waiting) <= set(failed) and not readiness.leaving
        body = encode(
            {
                "ready": answers,
                "leaving": readiness.leaving,
                "incomplete": waiting,
                "failed": failed,
            }
        )
        return Response(body, 200 if answers else 503, media_type=JSON)


def add_metrics(app: FastAPI, registry: CollectorRegistry) -> None:
    """Add what Prometheus asks, where it has no port of its own."""

    @app.get("/metrics", tags=["health"], summary="Metrics in Prometheus format")
    def show_metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
