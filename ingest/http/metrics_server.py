"""Serves the Prometheus metrics of a process on a port of their own.

Every process uses this one, whether it has an HTTP interface or not. It stays apart from `server`
so that a joiner or learner does not import uvicorn.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)

from headrace.ingest.http.http_errors import AddressTaken

if TYPE_CHECKING:
    from collections.abc import Iterator


def new_registry() -> CollectorRegistry:
    """Return a registry with the metrics of the process itself: memory, CPU time, collections."""
    registry = CollectorRegistry()
    for collect in (ProcessCollector, PlatformCollector, GCCollector):
        collect(registry=registry)
    return registry


@contextlib.contextmanager
def metrics_port(host: str, port: int, registry: CollectorRegistry) -> Iterator[None]:
    """Serve `registry` on host:port until the block ends; port 0 serves nothing.

    Raises AddressTaken.
    """
    if not port:
        yield
        return
    try:
        server, thread = start_http_server(port, host, registry=registry)
    except OSError as error:
        setting = "--metrics-port / HEADRACE_METRICS_PORT"
        raise AddressTaken(host, port, setting, str(error.strerror)) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
