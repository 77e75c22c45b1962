"""Prometheus metrics of a scorer, besides those of its replica."""

from collections.abc import Callable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from headrace.runtime.process_metrics import ModelCollector
from headrace.serving.scoring.loop import ScoringTotals


class ScoringCollector(ModelCollector):
    """The totals of one process."""

    def __init__(self, model: str, figures: Callable[[], ScoringTotals | None]) -> None:
        """`figures` returns None before scoring starts."""
        super().__init__("scorer", model)
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        found = self._figures()
        counters = (
            ("impressions", "Impressions whose scores were committed.", found and found.scored),
            ("transactions", "Transactions committed.", found and found.transactions),
            ("aborts", "Transactions that were not committed.", found and found.aborts),
            ("gone", "Impressions that retention removed unscored.", found and found.gone),
            (
                "defaulted_rows",
                "Rows that missed the fetch deadline and were scored with their initial values.",
                found and found.defaulted_rows,
            ),
        )
        for name, text, value in counters:
            yield self._counter(name, text, value or 0)
        letters = CounterMetricFamily(
            "headrace_scorer_dead_letters",
            "Messages that could not be scored.",
            labels=["model", "reason"],
        )
        for reason, count in (found.dead_letters if found else {}).items():
            letters.add_metric([self._model, reason], count)
        yield letters
        newest = GaugeMetricFamily(
            "headrace_scorer_event_timestamp_seconds",
            "Largest event time scored, Unix time.",
            labels=["model"],
        )
        if found and found.newest_ms:
            newest.add_metric([self._model], found.newest_ms / 1000)
        yield newest
