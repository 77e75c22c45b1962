"""The metrics of a process, and the thread that asks servers for some of them.

A process that works for one model keeps plain totals. Its `ModelCollector` turns them into counters
and gauges with the label `model` when Prometheus scrapes, so metrics cost nothing on the hot path.

A figure that only a server knows (the end of a topic, the memory of Redis) is asked every two
seconds, and a scrape gets the last answer. *Refused:* asking during a scrape. While a server hangs,
or a client is in use by another thread, each scrape would leave a thread that waits.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from headrace.runtime.background_thread import RepeatingThread

log = logging.getLogger(__name__)

EVERY_S = 2.0
_GOODBYE_S = 1.0
"""Time that a process that stops waits for an answer that is under way."""


class ModelCollector(Collector):
    """Metrics of one process, labelled with its model. Subclasses have `collect`."""

    def __init__(self, process: str, model: str) -> None:
        """process: part of each metric's name, such as `learner`."""
        self._process, self._model = process, model

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(f"headrace_{self._process}_{name}", text, labels=["model"])
        family.add_metric([self._model], value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"headrace_{self._process}_{name}", text, labels=["model"])
        family.add_metric([self._model], value)
        return family


@runtime_checkable
class Refreshed(Protocol):
    """A collector with figures of a server."""

    def refresh(self) -> None:
        """Ask the server. Failures are figures, too: they make a metric absent."""


@contextmanager
def refreshed_figures(collectors: Sequence[object], every_s: float = EVERY_S) -> Iterator[None]:
    """Refresh those collectors that need it from a thread, until the block ends."""
    asking = [each for each in collectors if isinstance(each, Refreshed)]
    if not asking:
        yield
        return

    def refresh() -> None:
        for each in asking:
            try:
                each.refresh()
            except Exception as error:  # noqa: BLE001 - metrics must not end the process
                log.warning("metrics: %s: %s", type(error).__name__, error)

    with RepeatingThread(refresh, every_s, "figures", first_s=0.0, join_s=_GOODBYE_S):
        yield
