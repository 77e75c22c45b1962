"""Turns iterables of events and DataFrames into messages, as a producer would send them.

A message is JSON, the input of the joiner's decoder, so a value has the same meaning as in the
service. Anything with `__arrow_c_stream__` is a DataFrame (pandas, polars, Arrow, DuckDB); a
missing value is an absent field. Times may be datetimes; without a zone they are UTC.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
import pyarrow as pa

from headrace.ingest.events import IMPRESSION_ID, TIME

if TYPE_CHECKING:
    from collections.abc import Iterator

Event: TypeAlias = "Mapping[str, object]"
Events: TypeAlias = "Iterable[Event] | Any"
"""An iterable of mappings, or a DataFrame."""

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def rows_of(events: Events) -> Iterator[Event]:
    """Yield the events of an iterable or a DataFrame. Raises TypeError for anything else."""
    if hasattr(events, "__arrow_c_stream__"):
        for batch in pa.RecordBatchReader.from_stream(events):
            for row in batch.to_pylist():
                yield {name: value for name, value in row.items() if _is_present(value)}
        return
    if isinstance(events, Mapping) or not isinstance(events, Iterable):
        raise TypeError(
            "expected an iterable of events (mappings) or a DataFrame (pandas 2.2 or later, "
            f"polars, Arrow), got {type(events).__name__}"
        )
    for event in events:
        if not isinstance(event, Mapping):
            raise TypeError(f"expected every event to be a mapping, got {type(event).__name__}")
        yield event


def time_of(event: Event) -> int:
    """Return an event's time in milliseconds; 0 where it has none that can be used."""
    value = event.get(TIME)
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return int(aware.timestamp() * 1000)
    if isinstance(value, int | float) and math.isfinite(value):
        return int(value)
    return 0


def message_of(event: Event, time_ms: int) -> bytes:
    """Return an event as JSON. Raises TypeError where a value has no JSON form."""
    if isinstance(event.get(TIME), datetime):
        event = {**event, TIME: time_ms}
    return orjson.dumps(event, option=_OPTIONS)


def labelled(rows: Iterable[Event], label: str, first: int) -> tuple[list[Event], list[Event]]:
    """Split rows with a label column into impressions and clicks.

    A click has the time of its impression: the column does not say how long it took. A row without
    `impression_id` gets a number, counted from `first`. Raises ValueError for a row without label.
    """
    impressions: list[Event] = []
    clicks: list[Event] = []
    for place, row in enumerate(rows):
        if label not in row:
            raise ValueError(
                f"label: expected a column {label!r} in every row, got none in row {place}: "
                f"{sorted(row)}"
            )
        event = {IMPRESSION_ID: f"local-{first + place}", **row}
        clicked = bool(event.pop(label))
        impressions.append(event)
        if clicked:
            clicks.append({IMPRESSION_ID: event[IMPRESSION_ID], TIME: event.get(TIME)})
    return impressions, clicks


def _is_present(value: object) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))
