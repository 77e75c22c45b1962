"""The figures of live evaluation as a table for a terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serving.evaluation.windows import Figures

_NONE = "-"
_COLUMNS = (
    *("model", "alias", "window", "until", "slice", "shown", "scored", "clicks"),
    *("AUC", "in request", "log loss", "NE", "calibration", "drift", "served - learned"),
)
_TEXTS = 5


def table(figures: Sequence[Figures]) -> Table:
    """Return a row for each window, alias and slice; what is undefined is a hyphen."""
    made = Table(box=box.SIMPLE_HEAD, title="Live evaluation", caption=_caption(figures))
    for place, name in enumerate(_COLUMNS):
        made.add_column(name, justify="left" if place < _TEXTS else "right")
    for each in sorted(figures, key=_order):
        made.add_row(
            *(each.model, each.alias, each.window),
            f"{each.until} {_clock(each.end_ms)}",
            each.slice,
            *(f"{count:,}" for count in (each.shown, each.scored, each.clicks)),
            *(_rounded(value, 4) for value in (each.auc, each.request_auc, each.log_loss)),
            *(_rounded(value, 3) for value in (each.normalized_entropy, each.calibration)),
            _rounded(each.score_drift, 3),
            _rounded(each.difference, 4),
        )
    return made


def _order(each: Figures) -> tuple[object, ...]:
    span_ms = each.end_ms - each.begin_ms
    return each.model, each.until != "settled", span_ms, each.slice != "all", each.slice, each.alias


def _caption(figures: Sequence[Figures]) -> str:
    if not figures:
        return "nothing was published yet: is `headrace evaluate run` running?"
    share = min(each.sample for each in figures)
    looked = "of all requests" if share == 1.0 else f"of {share:.1%} of the requests"
    return f"Times are of events, UTC; {looked}; open windows still await clicks."


def _clock(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%m-%d %H:%M}"


def _rounded(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:.{digits}f}"
