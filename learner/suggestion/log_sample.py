"""Reads the first impressions of a log, with labels and delays of their clicks."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.events.contract import AHEAD_MS, EARLIEST_MS, IMPRESSION_ID, REQUEST_ID, TIME
from headrace.ingest.features.cells.labels import ClickWords
from headrace.ingest.features.cells.time_forms import guess_time_format
from headrace.ingest.features.cells.values import array_of, text_of
from headrace.ingest.features.spec_text import SpecError
from headrace.ingest.logs.byte_streams import opened_text
from headrace.ingest.logs.first_rows import joined_columns
from headrace.ingest.logs.layout import LogLayout
from headrace.ingest.logs.ndjson import CLICKS, IMPRESSIONS, path_of
from headrace.ingest.logs.opening import open_log
from headrace.ingest.logs.table_file import TableBlock, UnreadableRow
from headrace.ingest.logs.table_log import TableLog, time_cells
from headrace.ingest.runtime.clock import wall_ms


@dataclass(frozen=True, slots=True)
class LogSample:
    """n impressions in the order of the log."""

    columns: dict[str, pa.Array]
    """By the name of the event field."""
    times: npt.NDArray[np.int64]
    """In milliseconds, 0 if unknown; shape (n,)."""
    labels: npt.NDArray[np.bool_]
    delays_ms: npt.NDArray[np.int64]
    """From impression to click, of the clicks; empty if the log has no times of clicks."""
    whole: bool
    """Whether these are all impressions."""
    requests: npt.NDArray[np.int64]
    """A number for each request, -1 for an impression without one; shape (n,)."""
    words: str = ""
    """Values of the column of clicks, with their counts."""

    @property
    def rows(self) -> int:
        """Number of impressions."""
        return int(self.times.shape[0])


def sample_log(path: Path, layout: LogLayout | None, rows: int) -> LogSample:
    """Return the first `rows` impressions. Raises NoEventsError, SpecError."""
    log = open_log(path, layout)
    return _of_table(log, rows) if isinstance(log, TableLog) else _of_directory(path, rows)


def _of_table(log: TableLog, rows: int) -> LogSample:
    parts: list[tuple[int, dict[str, pa.Array]]] = []
    times, clicks, requests, first = [], [], [], None
    said = ClickWords()
    click = log.layout.click
    count, whole = 0, True
    for block in log.blocks():
        if isinstance(block, UnreadableRow):
            continue
        if count >= rows:
            whole = False
            break
        first = first or block
        shown = log.times(block)
        times.append(shown)
        clicks.append(log.clicks(block, shown).times)
        if click is not None and click.column in block.arrow:
            said.add(block.arrow[click.column])
        fields = log.fields(block)
        requests.append(fields.pop(REQUEST_ID, pa.nulls(block.rows, pa.string())))
        parts.append((block.rows, fields))
        count += block.rows
    shown_ms = pc.fill_null(pa.chunked_array(times, pa.int64()), 0).to_numpy()
    if first is not None:
        _check_times(log, first, shown_ms)
    clicked = pa.chunked_array(clicks, pa.int64())
    labels = clicked.is_valid().to_numpy()
    delays = pc.fill_null(clicked, 0).to_numpy()[labels] - shown_ms[labels]
    has_times = click is not None and click.timestamp is not None
    none = np.zeros(0, np.int64)
    joined = joined_columns(parts)
    known = delays if has_times else none
    numbers = _numbers(pa.chunked_array(requests, pa.string()).combine_chunks())
    return LogSample(joined, shown_ms, labels, known, whole, numbers, said.in_words())


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
        f"{column[0].as_py()!r}{meant}"
    )


def _of_directory(path: Path, rows: int) -> LogSample:
    found = _events(path, IMPRESSIONS)
    shown = list(islice(found, rows))
    whole = next(found, None) is None
    clicked: dict[object, int] = {}
    for event in _events(path, CLICKS):
        clicked.setdefault(event.get(IMPRESSION_ID), _time(event))
    times = np.array([_time(event) for event in shown], np.int64)
    labels = np.array([event.get(IMPRESSION_ID) in clicked for event in shown], np.bool_)
    delays = np.array(
        [
            clicked[event.get(IMPRESSION_ID)]
            for event, label in zip(shown, labels, strict=True)
            if label
        ],
        np.int64,
    )
    names = dict.fromkeys(name for event in shown for name in event)
    columns = {
        name: array_of([event.get(name) for event in shown])
        for name in names
        if name not in (IMPRESSION_ID, REQUEST_ID, TIME)
    }
    names_of = [event.get(REQUEST_ID) for event in shown]
    requests = _numbers(array_of([None if each is None else text_of(each) for each in names_of]))
    return LogSample(columns, times, labels, delays - times[labels], whole, requests)


def _numbers(names: pa.Array) -> npt.NDArray[np.int64]:
    """Return a number for each name, -1 for null; shape (n,)."""
    codes = names.dictionary_encode().indices.cast(pa.int64())
    found: npt.NDArray[np.int64] = pc.fill_null(codes, -1).to_numpy(zero_copy_only=False)
    return found


def _events(path: Path, stem: str) -> Iterator[dict[str, Any]]:
    place = path_of(path, stem)
    with place.open("rb") as file:
        for line in opened_text(file, place):
            try:
                event = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if isinstance(event, dict):
                yield event


def _time(event: dict[str, Any]) -> int:
    time_ms = event.get(TIME)
    return int(time_ms) if isinstance(time_ms, int | float) and time_ms >= EARLIEST_MS else 0
