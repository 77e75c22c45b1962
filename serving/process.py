"""A server as a process: the replica's thread, the HTTP server, their ports, and a clean end.

When told to stop it first says that it is not ready, goes on answering for `drain_ms` so that
whoever balances load can notice, finishes the requests under way, and only then leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import uvicorn
import uvloop
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)

from learner.agreement import check_agreement
from learner.logistic import LogisticRegression
from pserver.replica import Replica
from pserver.table import RowTable
from serving.app import Readiness, Served, make_app
from serving.errors import AddressTaken
from serving.follower import Follower, Following
from serving.metrics import FreshnessMetrics, ReplicaCollector, RequestMetrics
from serving.predictor import Predictor
from serving.request import Limits, RequestDecoder

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Coroutine, Iterator

    from fastapi import FastAPI

    from learner.spec import ModelSpec
    from pserver.store import Store

    Leave = Callable[[], Coroutine[None, None, None]]

log = logging.getLogger(__name__)

_STOP_POLL_S = 0.05
_BACKLOG = 2048
"""Connections that may wait to be accepted; the system's own limit still holds."""
_SWITCH_INTERVAL_S = 0.0005
"""How long the follower may keep the interpreter from a request that waits for it. Python's default
of 5 ms would be half of the whole budget of a request."""

_COLLECT_AFTER = 20_000
"""Objects between two looks for cycles: Python's default of 700 looks several times a request. What
was imported is taken out of the search altogether, which else stops everything for tens of ms."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What may differ between two servers of the same model."""

    host: str = "127.0.0.1"
    """Only this machine, unless said otherwise: there are no tokens here."""
    port: int = 8080
    """0: a free one, which the log names."""
    metrics_port: int = 0
    """A port of its own for metrics; they are also at /metrics. 0: none."""
    metrics_host: str = "0.0.0.0"  # noqa: S104 - a scraper is another machine
    """Metrics say nothing of events."""
    drain_ms: int = 0
    """How long to go on answering once not ready: more than a load balancer's probe interval."""
    finish_s: int = 5
    """How long requests under way may take to finish."""
    following: Following = field(default_factory=Following)
    limits: Limits = field(default_factory=Limits)


def now_ms() -> int:
    """Wall clock in milliseconds."""
    return time.time_ns() // 1_000_000


def run_server(
    settings: ServerSettings,
    spec: ModelSpec,
    store: Store,
    stop: threading.Event,
    listening: Callable[[int], None] = lambda _: None,
) -> None:
    """Serve until `stop` is set; then finish what is under way and leave.

    The store is used by this server alone until it returns, and stays open. `listening` is told the
    port once requests are accepted. Raises WrongModel if the store's model is of another spec, the
    other errors of pserver.errors if the first copy fails, AddressTaken.
    """
    shape = store.shape()
    check_agreement(spec, shape)
    registry = CollectorRegistry()
    for collect in (ProcessCollector, PlatformCollector, GCCollector):
        collect(registry=registry)
    follower = Follower(
        Replica(store, shape),
        settings.following,
        now_ms,
        FreshnessMetrics(registry).of(spec.name),
    )
    registry.register(ReplicaCollector(spec.name, lambda: follower.standing, now_ms))
    served = Served(
        spec,
        RequestDecoder(spec.fields, settings.limits),
        Predictor(spec.fields, LogisticRegression(spec, shape.buckets)),
        follower,
    )
    # compiles the kernels, or loads them: the first request is not to pay for it
    served.predictor.predict(RowTable(spec.width), {}, [{}], now_ms())
    readiness = Readiness()
    app = make_app(
        {spec.name: served}, RequestMetrics(registry), registry, readiness, now_ms, settings.limits
    )
    with (
        _listening_socket(settings) as listener,
        _own_metrics(settings, registry),
        _running(follower),
        _settled_interpreter(),
    ):
        server = _Server(_configuration(app, settings))
        leave = _leaving(server, settings, readiness, follower, stop)
        listening(listener.getsockname()[1])
        log.info("serving %s on http://%s:%d", spec.name, *listener.getsockname()[:2])
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(server, listener, leave))
    if follower.failure is not None:
        raise follower.failure


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the command line has its own, and sets `stop`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _configuration(app: FastAPI, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="none",  # the loop is ours: made by the runner
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=settings.finish_s,
    )


async def _serve(
    server: uvicorn.Server,
    listener: socket.socket,
    leave: Callable[[], Coroutine[None, None, None]],
) -> None:
    leaving = asyncio.create_task(leave())
    await server.serve([listener])
    leaving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await leaving


def _leaving(
    server: uvicorn.Server,
    settings: ServerSettings,
    readiness: Readiness,
    follower: Follower,
    stop: threading.Event,
) -> Leave:
    async def leave() -> None:
        # asked rather than awaited: an event of threads cannot wake an event loop
        while not stop.is_set() and follower.failure is None:
            await asyncio.sleep(_STOP_POLL_S)
        readiness.leaving = True
        if follower.failure is None:
            await asyncio.sleep(settings.drain_ms / 1000)
        server.should_exit = True

    return leave


@contextlib.contextmanager
def _listening_socket(settings: ServerSettings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            raise AddressTaken(settings.host, settings.port, str(error.strerror)) from error
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        yield listener


@contextlib.contextmanager
def _own_metrics(settings: ServerSettings, registry: CollectorRegistry) -> Iterator[None]:
    if not settings.metrics_port:
        yield
        return
    try:
        server, thread = start_http_server(
            settings.metrics_port, settings.metrics_host, registry=registry
        )
    except OSError as error:
        raise AddressTaken(
            settings.metrics_host, settings.metrics_port, str(error.strerror)
        ) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def _running(follower: Follower) -> Iterator[None]:
    follower.start()
    try:
        yield
    finally:
        follower.stop()


@contextlib.contextmanager
def _settled_interpreter() -> Iterator[None]:
    """Keep the interpreter's own pauses out of the requests, as long as this lasts."""
    switch_interval_s, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        sys.setswitchinterval(switch_interval_s)
