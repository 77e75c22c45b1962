"""Turns iterables of events and DataFrames into messages, as a producer would send them.

A message is JSON, the input of the joiner's decoder, so a value has the same meaning as in the
service, and the same in `learn` and in `predict`. Anything with `__arrow_c_stream__` is a DataFrame
(pandas, polars, Arrow, DuckDB); a missing value is an absent field. Times may be datetimes; without
a zone they are UTC.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from headrace.ingest.events.contract import IMPRESSION_ID, TIME
from headrace.ingest.features.cells.labels import UnknownWord, clicked_in
from headrace.ingest.features.cells.times import milliseconds_of
from headrace.ingest.features.cells.values import array_of, event_value, plain_event, values_of
from headrace.ingest.features.encoder import Event

Events = Iterable[Event] | Any
"""An iterable of mappings, or a DataFrame."""

_OPTIONS = orjson.OPT_NON_STR_KEYS


def rows_of(events: Events, label: str = "") -> Iterator[dict[str, Any]]:
    """Yield the events of an iterable or a DataFrame with values as in JSON.

    A missing value of a DataFrame is an absent field, and null in the column `label`. Raises
    TypeError for anything else, and for a value that no event can have.
    """
    if hasattr(events, "__arrow_c_stream__"):
        for batch in pa.RecordBatchReader.from_stream(events):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            timed = TIME in columns and pa.types.is_temporal(columns[TIME].type)
            times = {TIME: milliseconds_of(columns[TIME], "ms")} if timed else {}
            values = {name: values_of(column) for name, column in columns.items()} | times
            for row in pa.table(values).to_pylist():
                yield {
                    name: value for name, value in row.items() if value is not None or name == label
                }
        return
    if isinstance(events, Mapping) or not isinstance(events, Iterable):
        raise TypeError(
            "expected an iterable of events (mappings) or a DataFrame (pandas 2.2 or later, "
            f"polars, Arrow), got {type(events).__name__}"
        )
    for event in events:
        if not isinstance(event, Mapping):
            raise TypeError(f"expected every event to be a mapping, got {type(event).__name__}")
        yield _timed(event)


def _timed(event: Event) -> dict[str, Any]:
    """Return an event with values as in JSON, and a datetime as its milliseconds."""
    value = event.get(TIME)
    if isinstance(value, np.datetime64):
        value = value.astype("M8[us]").item()
    if isinstance(value, datetime) and value == value:  # not NaT
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        event = {**event, TIME: math.floor(aware.timestamp() * 1000)}
    return plain_event(event)


def context_of(event: Event | None) -> dict[str, Any]:
    """Return the shared fields of candidates with values as in JSON. Raises TypeError."""
    return _timed(event or {})


def time_of(event: Event) -> int:
    """Return the time in milliseconds of an event that `rows_of` made; 0 without a usable one."""
    value = event.get(TIME)
    return int(value) if isinstance(value, int | float) else 0


def message_of(event: Event) -> bytes:
    """Return an event that `rows_of` made as JSON."""
    return orjson.dumps(event, option=_OPTIONS)


def labelled(
    rows: Iterable[Event], label: str, first: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split rows with a label column into impressions and clicks.

    A click has the time of its impression: the column does not say how long it took. A row without
    `impression_id` gets a number, counted from `first`. Raises ValueError for a row without label,
    and for a label that is neither a click nor none.
    """
    impressions: list[dict[str, Any]] = []
    labels: list[Any] = []
    for place, row in enumerate(rows):
        if label not in row:
            raise ValueError(
                f"label: expected a column {label!r} in every row, got none in row {place}: "
                f"{sorted(row)}"
            )
        event = {IMPRESSION_ID: f"local-{first + place}", **row}
        labels.append(event_value(event.pop(label)))
        impressions.append(event)
    try:
        clicked = clicked_in(array_of(labels))
    except UnknownWord as error:
        raise ValueError(
            f"label: {error} in the column {label!r} of row {error.row}. Pass the comparison "
            "with the value that means a click"
        ) from error
    clicks: list[dict[str, Any]] = [
        {IMPRESSION_ID: event[IMPRESSION_ID], TIME: event.get(TIME)}
        for event, is_click in zip(impressions, clicked, strict=True)
        if is_click
    ]
    return impressions, clicks
