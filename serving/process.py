"""A server as a process: the replicas' threads, the HTTP server, their ports, and a clean end."""

from __future__ import annotations

import contextlib
import logging
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from headrace.ingest.http import (
    Draining,
    Readiness,
    Tokens,
    is_this_machine,
    listening_socket,
    metrics_port,
    new_registry,
    run_app,
    tokens_for,
)
from headrace.ingest.kafka import KafkaWriter
from headrace.ingest.runtime import instance_name, publish_status, rare_collections, wall_ms
from headrace.serving.api import AppParts, RequestMetrics, choose_protocol, make_app
from headrace.serving.models import Aliases, ModelRegistry, SnapshotModel, StoreModel, open_models
from headrace.serving.observers import (
    PredictionLog,
    PredictionLogSettings,
    Shadows,
    ensure_predictions,
)
from headrace.serving.page import StatusReader, page_routes
from headrace.serving.replicas import Following
from headrace.serving.requests import RequestLimits

if TYPE_CHECKING:
    import socket
    import threading
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from prometheus_client import CollectorRegistry

    from headrace.ingest.kafka import KafkaSettings, Writer
    from headrace.pserver import StoreError
    from headrace.serving.replicas import CacheBounds, LocalRows

__all__ = ["ServerSettings", "SnapshotModel", "StoreModel", "run_server", "serve"]

log = logging.getLogger(__name__)

_SWITCH_INTERVAL_S = 0.0005
"""How long the follower may keep the interpreter from a request that waits for it. Python's default
of 5 ms would be half of the whole budget of a request."""
_LOST_S = 10.0
"""A log that Kafka has not taken for so long is given up: what waits for it is in memory."""
COLLECT_AFTER = 20_000
"""Objects between two looks for cycles: Python's default of 700 looks several times a request."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What may differ between two servers of the same models."""

    host: str = "127.0.0.1"
    """Only this machine, unless said otherwise; another needs tokens, or `anyone`."""
    port: int = 8080
    """0: a free one, which the log names."""
    tokens: Sequence[str] = field(default=(), repr=False)
    """Whoever has one may ask for predictions; none: everybody who reaches the port."""
    anyone: bool = False
    """Whether to listen to other machines without tokens: something in front checks."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Alias -> model, to begin with."""
    admin_tokens: Sequence[str] = field(default=(), repr=False)
    """Whoever has one may change aliases; none: nobody, unless only this machine can ask."""
    aliases_file: Path | None = None
    """Where switched aliases outlive the server; none: they do not."""
    metrics_port: int = 0
    """A port of its own for metrics; they are also at /metrics. 0: none."""
    metrics_host: str = "0.0.0.0"  # noqa: S104 - a scraper is another machine
    """Metrics say nothing of events."""
    drain_ms: int = 0
    """How long to go on answering once not ready: more than a load balancer's probe interval."""
    finish_s: int = 5
    """How long requests under way may take to finish."""
    following: Following = field(default_factory=Following)
    bounds: CacheBounds | None = None
    """How many rows of each model that follows are held; None: all of them."""
    limits: RequestLimits = field(default_factory=RequestLimits)
    told_to: KafkaSettings | None = None
    """Whose topic `status` this server tells how it is, and the page draws; None: no page."""

    predictions_to: KafkaSettings | None = None
    """Whose topic `predictions` has what was served; None: it is not logged."""
    predictions_partitions: int = 4
    """Of that topic, where it is not there yet: as many as `impressions` has."""
    predictions: PredictionLogSettings = field(default_factory=PredictionLogSettings)


class Runnable(Protocol):
    """What has a thread of its own."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End."""


def run_server(
    settings: ServerSettings,
    models: Sequence[StoreModel | SnapshotModel],
    stop: threading.Event,
    listening: Callable[[int], None] = lambda _: None,
) -> None:
    """Serve until `stop` is set; then finish what is under way and leave.

    `listening` is told the port once requests are accepted. A model whose first copy fails is
    refused with the reason, and tried again, as long as there are others. Raises WrongModel if a
    store's model is of another spec, what the first copy failed of if all models' did,
    AddressTaken, BadTokens, BadAlias.
    """
    tokens_of(settings)  # refused before anything is opened
    registry = new_registry()
    served = ModelRegistry(
        open_models(models, settings.following, settings.bounds, settings.limits, registry),
        Aliases(
            [each.spec.name for each in models], settings.aliases, wall_ms, settings.aliases_file
        ),
    )
    ending = _ServerExit([each.rows for each in served])
    with listening_socket(settings.host, settings.port) as listener:
        serve(settings, served, registry, listener, stop, listening, broken=ending.broken)
    if ending.failure is not None:
        raise ending.failure


def serve(
    settings: ServerSettings,
    served: ModelRegistry,
    registry: CollectorRegistry,
    listener: socket.socket,
    stop: threading.Event,
    listening: Callable[[int], None],
    *,
    broken: Callable[[], bool],
    alone: bool = True,
) -> None:
    """Serve these models on `listener` until `stop` is set or it is `broken`; then leave.

    alone: no other process answers on this socket. Raises AddressTaken, BadTokens.
    """
    tokens = tokens_of(settings)
    rows = [each.rows for each in served]
    metrics = RequestMetrics(registry)
    beside = _beside(settings, served, metrics)
    parts = AppParts(
        *(served, metrics, registry, wall_ms, settings.limits, Readiness(), tokens),
        admin_tokens=Tokens(settings.admin_tokens),
        admin_open=is_this_machine(settings.host),
        beside=beside,
        metrics_here=alone,
    )
    with (
        publish_status(settings.told_to, "server", instance_name(), registry),
        metrics_port(settings.metrics_host, settings.metrics_port, registry),
        running([*rows, *beside]),
        _page_of(settings.told_to) as page,
        rare_collections(COLLECT_AFTER),
        _quick_switches(),
    ):
        app = make_app(parts)
        if page is not None:
            app.include_router(page_routes(page))
        leaving = Draining(stop, parts.readiness, broken, settings.drain_ms, settings.finish_s)
        listening(listener.getsockname()[1])
        names = ", ".join(served.names())
        log.info("serving %s on http://%s:%d", names, *listener.getsockname()[:2])
        run_app(app, listener, leaving, protocol=choose_protocol())
        app.state.answering.close()


def tokens_of(settings: ServerSettings) -> Tokens:
    """Return who may ask. Raises BadTokens if everybody could who is on another machine."""
    return tokens_for(
        settings.tokens,
        settings.host,
        "--tokens / HEADRACE_SERVING_TOKENS",
        anyone=settings.anyone,
    )


class _ServerExit:
    """Whether there is any use in going on."""

    def __init__(self, rows: Sequence[LocalRows]) -> None:
        self._rows = rows
        self.failure: StoreError | None = None
        """What the server ends with."""

    def broken(self) -> bool:
        """Return whether there is no model left that is answered, or will be."""
        failures = [each.failure for each in self._rows if each.failure is not None]
        if len(failures) == len(self._rows):
            self.failure = failures[0]
        return self.failure is not None


def _beside(
    settings: ServerSettings, models: ModelRegistry, metrics: RequestMetrics
) -> list[Shadows | PredictionLog]:
    """Return who is told of every answer."""
    logs: list[PredictionLog] = []
    kafka = settings.predictions_to
    if kafka is not None:
        impatient = replace(kafka, lost_timeout_s=_LOST_S)

        def open_writer() -> Writer:
            ensure_predictions(kafka, settings.predictions_partitions)
            return KafkaWriter(impatient)

        logs.append(PredictionLog(settings.predictions, open_writer, metrics.logged))
    return [*logs, Shadows(models, metrics.shadowed, logs)]


@contextlib.contextmanager
def _page_of(kafka: KafkaSettings | None) -> Iterator[StatusReader | None]:
    if kafka is None:
        yield None
        return
    reader = StatusReader(kafka, wall_ms)
    try:
        yield reader
    finally:
        reader.close()


@contextlib.contextmanager
def running(threads: Sequence[Runnable]) -> Iterator[None]:
    """Let these run as long as this lasts."""
    for each in threads:
        each.start()
    try:
        yield
    finally:
        for each in reversed(threads):
            each.stop()


@contextlib.contextmanager
def _quick_switches() -> Iterator[None]:
    """Let threads take turns quickly, as long as this lasts."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)
