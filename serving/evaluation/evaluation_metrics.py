"""Prometheus metrics of evaluation.

The metrics of windows are gauges. Their number is bounded: every window of each alias, and slices
of the longest settled window only. The other metrics are about the process itself.
"""

from collections.abc import Callable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from headrace.runtime.process_metrics import ModelCollector
from headrace.serving.evaluation.faust_agent import EvaluationAgent
from headrace.serving.evaluation.feeder import FeedFigures
from headrace.serving.evaluation.windows import SETTLED, WindowMetrics

_LABELS = ("model", "alias", "window", "until", "slice")
_FIGURES = {
    "auc_ratio": ("auc", "Area under the ROC curve."),
    "request_auc_ratio": ("request_auc", "Mean AUC within requests that have both labels."),
    "log_loss_nats": ("log_loss", "Mean negative log likelihood."),
    "normalized_entropy_ratio": (
        "normalized_entropy",
        "Log loss divided by that of the mean click rate.",
    ),
    "calibration_ratio": ("calibration", "Expected clicks divided by clicks."),
    "score_drift_ratio": (
        "score_drift",
        "Population stability index of the scores against the previous window.",
    ),
    "scored_impressions": ("scored", "Impressions of the window with an outcome and a score."),
    "clicks": ("clicks", "Scored impressions with a click."),
}
"""Name without its prefix -> attribute of `WindowMetrics`, and help."""


class EvaluationCollector(ModelCollector):
    """The last published metrics of one model, and the state of the evaluation."""

    def __init__(
        self, model: str, keeper: EvaluationAgent, feed: Callable[[], FeedFigures]
    ) -> None:
        super().__init__("evaluation", model)
        self._keeper, self._feed = keeper, feed

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        figures = _exported(self._keeper.figures)
        for name, (attribute, text) in _FIGURES.items():
            family = GaugeMetricFamily(f"headrace_evaluation_{name}", text, labels=_LABELS)
            for each in figures:
                value = getattr(each, attribute)
                if value is not None:
                    labels = (each.model, each.alias, each.window, each.until, each.slice)
                    family.add_metric(labels, value)
            yield family
        yield from self._own()

    def _own(self) -> Iterator[Metric]:
        feed, evaluation = self._feed(), self._keeper.evaluation
        rows = CounterMetricFamily(
            "headrace_evaluation_rows",
            "Examples, scores and predictions that this process read, sampled or not.",
            labels=("model", "kind"),
        )
        for kind in ("examples", "scores", "predictions"):
            rows.add_metric((self._model, kind), getattr(feed, kind))
        yield rows
        yield self._counter(
            "unusable_predictions", "Invalid predictions that were ignored.", feed.unusable
        )
        yield self._counter(
            "lost_records",
            "Records that retention removed before they were read, and missing examples.",
            feed.lost,
        )
        yield self._counter("aborts", "Transactions aborted and repeated.", feed.aborts)
        yield self._gauge(
            "active", "1 in the process that computes the windows, 0 in a standby.",
            float(evaluation is not None),
        )  # fmt: skip
        if evaluation is None:
            return
        yield self._counter(
            "late_rows", "Rows that arrived after their minute was closed.", evaluation.state.late
        )
        yield self._gauge("open_panes", "Minutes that wait for clicks.", len(evaluation.open))
        reached_ms = evaluation.reached_ms()
        if reached_ms is not None:
            yield self._gauge(
                "reached_timestamp_seconds", "Event time that all sources have passed.",
                reached_ms / 1000,
            )  # fmt: skip


def _exported(figures: list[WindowMetrics]) -> list[WindowMetrics]:
    spans = [each.end_ms - each.begin_ms for each in figures if each.until == SETTLED]
    longest_ms = max(spans, default=0)
    return [
        each
        for each in figures
        if each.slice == "all"
        or (each.until == SETTLED and each.end_ms - each.begin_ms == longest_ms)
    ]
