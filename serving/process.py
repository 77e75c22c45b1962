"""Runs a server as a process: threads of the replicas, the HTTP server, and a clean shutdown.

`run_server` opens the models and serves them; `serve` is the part that worker processes share.
"""

import contextlib
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from prometheus_client import CollectorRegistry

from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Writer
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.status import status_in
from headrace.pserver.errors import StoreError
from headrace.runtime.clock import wall_ms
from headrace.runtime.http.bearer_tokens import Tokens
from headrace.runtime.http.listen_settings import ListenSettings
from headrace.runtime.http.local_senders import is_this_machine
from headrace.runtime.http.metrics_server import new_registry
from headrace.runtime.http.server import Draining, Readiness, listening_socket, run_app
from headrace.runtime.http.token_files import RereadTokens, TokenSource, rereading
from headrace.runtime.http.token_grants import TokenGrant, TokenLimits
from headrace.runtime.process import running_process
from headrace.serving.api.app import AppParts, make_app
from headrace.serving.api.fast_path_probe import choose_protocol
from headrace.serving.api.health import answers
from headrace.serving.api.request_metrics import RequestMetrics
from headrace.serving.deployments.deployment_status import DeploymentCollector
from headrace.serving.deployments.registered_model import RegisteredModel
from headrace.serving.deployments.topic_follower import DEPLOYMENTS_TOPIC, TopicFollower
from headrace.serving.models.aliases import Aliases
from headrace.serving.models.loading import ModelLoader, SnapshotModel, StoreModel, compatible_spec
from headrace.serving.models.registry import ModelRegistry
from headrace.serving.observers.bounded_worker import BoundedWorker
from headrace.serving.observers.prediction_log import (
    PredictionLog,
    PredictionLogSettings,
    ensure_predictions,
)
from headrace.serving.observers.request_coverage import RequestCoverage
from headrace.serving.observers.score_sums import ScoreSums
from headrace.serving.observers.shadows import Shadows
from headrace.serving.page.experiment_reader import ExperimentReader
from headrace.serving.page.routes import page_routes
from headrace.serving.page.status_reader import StatusReader
from headrace.serving.replicas.caching_follower import CacheBounds
from headrace.serving.replicas.follower import Following
from headrace.serving.replicas.replica_metrics import ReplicaCollector
from headrace.serving.replicas.status import LocalRows
from headrace.serving.requests.limits import RequestLimits

log = logging.getLogger(__name__)

_SWITCH_INTERVAL_S = 0.0005
"""Longest time that another thread holds the interpreter while a request waits for it. Python's
default of 5 ms would be half the latency budget of a request."""
_LOST_S = 10.0
"""Time after which the prediction log gives up a writer: unacknowledged messages are in memory."""
OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""Python's default of 700 would collect garbage several times per request. A thousand new
connections have 20,000 objects: a search through them would delay all requests by 5 to 15 ms."""


@dataclass(frozen=True, slots=True)
class ServerSettings(ListenSettings):
    """Settings that may differ between servers of the same models."""

    port: int = 8080
    """0: a free port, which the log names."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Alias -> model, at the start."""
    admin_tokens: Sequence[str] = field(default=(), repr=False)
    """Tokens for changes of aliases; empty: changes are allowed on a loopback address only."""
    admin_tokens_from: TokenSource = field(default=TokenSource(), repr=False)
    """Source of the tokens of administrators."""
    grants: Sequence[TokenGrant] = field(default=(), repr=False)
    """Limits of the clients, in the order of `tokens`; empty: no limits."""
    admin_grants: Sequence[TokenGrant] = field(default=(), repr=False)
    """Limits of administrators, in the order of `admin_tokens`; empty: no limits."""
    aliases_file: Path | None = None
    """File in which switched aliases survive the server; None: they do not."""
    finish_s: int = 5
    """Time for open requests to finish."""
    following: Following = field(default_factory=Following)
    bounds: CacheBounds | None = None
    """Row cache of each model that follows a store; None: full replicas."""
    limits: RequestLimits = field(default_factory=RequestLimits)
    told_to: KafkaSettings | None = None
    """Kafka with the topic `status`, to which this server reports, and which its page draws; None:
    no page."""

    relayed_from: KafkaSettings | None = None
    """Kafka with the topics of relays, which this server reads in place of the logs; None: it
    follows the logs."""

    deployments_from: KafkaSettings | None = None
    """Kafka with the topic `deployments`, whose models and aliases this server takes; None: it has
    the models and aliases of its flags only."""

    predictions_to: KafkaSettings | None = None
    """Kafka with the topic `predictions`; None: predictions are not logged."""
    predictions_partitions: int = 4
    """Partitions of that topic if it is created: as many as `impressions` has."""
    predictions: PredictionLogSettings = field(default_factory=PredictionLogSettings)

    def loader(self, registry: CollectorRegistry) -> ModelLoader:
        """Return a loader of models, with its metrics in the registry."""
        return ModelLoader(
            *(self.following, self.bounds, self.limits, registry), relay=self.relayed_from
        )


def run_server(
    settings: ServerSettings,
    models: Sequence[StoreModel | SnapshotModel],
    stop: threading.Event,
    listening: Callable[[int], None] = lambda _: None,
    deploying: Callable[[str, ExitStack], StoreModel] | None = None,
) -> None:
    """Serve until `stop` is set; then drain and end.

    listening: called with the port once requests are accepted. deploying: opens the model of the
    text of a spec in the topic `deployments`; needed with `deployments_from`. A model whose first
    copy fails refuses requests with the reason and retries, as long as another model works. Raises
    WrongModel if the spec of a store's model differs, the error of a first copy if all models fail,
    AddressTaken, BadTokens, BadAlias.
    """
    tokens_of(settings)  # fail before opening anything
    registry = new_registry()
    loader = settings.loader(registry)
    served = ModelRegistry(
        [loader.load(each, shape) for each, shape in compatible_spec(models)],
        Aliases(
            [each.spec.name for each in models], settings.aliases, wall_ms, settings.aliases_file
        ),
    )
    registry.register(ReplicaCollector(served, wall_ms))
    deployed: TopicFollower | None = None
    if settings.deployments_from is not None and deploying is not None:
        opening = partial(RegisteredModel, served, loader, deploying)
        fixed = {each.spec.name: each.spec.text for each in models}
        reading = partial(KafkaReader, settings.deployments_from, None, [DEPLOYMENTS_TOPIC])
        deployed = TopicFollower(reading, opening, served.aliases, fixed)
    with listening_socket(settings.host, settings.port) as listener:
        serve(settings, served, registry, listener, stop, listening, deployed=deployed)


def serve(
    settings: ServerSettings,
    served: ModelRegistry,
    registry: CollectorRegistry,
    listener: socket.socket,
    stop: threading.Event,
    listening: Callable[[int], None],
    *,
    deployed: TopicFollower | None = None,
    alone: bool = True,
) -> None:
    """Serve these models on `listener` until `stop` is set.

    deployed: loads further models. alone: whether no other process answers on this socket. Such a
    server ends once all of its models have failed. Raises their first error, AddressTaken,
    BadTokens.
    """
    parts = _app_parts(settings, served, registry, deployed, alone=alone)
    rows, failures = [each.rows for each in served], list[StoreError]()
    working = [each for each in parts.observers if isinstance(each, BoundedWorker)]
    with (
        running_process(
            "server",
            status_in(settings.told_to),
            registry,
            settings.metrics_address,
            objects_between_collections=OBJECTS_BETWEEN_COLLECTIONS,
            api_address=listener.getsockname()[:2] if alone else None,
        ) as health,
        running([*rows, *filter(None, [deployed]), *working]),
        _page_of(settings.told_to) as page,
        _quick_switches(),
    ):
        app = make_app(parts)
        if page is not None:
            app.include_router(page)
        health.ready_when(lambda: answers(served, parts.readiness, parts.deployments))

        def ended() -> bool:
            health.stepped()  # the event loop asks while it is alive
            if alone and not failures:
                failures.extend(failures_of_all(rows))
            return bool(failures)

        leaving = Draining(stop, parts.readiness, ended, settings.drain_ms, settings.finish_s)
        listening(listener.getsockname()[1])
        names = ", ".join(served.names())
        log.info("serving %s on http://%s:%d", names, *listener.getsockname()[:2])
        with rereading(
            RereadTokens(settings.tokens_from, parts.tokens, app.state.client_limits),
            RereadTokens(settings.admin_tokens_from, parts.admin_tokens, app.state.admin_limits),
        ):
            run_app(
                *(app, listener, leaving),
                protocol=choose_protocol(),
                local_only=settings.local_only,
            )
        app.state.answering.close()
    if failures:
        raise failures[0]


def _app_parts(
    settings: ServerSettings,
    served: ModelRegistry,
    registry: CollectorRegistry,
    deployed: TopicFollower | None,
    *,
    alone: bool,
) -> AppParts:
    """Return the parts of the application, with their metrics in the registry."""
    metrics, coverage = RequestMetrics(registry), RequestCoverage(served, wall_ms)
    registry.register(coverage)
    parts = AppParts(
        *(served, metrics, registry, wall_ms, settings.limits, Readiness(), tokens_of(settings)),
        grants=settings.grants,
        admin_tokens=Tokens(settings.admin_tokens),
        admin_grants=settings.admin_grants,
        admin_open=is_this_machine(settings.host),
        observers=_observers(settings, served, metrics, registry),
        coverage=coverage,
        metrics_here=alone,
        deployments=None if deployed is None else lambda: deployed.status,
    )
    if parts.deployments is not None:
        registry.register(DeploymentCollector(parts.deployments))
    return parts


def failures_of_all(rows: Sequence[LocalRows]) -> list[StoreError]:
    """Return the errors of all models; empty while one of them works."""
    failures = [each.failure for each in rows if each.failure is not None]
    return failures if len(failures) == len(rows) else []


def tokens_of(settings: ServerSettings) -> Tokens:
    """Return the tokens for predictions. Raises BadTokens if other machines need none."""
    TokenLimits(settings.grants)
    TokenLimits(settings.admin_grants)
    return settings.checked_tokens("--tokens / HEADRACE_SERVING_TOKENS")


def _observers(
    settings: ServerSettings,
    models: ModelRegistry,
    metrics: RequestMetrics,
    registry: CollectorRegistry,
) -> list[Shadows | PredictionLog | ScoreSums]:
    """Return the observers of answers."""
    logs: list[PredictionLog | ScoreSums] = []
    if settings.deployments_from is not None:
        sums = ScoreSums()
        registry.register(sums)
        logs.append(sums)
    kafka = settings.predictions_to
    if kafka is not None:
        short_timeout = replace(kafka, lost_timeout_s=_LOST_S)

        def open_writer() -> Writer:
            ensure_predictions(kafka, settings.predictions_partitions)
            return KafkaWriter(short_timeout)

        logs.append(PredictionLog(settings.predictions, open_writer, metrics.logged))
    return [*logs, Shadows(models, metrics.shadowed, logs)]


@contextlib.contextmanager
def _page_of(kafka: KafkaSettings | None) -> Iterator[APIRouter | None]:
    if kafka is None:
        yield None
        return
    experiments = ExperimentReader(kafka)
    with StatusReader(kafka, wall_ms) as reader:
        try:
            yield page_routes(reader, experiments)
        finally:
            experiments.stop()


@contextlib.contextmanager
def running(threads: Sequence[LocalRows | TopicFollower | BoundedWorker[Any]]) -> Iterator[None]:
    """Run the threads within the context."""
    for each in threads:
        each.start()
    try:
        yield
    finally:
        for each in reversed(threads):
            each.stop()


@contextlib.contextmanager
def _quick_switches() -> Iterator[None]:
    """Shorten the interpreter's switch interval within the context."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)
