"""The keeper process: a keeper with its clock, random numbers and metrics."""

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, ProcessCollector

from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.keeper.keeper_backlog import Watch, keeper_watches
from headrace.pserver.keeper.metrics import KeeperMetrics
from headrace.pserver.store import Store

Stepped = Callable[[], object]
Frame = Callable[[CollectorRegistry, tuple[Watch, ...]], AbstractContextManager[Stepped]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeeperSettings:
    """Settings that may differ between two keepers of the same model."""

    name: str = ""
    """Shown as the keeper of buckets; the host's name if empty."""
    idle_s: float = 0.1
    """Pause after a step without work: short compared to the time that the log is kept."""
    keeping: FoldPolicy = field(default_factory=FoldPolicy)


def run_keeper(
    settings: KeeperSettings,
    store: Store,
    stop: threading.Event,
    frame: Frame | None = None,
) -> None:
    """Run a keeper until `stop` is set, then release its buckets. Raises the kinds of StoreError.

    frame: a context around the run, which gets this keeper's metrics and the watches on its
    progress, and yields a function to call after each step. The keeper does not import the frame
    of the other processes.
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
    log.info("keeper of model %r with %d buckets", shape.model, shape.buckets)
    with (frame or _no_frame)(registry, keeper_watches(keeper, store)) as stepped:
        while not stop.is_set():
            busy = keeper.step()
            stepped()
            if not busy:
                stop.wait(settings.idle_s)
        keeper.release()


@contextmanager
def _no_frame(_: CollectorRegistry, __: tuple[Watch, ...]) -> Iterator[Stepped]:
    yield lambda: None
