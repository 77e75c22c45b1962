"""What the demo shows: a live table, a line now and then where there is no terminal, a summary.

Nothing here measures anything; it is told figures and turns them into text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from headrace.deploy.demo.schedule import DriftReport
    from headrace.deploy.reports import ComparisonSnapshot, RequestStats
    from headrace.learner.validation import ProgressiveValidation

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class DemoView:
    """The figures of one moment."""

    phase: str
    at_s: float
    of_s: float
    events_s: float
    """Events sent to Kafka."""
    examples_s: float
    """Examples that came back from the joiner."""
    recent: ComparisonSnapshot
    recent_s: float
    """Over how many seconds `recent` compares."""
    frozen_at_s: float | None
    freeze_due_s: float
    p50_ms: float | None
    p99_ms: float | None
    rows: int | None
    address: str
    asked: RequestStats | None = None
    """Of a log: what became of the requests that were put to the server."""


@dataclass(frozen=True, slots=True)
class ServedAccuracy:
    """What the server had answered before anything was known, beside what the learner gave."""

    asked: RequestStats
    served: ProgressiveValidation
    learned: ProgressiveValidation
    """On the same impressions."""
    impressions: int
    speed: float | None
    """Times real time; None: as fast as the parts follow."""


@dataclass(frozen=True, slots=True)
class EventCounts:
    """Shows and clicks sent, and what the rows of the parameter server add up to."""

    shows: int
    clicks: int
    late_clicks: int
    shows_by_field: dict[str, int]
    clicks_by_field: dict[str, int]

    @property
    def exact(self) -> bool:
        """Whether every field has every show and every click once."""
        clicks = self.clicks - self.late_clicks
        return set(self.shows_by_field.values()) == {self.shows} and set(
            self.clicks_by_field.values()
        ) == {clicks}


@dataclass(frozen=True, slots=True)
class DemoSummary:
    """What the demo amounted to."""

    seconds: float
    impressions: int
    clicks: int
    frozen_at_s: float | None
    last: ComparisonSnapshot
    last_s: float
    """Length of the last part, over which `last` compares."""
    p50_ms: float | None
    p99_ms: float | None
    rows: int
    counted: EventCounts
    killed_at_s: float | None = None
    """When the learner was killed, if it was."""
    served: ServedAccuracy | None = None
    upheaval: DriftReport | None = None


def table(view: DemoView) -> Table:
    """Return the live table."""
    figures = Table(show_header=False, box=None, padding=(0, 3, 0, 0))
    figures.add_column(style="dim", no_wrap=True)
    figures.add_column(justify="right", style="bold", no_wrap=True)
    figures.add_column(style="dim")  # gives way where the terminal is narrow
    figures.add_row("time", f"{view.at_s:.0f} s", f"of {view.of_s:.0f} s, {view.phase}")
    figures.add_row("events", f"{view.events_s:,.0f}/s", "impressions and clicks into Kafka")
    figures.add_row("examples", f"{view.examples_s:,.0f}/s", "joined, encoded, scored, learned")
    if view.asked is not None:
        figures.add_row(
            "AUC, served",
            Text(number(view.recent.served), style="green"),
            f"what the server answered before anything was sent; {asked_in_words(view.asked)}",
        )
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
        "p50 / p99, click in Kafka to a server that has learned from it",
    )
    rows = NOTHING if view.rows is None else f"{view.rows:,}"
    figures.add_row("rows", rows, "in the server's replica")
    figures.add_row("server", view.address, "answers now: the command above asks it")
    return figures


def line(view: DemoView) -> str:
    """Return the moment as one plain line."""
    rows = NOTHING if view.rows is None else f"{view.rows:,}"
    return (
        f"{view.at_s:4.0f} s  {view.phase}: {view.events_s:,.0f} events/s, "
        f"{view.examples_s:,.0f} examples/s, AUC {_served_part(view)}"
        f"live {number(view.recent.live)} frozen {number(view.recent.frozen)}, "
        f"freshness p50 {milliseconds(view.p50_ms)} p99 {milliseconds(view.p99_ms)}, {rows} rows"
    )


def summary(result: DemoSummary) -> str:
    """Return the end of the demo in plain words and figures."""
    road = (
        f"In {result.seconds:.0f} s, {result.impressions:,} impressions and "
        f"{result.clicks:,} clicks went through Kafka, the joiner, the learner and the "
        f"parameter server into the model that answered requests: {result.rows:,} rows."
    )
    told = [road, _accuracy(result), _freshness(result), _exactness(result.counted)]
    if result.upheaval is not None:
        told.insert(2, result.upheaval.in_words())
    if result.served is not None:
        told.insert(2, _served(result.served, result.p50_ms))
    if result.killed_at_s is not None:
        told.insert(
            1,
            f"Chaos: at {result.killed_at_s:.0f} s the learner was killed in the middle of its "
            "work (SIGKILL) and another took over from what Kafka and the parameter server hold.",
        )
    return "\n".join(told)


def _accuracy(result: DemoSummary) -> str:
    last, part = result.last, f"the last {result.last_s:.0f} s"
    if result.frozen_at_s is None or math.isnan(last.frozen) or math.isnan(last.live):
        return f"Accuracy: AUC of the live model in {part}: {number(last.live)}."
    gap = last.live - last.frozen
    word = "ahead of" if gap >= 0 else "behind"
    text = (
        f"Accuracy: in {part} the live model had an AUC of {last.live:.3f}, and the one that "
        f"stopped learning at {result.frozen_at_s:.0f} s {last.frozen:.3f}: it is {abs(gap):.3f} "
        f"{word} it, on {last.impressions:,} impressions."
    )
    if not math.isnan(last.truth):
        text += f" Knowing the true probabilities would give {last.truth:.3f}."
    return text


def _served(result: ServedAccuracy, p50_ms: float | None) -> str:
    given, learned = result.served, result.learned
    text = (
        f"Served: {asked_in_words(result.asked)}. Their answers, each made before anything of the "
        f"request was sent, had an AUC of {given.auc:.4f} ({given.request_auc:.4f} within a "
        f"request, log loss {given.log_loss:.4f}) on {result.impressions:,} impressions; the "
        f"learner's own scores of the same, each made when all before it was learned, "
        f"{learned.auc:.4f} ({learned.request_auc:.4f}, {learned.log_loss:.4f})."
    )
    if result.speed is not None and p50_ms is not None:
        text += (
            f" At {result.speed:,.0f} times real time, the {p50_ms:.0f} ms that a click needs to "
            f"reach the server are {p50_ms * result.speed / 60_000:.0f} minutes of the log: what "
            "was clicked in them, the server could not know."
        )
    return text


def asked_in_words(asked: RequestStats) -> str:
    """Return what became of the requests that were due."""
    text = f"{asked.answered:,} of {asked.requests:,} requests answered"
    others = (
        (asked.late, "not asked, since the replay was late"),
        (asked.unanswered, "without an answer in time"),
        (asked.refused, "refused"),
    )
    return ", ".join([text, *(f"{count:,} {what}" for count, what in others if count)])


def _served_part(view: DemoView) -> str:
    return "" if view.asked is None else f"served {number(view.recent.served)} "


def _freshness(result: DemoSummary) -> str:
    if result.p50_ms is None or result.p99_ms is None:
        return "Freshness: the server saw no click arrive."
    return (
        f"Freshness: from a click's arrival in Kafka to a server that had learned from it, "
        f"half took less than {result.p50_ms:.0f} ms and 99 of 100 less than "
        f"{result.p99_ms:.0f} ms."
    )


def _exactness(counted: EventCounts) -> str:
    learned = counted.clicks - counted.late_clicks
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
    return f"will be copied from the live one at {view.freeze_due_s:.0f} s"


def number(value: float) -> str:
    """Return an AUC with three places, or a dash."""
    return NOTHING if math.isnan(value) else f"{value:.3f}"


def milliseconds(value: float | None) -> str:
    """Return a duration, or a dash."""
    return NOTHING if value is None else f"{value:.0f} ms"
