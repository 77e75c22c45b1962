"""The keeper process: a keeper with its clock, random numbers and metrics.

For the liveness probe, its work is compared with the logs of its buckets. A keeper follows logs and
trims them. Each can stall alone: a replica that follows does not show that folds arrive. So there
is one watch for each. Buckets whose shard does not answer count as no backlog, because a restart of
the keeper would not bring the shard back.
"""

import logging
import secrets
import socket
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.registry import Collector

from headrace.pserver.errors import StoreError, Unreachable
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.keeper.metrics import KeeperMetrics
from headrace.pserver.store import Store
from headrace.runtime.clock import steady_ms
from headrace.runtime.health import ProcessHealth
from headrace.runtime.process import StatusPublisher, running_process

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeeperSettings:
    """Settings that may differ between two keepers of the same model."""

    name: str = ""
    """Shown as the keeper of buckets; the host's name if empty."""
    idle_s: float = 0.1
    """Pause after a step without work: short compared to the time that the log is kept."""
    keeping: FoldPolicy = field(default_factory=FoldPolicy)
    metrics_address: tuple[str, int] | None = None
    """Host and port; None: the keeper is a thread of another process, without its own frame."""


def run_keeper(
    settings: KeeperSettings,
    store: Store,
    stop: threading.Event,
    status: StatusPublisher | None = None,
    collectors: Sequence[Collector] = (),
) -> None:
    """Run a keeper until `stop` is set, then release its buckets. Raises the kinds of StoreError.

    status, collectors: see `running_process`.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    shape = store.shape()
    keeper = Keeper(
        store,
        shape,
        name=settings.name or socket.gethostname(),
        keeping=settings.keeping,
        now_ms=steady_ms,
        draw_nonce=lambda: secrets.token_bytes(8),
        metrics=KeeperMetrics(shape.model, registry),
    )
    log.info("keeper of model %r with %d buckets", shape.model, shape.buckets)
    address = settings.metrics_address
    with (
        nullcontext(ProcessHealth())
        if address is None
        else running_process("keeper", status, registry, address, collectors=collectors)
    ) as health:
        watch_keeper(health, keeper, store)
        while not stop.is_set():
            busy = keeper.step()
            health.stepped()
            if not busy:
                stop.wait(settings.idle_s)
        keeper.release()


def watch_keeper(health: ProcessHealth, keeper: Keeper, store: Store) -> None:
    """Watch that the keeper follows the logs, and that it trims them."""

    def unread() -> bool:
        versions = keeper.versions()
        return any(version > versions[bucket] for bucket, version in _now(store, list(versions)))

    def untrimmed() -> bool:
        return bool(_now(store, keeper.folding()))

    health.watch(keeper.versions, unread)
    health.watch(keeper.trimmed, untrimmed)


def _now(store: Store, buckets: list[int]) -> list[tuple[int, int]]:
    """Return (bucket, version of its log) for the buckets that answer."""
    if not buckets:
        return []
    try:
        answers = store.marks(buckets)
    except StoreError:
        return []  # the keeper's own call raises it, and ends the process
    return [
        (answer.bucket, answer.version) for answer in answers if not isinstance(answer, Unreachable)
    ]
