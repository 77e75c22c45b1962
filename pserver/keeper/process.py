"""The keeper process: a keeper with its clock, random numbers and metrics."""

from __future__ import annotations

import logging
import secrets
import socket
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.keeper.metrics import KeeperMetrics

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from headrace.pserver.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeeperSettings:
    """Settings that may differ between two keepers of the same model."""

    name: str = ""
    """Shown as the keeper of buckets; the host's name if empty."""
    metrics_port: int = 0
    """Port of the metrics endpoint; 0 for no endpoint."""
    metrics_host: str = "0.0.0.0"  # noqa: S104 - a scraper runs on another machine
    idle_s: float = 0.1
    """Pause after a step without work: short compared to the time that the log is kept."""
    keeping: FoldPolicy = field(default_factory=FoldPolicy)


def run_keeper(
    settings: KeeperSettings,
    store: Store,
    stop: threading.Event,
    telling: Callable[[CollectorRegistry], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> None:
    """Run a keeper until `stop` is set, then release its buckets. Raises the kinds of StoreError.

    telling: a context around the run, which gets this keeper's metrics.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    shape = store.shape()
    keeper = Keeper(
        store,
        shape,
        name=settings.name or socket.gethostname(),
        keeping=settings.keeping,
        now_ms=lambda: time.monotonic_ns() // 1_000_000,
        draw_nonce=lambda: secrets.token_bytes(8),
        metrics=KeeperMetrics(shape.model, registry),
    )
    server = None
    if settings.metrics_port:
        server, thread = start_http_server(
            settings.metrics_port, settings.metrics_host, registry=registry
        )
    log.info("keeper of model %r with %d buckets", shape.model, shape.buckets)
    try:
        with telling(registry):
            while not stop.is_set():
                if not keeper.step():
                    stop.wait(settings.idle_s)
            keeper.release()
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()
            thread.join()
