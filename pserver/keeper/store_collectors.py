"""Prometheus metrics of the store behind a keeper: memory of its servers, newest snapshot.

No process of headrace runs on the servers of the store, and a snapshot is a command that ends. A
keeper always runs and reaches both, so alerts on a full server or an old snapshot use its metrics.
`refresh` asks them, and a scrape gets the last answer, so it never waits for a server. The listing
of snapshots is repeated once a minute at most, because it may be a request to object storage.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from headrace.pserver.errors import StoreError

if TYPE_CHECKING:
    from headrace.pserver.inspection.nodes import NodeMemory

log = logging.getLogger(__name__)

LISTED_EVERY_S = 60.0


class StoreMemoryCollector(Collector):
    """Memory of each server, and its limit."""

    def __init__(self, model: str, memory: Callable[[], Sequence[NodeMemory]]) -> None:
        self._model, self._memory = model, memory
        self._found: Sequence[NodeMemory] = ()

    def refresh(self) -> None:
        """Ask each server."""
        self._found = ()  # no figures of before remain if a server hangs
        self._found = self._memory()

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges; without a server that does not answer."""
        labels = ["model", "node"]
        used = GaugeMetricFamily(
            "headrace_keeper_store_memory_bytes", "Memory that a server uses.", labels=labels
        )
        limit = GaugeMetricFamily(
            "headrace_keeper_store_memory_limit_bytes",
            "maxmemory of a server; if not set, the memory of its machine.",
            labels=labels,
        )
        for each in self._found:
            used.add_metric([self._model, each.node], each.used_bytes)
            limit.add_metric([self._model, each.node], each.limit_bytes)
        yield used
        yield limit


class NewestSnapshotCollector(Collector):
    """The time of the newest complete snapshot."""

    def __init__(
        self,
        model: str,
        newest_ms: Callable[[], int],
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """newest_ms: when it was begun; 0 without one. May raise StoreError."""
        self._model, self._newest_ms, self._steady_s = model, newest_ms, steady_s
        self._found_ms: int | None = None
        self._listed_s: float | None = None

    def refresh(self) -> None:
        """List the folder, if the last time is a minute ago."""
        now_s = self._steady_s()
        if self._listed_s is not None and now_s - self._listed_s < LISTED_EVERY_S:
            return
        self._listed_s = now_s
        try:
            self._found_ms = self._newest_ms()
        except StoreError as error:
            log.warning("age of the newest snapshot is unknown: %s", error)
            self._found_ms = None

    def collect(self) -> Iterator[Metric]:
        """Yield the gauge; without a value while the folder cannot be read."""
        gauge = GaugeMetricFamily(
            "headrace_keeper_snapshot_timestamp_seconds",
            "With --snapshots: beginning of the newest complete snapshot, Unix time; 0: none.",
            labels=["model"],
        )
        if self._found_ms is not None:
            gauge.add_metric([self._model], self._found_ms / 1000)
        yield gauge
