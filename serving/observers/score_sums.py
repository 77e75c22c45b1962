"""Sums the scores of each model, for its mean score.

The mean score of a canary against that of its control shows a model of nonsense within seconds,
before any click could. The sums include the scores of shadows.
"""

import math
import threading
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from headrace.serving.models.prediction import ReceivedRequest, ScoredRequest


class ScoreSums(Collector):
    """Counts and sums of scores. An observer of answers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, tuple[int, float]] = {}

    def answered(self, scored: ScoredRequest, received: ReceivedRequest) -> None:  # noqa: ARG002
        """Add the scores of an answer."""
        model, added = scored.target.served.spec.name, float(scored.scores.sum())
        with self._lock:  # shadows and long requests have threads of their own
            count, total = self._sums.get(model, (0, 0.0))
            self._sums[model] = count + len(scored.scores), total + added

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        counts = CounterMetricFamily(
            "headrace_server_scores",
            "Scores made, those of shadows included. With --deployments.",
            labels=["model"],
        )
        sums = CounterMetricFamily(
            "headrace_server_score_sum",
            "Sum of the scores of headrace_server_scores_total; NaN after a NaN.",
            labels=["model"],
        )
        with self._lock:
            now = dict(self._sums)
        for model, (count, total) in now.items():
            counts.add_metric([model], count)
            sums.add_metric([model], total if math.isfinite(total) else math.nan)
        yield from (counts, sums)
