"""Tables: the list of snapshots, a search, live evaluation, and the models of an alias."""

import itertools
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table

from headrace.learner.suggestion.spec_search import SearchedSpec
from headrace.pserver.snapshots.catalog import ListedSnapshot
from headrace.runtime.printable_text import printable
from headrace.serving.evaluation.served_arms import ServedArm
from headrace.serving.evaluation.windows import WindowMetrics

UNKNOWN = "-"


def print_table(listed: Sequence[ListedSnapshot], now_ms: int) -> None:
    """Print a line for each snapshot, with full lines for a pipe."""
    print_shown(_table_of(listed, now_ms))


def print_shown(shown: RenderableType, *, err: bool = False) -> None:
    """Print at the width of a terminal. A pipe gets full lines, without trailing spaces.

    err: to standard error.
    """
    console = Console(stderr=err)
    if console.is_terminal:
        console.print(shown)
        return
    wide = Console(width=10_000)
    with wide.capture() as captured:
        wide.print(shown)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()), err=err)


def _table_of(listed: Sequence[ListedSnapshot], now_ms: int) -> Table:
    table = Table("name", "time", "model", "rows", "size", "newest event", "age", box=None)
    for column in (table.columns[3], table.columns[4], table.columns[6]):
        column.justify = "right"
    for each in listed:
        facts = facts_of(each, now_ms)
        known = each.manifest is not None
        table.add_row(
            each.name,
            _moment(facts["time_ms"]),
            each.model,
            f"{facts['rows']:,}" if known else UNKNOWN,
            _size(facts["bytes"]) if known else UNKNOWN,
            _moment(facts["newest_event_ms"]),
            _age(facts["age_s"]),
        )
        for problem in each.problems:
            table.add_row(f"  damaged: {problem}")
    return table


def search_table(searched: SearchedSpec) -> Table:
    """Return the trials of a search that were judged, with the log loss that each removed in %."""
    table = Table("tried", "first third", "to 70 %", "last 30 %", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    judged = [each for each in searched.trials if each.judged is not None]
    for each in judged:
        gains = (each.screened, each.judged, each.later)
        table.add_row(
            each.name, *(UNKNOWN if gain is None else f"{100 * gain:+.2f}" for gain in gains)
        )
    table.caption = (
        f"Log loss removed, in %. A change with a figure in the last column is in the spec; all "
        f"together remove {100 * searched.gain:.2f} % there. {len(searched.trials)} changes were "
        f"tried in {searched.seconds:.0f} s."
    )
    table.caption_justify = "left"
    return table


def facts_of(listed: ListedSnapshot, now_ms: int) -> dict[str, Any]:
    """Return the facts of a snapshot as JSON values; None if unknown.

    `time_ms` is the time of the snapshot's start or, for a rebuilt model, its --as-of time.
    """
    manifest = listed.manifest
    facts: dict[str, Any] = {"name": listed.name, "model": listed.model}
    if manifest is None:
        names = ("time_ms", "rebuilt", "rows", "bytes", "buckets", "newest_event_ms", "age_s")
        return facts | dict.fromkeys(names) | {"problems": list(listed.problems)}
    rebuilt = manifest.as_of_ms is not None
    newest_ms = manifest.newest_event_ms
    return facts | {
        "time_ms": manifest.as_of_ms if rebuilt else manifest.begun_ms,
        "rebuilt": rebuilt,
        "rows": manifest.rows,
        "bytes": manifest.size_bytes,
        "buckets": manifest.buckets,
        "newest_event_ms": newest_ms or None,
        "age_s": (now_ms - manifest.ended_ms) / 1000,
        "problems": list(listed.problems),
    }


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"


def _moment(at_ms: int | None) -> str:
    if at_ms is None:
        return UNKNOWN
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at_ms / 1000)) + " UTC"


def _age(age_s: float | None) -> str:
    if age_s is None:
        return UNKNOWN
    for unit, seconds in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if age_s >= 2 * seconds:
            return f"{age_s / seconds:.1f} {unit}"
    return f"{age_s:.0f} s"


_COLUMNS = (
    *("model", "alias", "window", "until", "slice", "shown", "scored", "clicks"),
    *("AUC", "in request", "log loss", "NE", "calibration", "drift", "served - learned"),
)
_TEXTS = 5
_NARROW_COLUMNS = (
    *("alias", "slice", "shown", "clicks"),
    *("AUC", "in\nrequest", "log\nloss", "NE", "cali-\nbration"),
)
_NARROW_TEXTS = 2
_UNLIMITED = 10_000


def evaluation_tables(figures: Sequence[WindowMetrics], console: Console) -> RenderableType:
    """Return a row for each window, alias and slice. A hyphen marks an undefined figure.

    If the rows do not fit into the console's width, each window has a table of its own with fewer
    figures, which fits into 80 characters.
    """
    rows = sorted(figures, key=_order)
    caption = _caption(figures)
    wide = _wide_table(rows, caption)
    unlimited = console.options.update(max_width=_UNLIMITED)
    needed = Measurement.get(console, unlimited, wide).maximum
    if not rows or needed <= console.width:
        return wide
    by_window = itertools.groupby(rows, lambda each: (each.model, each.window, each.until))
    tables = [_narrow_table(list(each)) for _, each in by_window]
    more = f"A terminal of {needed} columns shows more figures, --json shows all."
    return Group("Live evaluation", *tables, caption, more)


def _wide_table(rows: Sequence[WindowMetrics], caption: str) -> Table:
    view = Table(box=box.SIMPLE_HEAD, title="Live evaluation", caption=caption)
    for place, name in enumerate(_COLUMNS):
        view.add_column(name, justify="left" if place < _TEXTS else "right")
    for each in rows:
        view.add_row(
            *(each.model, printable(each.alias), each.window),
            f"{each.until} {_clock(each.end_ms)}",
            printable(each.slice),
            *(f"{count:,}" for count in (each.shown, each.scored, each.clicks)),
            *(_rounded(value, 4) for value in (each.auc, each.request_auc, each.log_loss)),
            *(_rounded(value, 3) for value in (each.normalized_entropy, each.calibration)),
            _rounded(each.score_drift, 3),
            _rounded(each.difference, 4),
        )
    return view


def _narrow_table(rows: Sequence[WindowMetrics]) -> Table:
    """Return the table of one window of a model."""
    first = rows[0]
    view = Table(
        box=None,
        title=f"\n{first.model}, {first.window}, {first.until} {_clock(first.end_ms)}",
        title_justify="left",
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
    )
    for place, name in enumerate(_NARROW_COLUMNS):
        text = place < _NARROW_TEXTS
        view.add_column(name, justify="left" if text else "right", overflow="fold")
    for each in rows:
        view.add_row(
            *(printable(each.alias), printable(each.slice), f"{each.shown:,}", f"{each.clicks:,}"),
            *(_rounded(value, 4) for value in (each.auc, each.request_auc, each.log_loss)),
            *(_rounded(value, 3) for value in (each.normalized_entropy, each.calibration)),
        )
    return view


def served_arms(alias: str, arms: Sequence[ServedArm]) -> Table:
    """Return a row for each model of an alias, and the reasons below. A hyphen: undefined."""
    reasons = [f"{each.model}: {each.reason}" for each in arms if each.reason]
    notes = ("to control: log loss minus that of the control", "A verdict changes no traffic.")
    view = Table(
        box=box.SIMPLE_HEAD,
        title=f"Served by {alias}",
        caption="\n".join([*reasons, *notes]),
        caption_justify="left",
        pad_edge=False,
        padding=(0, 1),
        collapse_padding=True,
    )
    names = ("model", "shown", "log loss", "calibration", "batches", "to control", "verdict")
    for place, name in enumerate(names):
        view.add_column(name, justify="right" if 0 < place < len(names) - 1 else "left")
    for each in arms:
        view.add_row(
            *(each.model, f"{each.impressions:,}"),
            *(_rounded(each.log_loss, 5), _rounded(each.calibration, 3), str(each.batches)),
            *(_rounded(each.difference, 5), each.verdict),
        )
    return view


def _order(each: WindowMetrics) -> tuple[object, ...]:
    span_ms = each.end_ms - each.begin_ms
    return each.model, each.until != "settled", span_ms, each.slice != "all", each.slice, each.alias


def _caption(figures: Sequence[WindowMetrics]) -> str:
    if not figures:
        return "no figures yet: is `headrace evaluate run` running?"
    share = min(each.sample for each in figures)
    evaluated = "all requests" if share == 1.0 else f"{share:.1%} of the requests"
    return f"Event times in UTC; {evaluated}; open windows still wait for clicks."


def _clock(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%m-%d %H:%M}"


def _rounded(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"
