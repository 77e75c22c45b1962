"""A collector as a process: the producer, the HTTP server, their ports, and a clean end.

When told to stop it first says that it is not ready, goes on taking events for `drain_ms` so that
whoever balances load can notice, accepts no more connections, answers the requests under way once
Kafka has their events, and only then leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import socket
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

from ingest.collector.app import Readiness, make_app
from ingest.collector.delivery import Delivery
from ingest.collector.errors import AddressTaken, BadTokens
from ingest.collector.limits import Limits, Room
from ingest.collector.metrics import CollectorMetrics
from ingest.collector.tokens import Tokens
from ingest.schema import EventKind
from ingest.topics import EventTopics, check_co_partitioned

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence

    from fastapi import FastAPI

    from ingest.settings import KafkaSettings

log = logging.getLogger(__name__)

_STOP_POLL_S = 0.05
_BACKLOG = 2048
"""Connections that may wait to be accepted; the system's own limit still holds."""
_KEEP_ALIVE_S = 75
"""Longer than load balancers keep idle connections: the one that closes must not be us, or a
request that is on its way at that moment is lost."""
_COLLECT_AFTER = 50_000
"""Objects between two looks for cycles: a batch makes thousands, and none of them is in a cycle."""


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """What may differ between two collectors of the same topics."""

    host: str = "127.0.0.1"
    """Only this machine, unless said otherwise; another needs tokens, or `anyone`."""
    port: int = 8090
    """0: a free one, which the log names."""
    tokens: Sequence[str] = field(default=(), repr=False)
    """Whoever has one may send; none: everybody who reaches the port."""
    anyone: bool = False
    """Whether to listen to other machines without tokens: something in front checks."""
    metrics_port: int = 0
    """0: no metrics are served."""
    metrics_host: str = "0.0.0.0"  # noqa: S104 - a scraper is another machine
    """Metrics say nothing of events."""
    deadline_s: float = 15.0
    """For Kafka to acknowledge an event, then it is 503: longer than a broker's restart or a change
    of leaders, shorter than clients' patience."""
    linger_ms: int = 2
    """How long an event waits for others to travel with."""
    drain_ms: int = 0
    """How long to go on taking once not ready: more than a load balancer's probe interval."""
    topics: EventTopics = field(default_factory=EventTopics)
    limits: Limits = field(default_factory=Limits)

    @property
    def finish_s(self) -> int:
        """How long requests under way may take to finish: what they wait for ends before."""
        return int(self.deadline_s) + 2


def now_ms() -> int:
    """Wall clock in milliseconds."""
    return time.time_ns() // 1_000_000


def run_collector(
    settings: CollectorSettings,
    kafka: KafkaSettings,
    stop: threading.Event,
    listening: Callable[[int], None] = lambda _: None,
) -> None:
    """Collect until `stop` is set; then finish what is under way and leave.

    `listening` is told the port once requests are accepted. Raises BadTokens, AddressTaken,
    KafkaUnreachable if no broker answers at the start, MissingTopic, TopicMismatch; and what ended
    the producer, if anything did.
    """
    tokens = _tokens(settings)
    topics = settings.topics
    check_co_partitioned(kafka, [topics.impressions, topics.clicks])
    registry = CollectorRegistry()
    for collect in (ProcessCollector, PlatformCollector, GCCollector):
        collect(registry=registry)
    metrics, room, readiness = CollectorMetrics(registry), Room(settings.limits), Readiness()
    with (
        _listening_socket(settings) as listener,
        contextlib.closing(Delivery(kafka, settings.deadline_s, settings.linger_ms)) as delivery,
        _own_metrics(settings, registry),
        _rare_collections(),
    ):
        metrics.watch(room, delivery)
        targets = {EventKind.IMPRESSION: topics.impressions, EventKind.CLICK: topics.clicks}
        app = make_app(targets, delivery, room, tokens, metrics, readiness, now_ms)
        server = _Server(_configuration(app, settings))
        listening(listener.getsockname()[1])
        log.info("collecting on http://%s:%d", *listener.getsockname()[:2])
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(server, listener, settings, delivery, readiness, stop))
    if delivery.failure is not None:
        raise delivery.failure


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the command line has its own, and sets `stop`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _configuration(app: FastAPI, settings: CollectorSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="none",  # the loop is ours: made by the runner
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=settings.finish_s,
    )


async def _serve(
    server: uvicorn.Server,
    listener: socket.socket,
    settings: CollectorSettings,
    delivery: Delivery,
    readiness: Readiness,
    stop: threading.Event,
) -> None:
    following = [asyncio.create_task(each) for each in (delivery.run(), delivery.probe())]

    def broken() -> bool:
        return delivery.failure is not None or any(task.done() for task in following)

    async def leave() -> None:
        # asked rather than awaited: an event of threads cannot wake an event loop
        while not stop.is_set() and not broken():
            await asyncio.sleep(_STOP_POLL_S)
        readiness.leaving = True
        if not broken():
            await asyncio.sleep(settings.drain_ms / 1000)
        server.should_exit = True

    tasks = [*following, asyncio.create_task(leave())]
    try:
        await server.serve([listener])
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error


def _tokens(settings: CollectorSettings) -> Tokens:
    tokens = Tokens(settings.tokens)
    if not tokens and not settings.anyone and not _is_this_machine(settings.host):
        raise BadTokens(
            f"expected tokens to listen on {settings.host}, which other machines reach, found "
            "none: --tokens / HEADRACE_COLLECT_TOKENS, or --anyone if something in front checks"
        )
    return tokens


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextlib.contextmanager
def _listening_socket(settings: CollectorSettings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            taken = "--port / HEADRACE_PORT"
            raise AddressTaken(settings.host, settings.port, taken, str(error.strerror)) from error
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        yield listener


@contextlib.contextmanager
def _own_metrics(settings: CollectorSettings, registry: CollectorRegistry) -> Iterator[None]:
    if not settings.metrics_port:
        yield
        return
    host, port = settings.metrics_host, settings.metrics_port
    try:
        server, thread = start_http_server(port, host, registry=registry)
    except OSError as error:
        taken = "--metrics-port / HEADRACE_METRICS_PORT"
        raise AddressTaken(host, port, taken, str(error.strerror)) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for cycles rarely, as long as this lasts."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
