"""Refusals of a table's rows: which rows, for which reason, and the first as an example.

The survey of a log and a fit of tables share these rules, so `headrace check` reports the rows that
`headrace fit` leaves out. A table has no append times. Its rows may be at most a day ahead of the
moment when it is read, as events may be of their append to Kafka.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.events.contract import AHEAD_MS, EARLIEST_MS, Reason, read_event
from headrace.ingest.features.cells.labels import WORDS
from headrace.ingest.features.cells.time_forms import guess_time_format
from headrace.ingest.features.cells.times import milliseconds_of
from headrace.ingest.features.cells.values import cell_of, is_nested, text_of
from headrace.ingest.logs.layout import EventLayout, LogLayout
from headrace.ingest.logs.table_file import TableBlock, UnreadableRow
from headrace.ingest.logs.table_log import LogRows, time_cells
from headrace.ingest.survey.findings import RefusedEvents, shortened

Bools = npt.NDArray[np.bool_]


def refusals_of(
    rows: LogRows, layout: LogLayout, now_ms: int, name: str
) -> tuple[Bools, tuple[RefusedEvents, ...]]:
    """Return which of n rows are not refused, (n,), and the refusals of the others.

    name: of the file. now_ms: the time by which rows are ahead.
    """
    shown_ms = pc.fill_null(rows.times, 0).to_numpy(zero_copy_only=False)
    timed = rows.times.is_valid().to_numpy(zero_copy_only=False)
    good, refused = np.ones(len(timed), np.bool_), []
    nested = any(is_nested(column.type) for column in rows.fields.values())
    no_id = np.zeros(len(timed), np.bool_)
    if rows.ids is not None:
        no_id = pc.equal(rows.ids, "").to_numpy(zero_copy_only=False)
    for reason, wrong in (
        (Reason.NO_TIME, ~timed),
        (Reason.BEFORE_2000, timed & (shown_ms < EARLIEST_MS)),
        (Reason.AHEAD, shown_ms > now_ms + AHEAD_MS),
        (Reason.BAD_ID, no_id),
        (Reason.NESTED, np.full(len(timed), nested)),
        (Reason.NO_TIME, rows.odd),
    ):
        if (wrong & good).any():
            refused.append(_refusal(reason, wrong & good, rows, layout, name))
            good &= ~wrong
    return good, tuple(refused)


def _refusal(
    reason: Reason, wrong: Bools, rows: LogRows, layout: LogLayout, name: str
) -> RefusedEvents:
    place, block, event = int(np.argmax(wrong)), rows.block, layout.event
    cell, advice, cause = time_cells(block, event).slice(place, 1), "", ""
    if rows.odd[place] and layout.click is not None:
        cause = "expected the times of an impression and its click, found another value"
        clicked = str(layout.click.timestamp)
        advice = _time_advice(block.arrow[clicked].slice(place, 1), event, clicked)
    elif reason is Reason.NO_TIME:
        advice = _time_advice(cell, event, event.timestamp)
    return RefusedEvents(
        reason,
        int(np.count_nonzero(wrong)),
        f"{name}, {block.place(place)}",
        row_text(block, place),
        None if cause else _raw_time(cell_of(cell, 0)),
        advice,
        cause,
    )


def unreadable_line(row: UnreadableRow, name: str) -> RefusedEvents:
    """Return the refusal of a line that is not a row. name: of the file."""
    place = f"{name}, line {row.line}"
    lines = row.text.decode("utf-8", "replace").splitlines()
    text = shortened("\\n".join(lines))
    reason, advice = Reason.NOT_JSON, ""
    if row.cause and len(lines) > 1:
        advice = "Complete the row, or close the quotes of a value in it"
    elif row.cause:
        advice = "Complete the line, or quote a value that contains the delimiter"
    elif isinstance(found := read_event(row.text, 0), Reason):
        reason = found
    return RefusedEvents(reason, 1, place, text, advice=advice, cause=row.cause)


def row_text(block: TableBlock, place: int) -> str:
    """Return one row, shortened."""
    row = {name: cell_of(column, place) for name, column in block.arrow.items()}
    return shortened(", ".join(f"{name}={value!r}" for name, value in row.items()))


def _time_advice(cell: pa.Array, event: EventLayout, column: str | list[str] | None) -> str:
    """Return why a cell, (1,), is not the time that a column should have."""
    form, value = event.timestamp_format, cell_of(cell, 0)
    if column is None:
        return ""
    if value is None or not str(value).strip():
        return f"the column {column!r} is empty there"
    if milliseconds_of(cell, form, event.time_zone).null_count == 0:
        return (
            f"expected a time since 2000 that is not before the impression, got {str(value)!r} in "
            f"the column {column!r}"
        )
    fitting = guess_time_format(cell)
    remedy = "Correct timestamp_format in the layout, or the file"
    if text_of(value).strip().lower() in WORDS:
        remedy = f'If it says whether there was a click, write column = "{column}" in [click]'
    elif fitting is not None:
        remedy = f'Set timestamp_format = "{fitting}" in the layout'
    return (
        f"expected a time as in timestamp_format = {form!r}, got {value!r} in the column "
        f"{column!r}. {remedy}"
    )


def _raw_time(value: object) -> float | None:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
