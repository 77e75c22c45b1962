"""Formats the figures of a demo: the live table, a plain line, the summary, and gauges.

Nothing here measures anything.
"""

import math
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge
from rich.table import Table
from rich.text import Text

from headrace.deploy.reports.model_comparison import ComparisonSnapshot, DriftReport
from headrace.serving.page.charts import WATCHED

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class DemoView:
    """Figures of one moment."""

    phase: str
    at_s: float
    of_s: float
    events_s: float
    """Events sent to Kafka per second."""
    examples_s: float
    """Examples written by the joiner per second."""
    recent: ComparisonSnapshot
    recent_s: float
    """Length of the window of `recent`, in seconds."""
    frozen_at_s: float | None
    freeze_due_s: float
    p50_ms: float | None
    p99_ms: float | None
    rows: int | None
    address: str


@dataclass(frozen=True, slots=True)
class EventCounts:
    """Shows and clicks that were sent, and the sums over the rows of the parameter server."""

    shows: int
    clicks: int
    unlearned_clicks: int
    """Late, or without an impression."""
    shows_by_field: dict[str, int]
    clicks_by_field: dict[str, int]

    @property
    def exact(self) -> bool:
        """Whether every field has each show and each click exactly once."""
        clicks = self.clicks - self.unlearned_clicks
        return set(self.shows_by_field.values()) == {self.shows} and set(
            self.clicks_by_field.values()
        ) == {clicks}


@dataclass(frozen=True, slots=True)
class DemoSummary:
    """Result of a demo."""

    seconds: float
    impressions: int
    clicks: int
    frozen_at_s: float | None
    last: ComparisonSnapshot
    last_s: float
    """Length of the window of `last`, in seconds."""
    p50_ms: float | None
    p99_ms: float | None
    rows: int
    counted: EventCounts
    upheaval: DriftReport | None = None


def announcement(seconds: float, frozen_s: float, upheaval_s: float) -> str:
    """Return the announcement of the moments of a demo, in one line."""
    return (
        f"{seconds:.0f} s of demo: a synthetic site with users and changing items; at "
        f"{frozen_s:.0f} s, a copy of the model stops learning; at {upheaval_s:.0f} s, "
        "the appeal of every item changes"
    )


def table(view: DemoView) -> Table:
    """Return the live table of the terminal."""
    figures = Table(show_header=False, box=None, padding=(0, 3, 0, 0))
    figures.add_column(style="dim", no_wrap=True)
    figures.add_column(justify="right", style="bold", no_wrap=True)
    figures.add_column(style="dim")  # narrower on a narrow terminal
    figures.add_row("time", f"{view.at_s:.0f} s", f"of {view.of_s:.0f} s, {view.phase}")
    figures.add_row("events", f"{view.events_s:,.0f}/s", "impressions and clicks into Kafka")
    figures.add_row("examples", f"{view.examples_s:,.0f}/s", "joined, encoded, scored, learned")
    figures.add_row(
        "AUC, live model",
        Text(number(view.recent.live), style="green"),
        f"predictions of the last {view.recent_s:.0f} s, each made before its outcome",
    )
    figures.add_row(
        "AUC, frozen model", Text(number(view.recent.frozen), style="red"), _frozen_note(view)
    )
    if not math.isnan(view.recent.truth):
        figures.add_row("AUC, the truth", number(view.recent.truth), "no model can do better")
    figures.add_row(
        "freshness",
        f"{milliseconds(view.p50_ms)} / {milliseconds(view.p99_ms)}",
        "p50 / p99, from a click in Kafka to the replica of the server",
    )
    rows = NOTHING if view.rows is None else f"{view.rows:,}"
    figures.add_row("rows", rows, "in the server's replica")
    figures.add_row("server", view.address, "ready: try the command above")
    return figures


def line(view: DemoView) -> str:
    """Return the figures as one plain line."""
    rows = NOTHING if view.rows is None else f"{view.rows:,}"
    return (
        f"{view.at_s:4.0f} s  {view.phase}: {view.events_s:,.0f} events/s, "
        f"{view.examples_s:,.0f} examples/s, AUC "
        f"live {number(view.recent.live)} frozen {number(view.recent.frozen)}, "
        f"freshness p50 {milliseconds(view.p50_ms)} p99 {milliseconds(view.p99_ms)}, {rows} rows"
    )


def summary(result: DemoSummary) -> str:
    """Return the summary at the end of the demo."""
    pipeline = (
        f"In {result.seconds:.0f} s, {result.impressions:,} impressions and "
        f"{result.clicks:,} clicks went through Kafka, the joiner, the learner and the "
        f"parameter server into the served model: {result.rows:,} rows."
    )
    lines = [pipeline, _accuracy(result), _freshness(result), _exactness(result.counted)]
    if result.upheaval is not None:
        lines.insert(2, result.upheaval.in_words())
    return "\n".join(lines)


def _accuracy(result: DemoSummary) -> str:
    last, part = result.last, f"the last {result.last_s:.0f} s"
    if result.frozen_at_s is None or math.isnan(last.frozen) or math.isnan(last.live):
        return f"Accuracy: AUC of the live model in {part}: {number(last.live)}."
    gap = last.frozen - last.live
    text = (
        f"Accuracy: in {part} the live model had an AUC of {last.live:.3f}. The copy frozen at "
        f"{result.frozen_at_s:.0f} s had {last.frozen:.3f} on the same {last.impressions:,} "
        f"impressions, {abs(gap):.3f} {'ahead' if gap > 0 else 'behind'}."
    )
    if not math.isnan(last.truth):
        text += f" The true probabilities would give {last.truth:.3f}."
    return text


def _freshness(result: DemoSummary) -> str:
    if result.p50_ms is None or result.p99_ms is None:
        return "Freshness: no click reached the server."
    return (
        f"Freshness: a click in Kafka reached the served model within {result.p50_ms:.0f} ms (p50) "
        f"and {result.p99_ms:.0f} ms (p99)."
    )


def _exactness(counted: EventCounts) -> str:
    learned = counted.clicks - counted.unlearned_clicks
    if counted.exact:
        return (
            f"Exactly once: the rows of each of the {len(counted.shows_by_field)} fields add up to "
            f"{counted.shows:,} shows and {learned:,} clicks, as many as were sent."
        )
    wrong = []
    for name, shows in counted.shows_by_field.items():
        clicks = counted.clicks_by_field[name]
        if (shows, clicks) != (counted.shows, learned):
            wrong.append(f"{name} {shows:,} shows and {clicks:,} clicks")
    return (
        f"NOT exactly once: {counted.shows:,} shows and {learned:,} clicks were sent, "
        f"but the rows add up to {'; '.join(wrong)}."
    )


def _frozen_note(view: DemoView) -> str:
    if view.frozen_at_s is not None:
        return f"the same model, stopped learning at {view.frozen_at_s:.0f} s"
    return f"copied from the live model at {view.freeze_due_s:.0f} s"


def number(value: float) -> str:
    """Return an AUC with three decimal places, or a hyphen."""
    return NOTHING if math.isnan(value) else f"{value:.3f}"


def milliseconds(value: float | None) -> str:
    """Return a duration, or a hyphen."""
    return NOTHING if value is None else f"{value:.0f} ms"


class DemoMetrics:
    """Gauges of the model comparison, in their own registry.

    Live evaluation works in minutes of event time, which is too slow for a demo. The demo therefore
    publishes the figures of its terminal to the topic `status`, under the metric names of `headrace
    evaluate` with a window of its own. The page draws that window if it exists.
    """

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        labels = ("model", "alias", *WATCHED)
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
                    gauge.labels(self._model, alias, *WATCHED.values()).set(value)
