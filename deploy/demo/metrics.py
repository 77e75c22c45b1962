"""Publishes the demo's accuracy figures for the page: the live model beside the frozen one.

Live evaluation works in minutes of event time, which is too slow for a demo. The demo therefore
publishes the figures of its terminal to the topic `status`, under the metric names of `headrace
evaluate` with a window of its own. The page draws that window if it exists.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge

from headrace.serving.page.charts import WATCHED

if TYPE_CHECKING:
    from headrace.deploy.reports.model_comparison import ComparisonSnapshot

_WINDOW = WATCHED


class DemoMetrics:
    """Gauges of the model comparison, in their own registry."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        labels = ("model", "alias", *_WINDOW)
        self._model = model
        self._auc = Gauge("headrace_evaluation_auc_ratio", "AUC.", labels, registry=self.registry)
        self._log_loss = Gauge(
            "headrace_evaluation_log_loss_nats", "Log loss.", labels, registry=self.registry
        )

    def note(self, snapshot: ComparisonSnapshot) -> None:
        """Set the gauges. NaN leaves a gauge unchanged."""
        for alias, auc, log_loss in (
            ("learned", snapshot.live, snapshot.live_loss),
            ("frozen", snapshot.frozen, snapshot.frozen_loss),
        ):
            for gauge, value in ((self._auc, auc), (self._log_loss, log_loss)):
                if not math.isnan(value):
                    gauge.labels(self._model, alias, *_WINDOW.values()).set(value)
