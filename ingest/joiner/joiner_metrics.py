"""Prometheus metrics of the joiner.

The loop keeps plain totals of what it committed. This collector reads them, and the current window
state, when Prometheus scrapes, so metrics cost nothing on the hot path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from headrace.ingest.events.contract import EARLIEST_MS
from headrace.runtime.process_metrics import ModelCollector

if TYPE_CHECKING:
    from headrace.ingest.joiner.loop import Joiner

_COUNTED = {
    "impressions": "Impressions joined, without repeated ones.",
    "clicks": "Clicks accepted: learned, late, unmatched, repeated, or still waiting.",
    "late_clicks": "Clicks more than the label window after their impression.",
    "unmatched_clicks": "Clicks without an impression of their id within two label windows.",
    "duplicates": "Repeated impressions and clicks.",
    "examples": "Examples written.",
    "dropped_negatives": "Negative examples dropped by down-sampling.",
}


class JoinerCollector(ModelCollector):
    """Metrics of one joiner process, labelled with its model."""

    def __init__(self, model: str, joiner: Joiner) -> None:
        super().__init__("joiner", model)
        self._joiner = joiner

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        figures = self._joiner.figures
        for name, text in _COUNTED.items():
            yield self._counter(name, text, getattr(figures.counted, name))
        letters = CounterMetricFamily(
            "headrace_joiner_dead_letters",
            "Unusable events, by reason.",
            labels=["model", "reason"],
        )
        for reason, count in list(figures.dead_letters.items()):
            letters.add_metric([self._model, reason.name.lower()], count)
        yield letters
        yield self._counter("transactions", "Transactions committed.", figures.transactions)
        yield self._counter("aborts", "Transactions aborted and repeated.", figures.aborts)
        yield from self._coverage()
        yield from self._held_now()
        yield self._durations()

    def _coverage(self) -> Iterator[Metric]:
        found = self._joiner.coverage.recent()
        text = "Impressions read in the last ten minutes, repeated ones included."
        yield self._gauge("recent_impressions", text, found.total)
        values = GaugeMetricFamily(
            "headrace_joiner_recent_values",
            "Recent impressions with a usable value for a declared field, read from its source.",
            labels=["model", "field", "source"],
        )
        for each in self._joiner.coverage.fields:
            values.add_metric([self._model, each.name, each.source], found.usable[each.name])
        yield values

    def _held_now(self) -> Iterator[Metric]:
        partitions = dict(self._joiner.partitions)
        watermarks = GaugeMetricFamily(
            "headrace_joiner_watermark_seconds",
            "Event time that a partition has reached, Unix time.",
            labels=["model", "partition"],
        )
        for number, part in sorted(partitions.items()):
            if part.core.watermark_ms >= EARLIEST_MS:
                watermarks.add_metric([self._model, str(number)], part.core.watermark_ms / 1000)
        yield watermarks
        states = [part.core.window for part in partitions.values()]
        yield self._gauge(
            "pending_impressions",
            "Impressions whose label window is open.",
            sum(state.pending for state in states),
        )
        yield self._gauge(
            "waiting_clicks",
            "Clicks whose impression has not arrived.",
            sum(state.waiting_clicks for state in states),
        )
        yield self._gauge(
            "held_bytes",
            "Memory of the window state: impressions, clicks and indexes.",
            sum(state.held_bytes for state in states),
        )

    def _durations(self) -> HistogramMetricFamily:
        family = HistogramMetricFamily(
            "headrace_joiner_transaction_seconds",
            "Duration of one transaction, from its beginning to its commit.",
            labels=["model"],
        )
        [metric] = self._joiner.durations.collect()
        buckets = [
            (sample.labels["le"], sample.value)
            for sample in metric.samples
            if sample.name.endswith("_bucket")
        ]
        total = next(s.value for s in metric.samples if s.name.endswith("_sum"))
        family.add_metric([self._model], buckets, sum_value=total)
        return family
