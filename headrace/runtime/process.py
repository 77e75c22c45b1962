"""The frame that every long-running process shares: metrics, health, status, garbage collection.

A process enters `running_process` before its loop and leaves it after. The frame registers the
process's metric collectors, serves the registry and the health probes on the metrics port,
publishes the registry as the caller says, returns freed memory to the operating system, and undoes
all this in reverse order, also when the loop raises. The loop itself, the clients and the stop
signal stay with the process; the loop notes each of its steps in the health that the frame yields.
"""

import contextlib
import gc
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from headrace.runtime.freed_memory import returned_memory
from headrace.runtime.health import ProcessHealth
from headrace.runtime.http.metrics_server import metrics_port
from headrace.runtime.process_metrics import refreshed_figures

log = logging.getLogger(__name__)

StatusPublisher = Callable[[str, CollectorRegistry], AbstractContextManager[None]]
"""Publishes the registry of a process, under its role, until a block ends."""


def instance_name() -> str:
    """Return a name of this process that is unique within its role: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def unique_name() -> str:
    """Return a name that no other process has or had: the host, which is the pod, and a nonce."""
    return f"{socket.gethostname()}.{secrets.token_hex(4)}"


@contextlib.contextmanager
def running_process(
    role: str,
    status: StatusPublisher | None,
    registry: CollectorRegistry,
    metrics_address: tuple[str, int],
    *,
    collectors: Sequence[Collector] = (),
    objects_between_collections: int = 0,
    api_address: tuple[str, int] | None = None,
) -> Iterator[ProcessHealth]:
    """Run a process under the name `role` until the block ends.

    status: publishes the registry; None: nothing does. metrics_address: host and port; port 0
    serves no metrics. collectors: registered for the duration, and refreshed if they
    ask servers. objects_between_collections: see `rare_collections`; 0 leaves Python's garbage
    collector alone. api_address: host and port of an API that serves metrics itself. Raises
    AddressTaken.
    """
    with contextlib.ExitStack() as stack:
        for collector in collectors:
            registry.register(collector)
            stack.callback(registry.unregister, collector)
        health = ProcessHealth()
        probes = {"live": health.why_not_live, "ready": health.why_not_ready}
        stack.enter_context(refreshed_figures(collectors))
        stack.enter_context(metrics_port(*metrics_address, registry, probes))
        if status is not None:
            stack.enter_context(status(role, registry))
        stack.enter_context(returned_memory())
        if objects_between_collections:
            stack.enter_context(rare_collections(objects_between_collections))
        shown = metrics_address if metrics_address[1] else api_address
        if shown is not None:
            log.info("%s started; metrics and health on http://%s:%d", role, *shown)
        else:
            log.info("%s started; no metrics (--metrics-port)", role)
        yield health


@contextlib.contextmanager
def rare_collections(objects: int) -> Iterator[None]:
    """Search for reference cycles only once in so many new objects, until the block ends.

    Objects that exist already, mostly imported modules, are frozen: the collector skips them.
    Scanning them would stop the process for tens of milliseconds.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(objects, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
