"""Counts the records that a process has not read, for its metrics and its liveness probe.

The loop of the process keeps the positions. A thread of the process (`process_metrics`) asks for
the bounds of the logs, and the threads of metrics and probes compare the positions with its last
answer: they never wait for Kafka. A process whose positions do not move although there are more
records makes no progress (`health`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from headrace.ingest.errors import StreamError

if TYPE_CHECKING:
    from headrace.ingest.kafka.protocols import Source

    Bounds = Mapping[Source, tuple[int, int]]

log = logging.getLogger(__name__)

_KEPT_S = 60.0
"""Age at which an answer no longer counts: the thread that asks hangs."""


def _none(_: Iterable[Source]) -> Bounds:
    return {}


class ReadLag(Collector):
    """The lag of one process as a gauge; absent until `follow`, and while Kafka does not answer."""

    def __init__(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name`: of the metric."""
        self._name, self._labels, self._steady_s = name, dict(labels or {}), steady_s
        self._ask: Callable[[Iterable[Source]], Bounds] = _none
        self._positions: Callable[[], Mapping[Source, int]] = dict
        self._also: tuple[Source, ...] = ()
        self._answer: tuple[float, Bounds] = (steady_s(), {})

    def follow(
        self,
        ask: Callable[[Iterable[Source]], Bounds],
        positions: Callable[[], Mapping[Source, int]],
        also: Iterable[Source] = (),
    ) -> None:
        """Compare `positions`, the next offset of each source, with the ends that `ask` returns.

        ask: returns first offset and end of sources, see `LogBounds`. also: sources without a
        position whose bounds are `known`, too.
        """
        self._ask, self._positions, self._also = ask, positions, tuple(also)

    def refresh(self) -> None:
        """Ask for the bounds of the logs."""
        try:
            bounds = self._ask({*self._positions(), *self._also})
        except StreamError as error:
            log.warning("lag is unknown: %s", error)
            bounds = {}
        self._answer = self._steady_s(), bounds

    def known(self) -> Bounds:
        """Return the last answer: first offset and end of each source; empty without one."""
        asked_s, bounds = self._answer
        return bounds if self._steady_s() < asked_s + _KEPT_S else {}

    def progress(self) -> object:
        """Return a value that differs once a record was read."""
        return sorted(self._positions().items())

    def behind(self) -> bool:
        """Return whether Kafka has records that were not read; False if it does not answer."""
        return bool(self._records())

    def collect(self) -> Iterator[Metric]:
        """Yield the gauge."""
        text = "Unread records of this process's partitions, updated every two seconds."
        gauge = GaugeMetricFamily(self._name, text, labels=list(self._labels))
        if (records := self._records()) is not None:
            gauge.add_metric(list(self._labels.values()), records)
        yield gauge

    def _records(self) -> int | None:
        bounds = self.known()
        counts = [
            max(0, bounds[source][1] - offset)
            for source, offset in self._positions().items()
            if source in bounds
        ]
        return sum(counts) if counts else None
