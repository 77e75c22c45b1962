"""A keeper as a process: the keeper with its clock, its dice and its metrics."""

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
    """What may differ between two keepers of the same model."""

    name: str = ""
    """Shown as the holder of buckets; the host's name if empty."""
    metrics_port: int = 0
    metrics_host: str = "0.0.0.0"  # noqa: S104 - a scraper runs on another machine
    """0: no metrics are served."""
    idle_s: float = 0.1
    """Rest when there was nothing to do: short against the time that the log is kept."""
    keeping: FoldPolicy = field(default_factory=FoldPolicy)


def run_keeper(
    settings: KeeperSettings,
    store: Store,
    stop: threading.Event,
    telling: Callable[[CollectorRegistry], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> None:
    """Keep buckets until `stop` is set, then give them back. Raises StoreError's kinds.

    telling: entered with this keeper's metrics, left when it ends.
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
    log.info("keeping %r, %d buckets", shape.model, shape.buckets)
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
