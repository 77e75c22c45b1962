"""Serves the Prometheus metrics and the health probes of a process on a port of their own.

    /metrics        the registry
    /health/live    200, or 503 if the process should be restarted
    /health/ready   200, or 503 if it should get no work
    anything else   404, so that a probe of a wrong path fails

Every process uses this one, whether it has an HTTP interface or not. It stays apart from `server`
so that a joiner or learner does not import uvicorn.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from headrace.runtime.http.http_errors import AddressTaken


def new_registry() -> CollectorRegistry:
    """Return a registry with the metrics of the process itself: memory, CPU time, collections."""
    registry = CollectorRegistry()
    for collect in (ProcessCollector, PlatformCollector, GCCollector):
        collect(registry=registry)
    return registry


_REQUEST_S = 10.0
"""Time for a client to send its request, so that idle connections do not pile up."""
_MOST_SCRAPES = 4
"""Scrapes at a time: each Prometheus has one, and more mean that a metric hangs."""


@contextlib.contextmanager
def metrics_port(
    host: str,
    port: int,
    registry: CollectorRegistry,
    probes: Mapping[str, Callable[[], str]] | None = None,
) -> Iterator[None]:
    """Serve `registry` and `probes` on host:port until the block ends; port 0 serves nothing.

    probes: by name, as in /health/NAME; each returns a problem, or an empty text.
    Raises AddressTaken.
    """
    if not port:
        yield
        return
    try:
        server = _MetricsServer((host, port), _handler(registry, probes or {}))
    except OSError as error:
        setting = "--metrics-port / HEADRACE_METRICS_PORT"
        raise AddressTaken(host, port, setting, str(error.strerror)) from error
    thread = threading.Thread(
        target=server.serve_forever, args=[0.1], name="metrics port", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _MetricsServer(ThreadingHTTPServer):
    """One thread for each request, which ends with the process."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """Ignore a client that went away."""


def _handler(
    registry: CollectorRegistry, probes: Mapping[str, Callable[[], str]]
) -> type[BaseHTTPRequestHandler]:
    slots = threading.BoundedSemaphore(_MOST_SCRAPES)

    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_S

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._scraped()
            elif path.startswith("/health/") and (probe := probes.get(path[8:])) is not None:
                problem = probe()
                body = {path[8:]: not problem} | ({"reason": problem} if problem else {})
                self._answer(503 if problem else 200, "application/json", _json(body))
            else:
                served = ["/metrics", *(f"/health/{name}" for name in probes)]
                self._answer(404, "application/json", _json({"expected": served, "got": path}))

        def _scraped(self) -> None:
            if not slots.acquire(blocking=False):
                text = f"expected at most {_MOST_SCRAPES} scrapes at a time, got one more"
                self._answer(503, "text/plain", text.encode())
                return
            try:
                metrics = generate_latest(registry)
            finally:
                slots.release()
            self._answer(200, CONTENT_TYPE_LATEST, metrics)

        do_HEAD = do_GET  # noqa: N815 - the name of the base class

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log no request."""

    return Handler


def _json(body: Mapping[str, object]) -> bytes:
    return json.dumps(body).encode()
