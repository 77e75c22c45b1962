"""Counts the records that a process has not read, for its metrics and its liveness probe.

The loop of the process keeps the positions. The threads of metrics and probes compare them with the
ends of the partitions. A process whose positions do not move although there are more records makes
no progress (`health`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from headrace.ingest.errors import StreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import Metric

    from headrace.ingest.kafka import Source

log = logging.getLogger(__name__)


class ReadLag(Collector):
    """The lag of one process as a gauge; absent until `follow`, and while Kafka does not answer."""

    def __init__(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """`name`: of the metric."""
        self._name, self._labels = name, dict(labels or {})
        self._held: Callable[[Source], tuple[int, int]] | None = None
        self._positions: Callable[[], Mapping[Source, int]] = dict

    def follow(
        self,
        held: Callable[[Source], tuple[int, int]],
        positions: Callable[[], Mapping[Source, int]],
    ) -> None:
        """Compare `positions`, the next offset of each source, with the ends of `held`."""
        self._held, self._positions = held, positions

    def progress(self) -> object:
        """Return a value that differs once a record was read."""
        return sorted(self._positions().items())

    def behind(self) -> bool:
        """Return whether Kafka has records that were not read; False if it does not answer."""
        try:
            return bool(self._records())
        except StreamError:
            return False

    def collect(self) -> Iterator[Metric]:
        """Yield the gauge."""
        text = "Records of its partitions that this process has not read."
        gauge = GaugeMetricFamily(self._name, text, labels=list(self._labels))
        try:
            records = self._records()
        except StreamError as error:
            log.warning("lag is unknown: %s", error)
        else:
            if records is not None:
                gauge.add_metric(list(self._labels.values()), records)
        yield gauge

    def _records(self) -> int | None:
        held, positions = self._held, self._positions()
        if held is None or not positions:
            return None
        return sum(max(0, held(source)[1] - offset) for source, offset in positions.items())
