"""Serves model status, health and metrics: for people, load balancers and Prometheus."""

from collections.abc import Callable

from fastapi import FastAPI, HTTPException, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from headrace.runtime.http.server import Readiness
from headrace.serving.api.responses import ModelStatus, status
from headrace.serving.deployments.deployment_status import DeploymentStatus
from headrace.serving.models.registry import ModelRegistry, ServedModel
from headrace.serving.observers.request_coverage import RequestCoverage
from headrace.serving.requests.refusals import JSON, encode


def add_status(
    app: FastAPI,
    models: ModelRegistry,
    now_ms: Callable[[], int],
    coverage: RequestCoverage | None = None,
) -> None:
    """Add the routes for the status of models. coverage: the fields of recent requests."""

    def status_of(served: ServedModel) -> ModelStatus:
        return status(served, now_ms(), None if coverage is None else coverage.of(served))

    # not on the event loop, because a caching replica may fetch rows for the status
    @app.get("/v1/models", tags=["models"], summary="Status of every model")
    def all_models() -> Response:
        return Response(encode({"models": [status_of(each) for each in models]}), media_type=JSON)

    @app.get("/v1/models/{name}", tags=["models"], summary="Status of a model or alias")
    def one_model(name: str) -> Response:
        if name.endswith((":predict", ":rank")):  # curl without -d sends a GET
            raise HTTPException(405, headers={"Allow": "POST"})
        return Response(encode(status_of(models.find(name).served)), media_type=JSON)


def add_health(
    app: FastAPI,
    models: ModelRegistry,
    readiness: Readiness,
    deployments: Callable[[], DeploymentStatus] | None = None,
) -> None:
    """Add the probes of load balancers: liveness and readiness.

    deployments: the models of the topic `deployments`; None: the server does not follow it.
    """

    @app.get("/health/live", tags=["health"], summary="Whether the process is alive")
    async def live() -> Response:
        return Response(encode({"live": True}), media_type=JSON)

    @app.get(
        "/health/ready", tags=["health"], summary="Whether the server is ready for predictions"
    )
    async def show_ready() -> Response:
        ready = answers(models, readiness, deployments)
        body: dict[str, object] = {
            "ready": ready,
            "leaving": readiness.leaving,
            "incomplete": _incomplete(models),
            "failed": _failed(models),
        }
        if deployments is not None:
            body["deployments"] = deployments()
        return Response(encode(body), 200 if ready else 503, media_type=JSON)


def answers(
    models: ModelRegistry,
    readiness: Readiness,
    deployments: Callable[[], DeploymentStatus] | None = None,
) -> bool:
    """Return whether the server answers requests for every model that works.

    A model that failed must not take the others out of service. After the start, the server waits
    for deployed models, so that its aliases are those of the other servers.
    """
    if deployments is not None and not deployments().settled:
        return False
    return set(_incomplete(models)) <= set(_failed(models)) and not readiness.leaving


def _incomplete(models: ModelRegistry) -> list[str]:
    return [each.spec.name for each in models if not each.rows.status.complete]


def _failed(models: ModelRegistry) -> list[str]:
    return [each.spec.name for each in models if each.rows.failure is not None]


def add_metrics(app: FastAPI, registry: CollectorRegistry) -> None:
    """Add the route for Prometheus."""

    @app.get("/metrics", tags=["health"], summary="Metrics in Prometheus format")
    def show_metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
