"""Reads the first impressions of a log, with labels and delays of their clicks."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.events.contract import AHEAD_MS, EARLIEST_MS, IMPRESSION_ID, REQUEST_ID, TIME
from headrace.ingest.features.cells.labels import ClickWords
from headrace.ingest.features.cells.time_forms import guess_time_format
from headrace.ingest.features.cells.values import cell_of
from headrace.ingest.features.spec_text import SpecError
from headrace.ingest.logs.layout import EventLayout, LogLayout
from headrace.ingest.logs.ndjson import CLICKS, IMPRESSIONS, path_of
from headrace.ingest.logs.table_file import TableBlock, UnreadableRow, joined_columns
from headrace.ingest.logs.table_log import LogRows, TableLog, time_cells
from headrace.runtime.clock import wall_ms

_EVENTS = LogLayout(EventLayout(IMPRESSION_ID, REQUEST_ID, TIME))
"""Of events as producers send them."""


@dataclass(frozen=True, slots=True)
class LogSample:
    """n impressions in the order of the log."""

    columns: dict[str, pa.Array]
    """By the name of the event field."""
    times: npt.NDArray[np.int64]
    """In milliseconds, 0 if unknown; shape (n,)."""
    timed: bool
    """Whether the log has times; otherwise they only say the order."""
    click_ms: npt.NDArray[np.int64]
    """Time of the first click of each impression, -1 without one; shape (n,)."""
    delays_ms: npt.NDArray[np.int64]
    """From impression to click, of the clicks; empty if the log has no times of clicks."""
    whole: bool
    """Whether these are all impressions."""
    requests: npt.NDArray[np.int64]
    """A number for each request, -1 for an impression without one; shape (n,)."""
    refused: int = 0
    """Rows whose click cannot be read, or comes before its impression."""
    words: str = ""
    """Values of the column of clicks, with their counts."""

    @property
    def labels(self) -> npt.NDArray[np.bool_]:
        """Whether each impression has a click; shape (n,)."""
        return self.click_ms >= 0

    @property
    def rows(self) -> int:
        """Number of impressions."""
        return int(self.times.shape[0])


def sample_log(path: Path, layout: LogLayout | None, rows: int) -> LogSample:
    """Return the first `rows` impressions. Raises NoEventsError, SpecError."""
    if layout is not None:
        return _sample(TableLog(path, layout), rows)
    shown, clicks = (
        TableLog(path_of(path, each), _EVENTS, flatten=False) for each in (IMPRESSIONS, CLICKS)
    )
    return _sample(shown, rows, clicks)


def _sample(log: TableLog, rows: int, of_clicks: TableLog | None = None) -> LogSample:
    """Return impressions; of_clicks: has the clicks, if the rows themselves do not."""
    parts: list[LogRows] = []
    said, click = ClickWords(), log.layout.click
    whole = True
    for block in log.blocks():
        if isinstance(block, UnreadableRow):
            continue
        if parts and parts[-1].block.first + parts[-1].block.rows >= rows:
            whole = False
            break
        parts.append(log.rows_of(block))
        if click is not None and click.column in block.arrow:
            said.add(block.arrow[click.column])
    shown = pa.chunked_array([part.times for part in parts], pa.int64())
    shown_ms = pc.fill_null(shown, 0).to_numpy()
    clicked = pa.chunked_array([part.clicks for part in parts], pa.int64())
    if of_clicks is not None:
        ids = pa.chunked_array([part.ids for part in parts], pa.string())
        clicked = _clicked(ids, of_clicks)
    elif parts:
        _check_times(log, parts[0].block, shown_ms)
    click_ms = pc.fill_null(clicked, -1).to_numpy()
    delays = (click_ms - shown_ms)[click_ms >= 0]
    has_times = of_clicks is not None or (click is not None and click.timestamp is not None)
    requests = [
        part.fields.pop(REQUEST_ID, pa.nulls(part.block.rows, pa.string())) for part in parts
    ]
    return LogSample(
        joined_columns([(part.block.rows, part.fields) for part in parts]),
        shown_ms,
        log.layout.event.timestamp is not None,
        click_ms,
        delays if has_times else delays[:0],
        whole,
        _numbers(pa.chunked_array(requests, pa.string()).combine_chunks()),
        sum(int(part.odd.sum()) for part in parts),
        said.in_words(),
    )


def _clicked(shown: pa.ChunkedArray, log: TableLog) -> pa.ChunkedArray:
    """Return the time of the first click of each impression, by their ids; null without one."""
    clicks = [log.rows_of(each) for each in log.blocks() if not isinstance(each, UnreadableRow)]
    ids = pa.chunked_array([part.ids for part in clicks], pa.string())
    times = pa.chunked_array([pc.fill_null(part.times, 0) for part in clicks], pa.int64())
    return times.take(pc.index_in(shown, ids))


def _check_times(log: TableLog, first: TableBlock, times: npt.NDArray[np.int64]) -> None:
    """Raise SpecError if most times are before 2000 or ahead, as those in another unit are."""
    event = log.layout.event
    wrong = int(np.count_nonzero((times < EARLIEST_MS) | (times > wall_ms() + AHEAD_MS)))
    if event.timestamp is None or 2 * wrong <= times.size:
        return
    column = time_cells(first, event)
    form = guess_time_format(column)
    meant = f': write timestamp_format = "{form}"' if form else ""
    raise SpecError(
        f"{log.path}: expected times since 2000 in {event.timestamp!r} with timestamp_format = "
        f'"{event.timestamp_format}", got others in {wrong:,} of {times.size:,} rows, such as '
        f"{cell_of(column, 0)!r}{meant}"
    )


def _numbers(names: pa.Array) -> npt.NDArray[np.int64]:
    """Return a number for each name, -1 for null; shape (n,)."""
    codes = names.dictionary_encode().indices.cast(pa.int64())
    found: npt.NDArray[np.int64] = pc.fill_null(codes, -1).to_numpy(zero_copy_only=False)
    return found
