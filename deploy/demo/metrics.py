"""The demo's own figures on the page: the live model beside the frozen one, named as by evaluation.

Live evaluation goes by minutes of event time; whoever watches a demo wants the curves to move, and
a log at a thousand times real time has a minute in the blink of an eye. So the demo tells the topic
`status` what it shows on the terminal, under the names that `headrace evaluate` has and a window of
its own, which the page draws where there is one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge

from headrace.deploy.local import PRODUCTION
from headrace.serving.page import WATCHED

if TYPE_CHECKING:
    from headrace.deploy.reports import ComparisonSnapshot

_WINDOW = WATCHED


class DemoMetrics:
    """Gauges of the race, in a registry of their own."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        labels = ("model", "alias", *_WINDOW)
        self._model = model
        self._auc = Gauge("headrace_evaluation_auc_ratio", "AUC.", labels, registry=self.registry)
        self._log_loss = Gauge(
            "headrace_evaluation_log_loss_nats", "Log loss.", labels, registry=self.registry
        )

    def note(self, standing: ComparisonSnapshot) -> None:
        """Take how the models stand now; NaN leaves a figure as it was."""
        for alias, auc, log_loss in (
            ("learned", standing.live, standing.live_loss),
            ("frozen", standing.frozen, standing.frozen_loss),
            (PRODUCTION, standing.served, standing.served_loss),
        ):
            for gauge, value in ((self._auc, auc), (self._log_loss, log_loss)):
                if not math.isnan(value):
                    gauge.labels(self._model, alias, *_WINDOW.values()).set(value)
