"""Layouts: small TOML files that describe how the columns of a file become events.

    [file]
    format = "csv"              # csv, parquet or ndjson; without it, by the file's name
    delimiter = ","             # of csv
    columns = ["label", "I1"]   # of csv without a header line
    numbers = ["I1"]            # of csv: columns with numbers or flags instead of text
    decimal_commas = ["price"]  # columns with numbers such as 3,5

    [event]
    impression_id = "id"        # a column; without it, made of the file's name and the row's number
    request_id = "session"      # a column; optional
    timestamp = "time"          # a column, or two as ["date", "time"], with
    timestamp_format = "ms"     #   s, ms, us or ns since 1970, iso, or a pattern of strptime
    time_zone = "Europe/Paris"    # of times without a zone; without it they are UTC
    start = 2014-05-01T00:00:00Z  # or, without a column of times: the time of the first row,
    rows_per_s = 75.0             #   and the rows of one second; beside numbers: their zero

    [click]                     # optional: without it the file has only impressions
    column = "clicked"          # a click unless empty, 0, -1, false, "no", "nein" ...
    values = ["ja"]             # optional: the values of that column that mean a click
    timestamp = "click_time"    # a column, in the format above; or
    delay_ms = 10_000           #   the time from its impression
    value = "dwell"             # a column; optional

    [fields]                    # of the event; without it, every other column under its own name
    article_id = "item"
    genres = { column = "genres", separator = "|" }

Rows must be in order of time. Two layouts are included: `criteo` and `avazu`.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.events.contract import EARLIEST_MS, IMPRESSION_ID, REQUEST_ID, TIME
from headrace.ingest.features.cells.times import FRACTION, PER_MS
from headrace.ingest.features.spec_text import SpecError, SpecText, one_of
from headrace.ingest.logs.byte_streams import CODECS

SUFFIXES = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), "csv"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".ndjson", ".jsonl", ".json"), "ndjson"),
}


_VALUE = re.compile(r"^\s*([+-]?\d+([.,]\d+)?|\d{4}-\d\d-\d\d.*)\s*$")
"""A number or a time, which are no names of columns."""


class FileLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The format of the file."""

    format: Literal["csv", "parquet", "ndjson"] | None = None
    """Default: by the ending of the file's name. `.gz`, `.zst` and `.bz2` are unpacked."""
    delimiter: str = ","
    """One character between the columns of a CSV."""
    columns: list[str] = []
    """Names of the columns of a CSV without a header line."""
    numbers: list[str] = []
    """Columns of a CSV that become numbers, true or false in the events; all others become text."""
    decimal_commas: list[str] = []
    """Columns whose numbers have a decimal comma, such as `3,5` or `1.234,5`. They become numbers
    in the events, too."""


class EventLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The identity and the time of an impression."""

    impression_id: str | None = None
    """Column with a unique id. Without it, the file's name and the row's number make one."""
    request_id: str | None = None
    """Column with the id that items of one page view share."""
    timestamp: str | list[str] | None = None
    """Column with the time of the impression. The texts of two columns, such as `["date", "time"]`,
    are joined by a space. This or `start` is required."""
    timestamp_format: str = "ms"
    """`ms`, `s`, `us` or `ns` since 1970, `iso`, or a pattern of strptime. In a pattern, `.%f` or
    `,%f` is a fraction of the second. A Parquet column of timestamps needs none."""
    time_zone: str | None = None
    """Zone of times that name no zone, such as `Europe/Berlin`. Default: UTC. In the hour that
    clocks repeat in autumn, a time is taken as the first of the two. Refused for numeric times,
    which count from 1970 in UTC."""
    start: datetime | None = None
    """Time of the first row, for a file without times. With `timestamp`: the time from which its
    numbers count, instead of 1970; the format must then be `ms`, `s`, `us` or `ns`."""
    rows_per_s: float = 1000.0
    """Rows per second, with `start` and without `timestamp`. Successive rows of one request have
    the time of the first of them."""

    @property
    def time_columns(self) -> list[str]:
        """The columns that make the time of the impression."""
        if isinstance(self.timestamp, list):
            return self.timestamp
        return [self.timestamp] if self.timestamp else []


class ClickLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The click of a row. Without this section the file has only impressions."""

    column: str | None = None
    """Column that says whether the item was clicked. This or `timestamp` is required. Without
    `values`, these mean no click: an empty value, a number that is not positive, a time before
    2000, and the words `false`, `f`, `no`, `n`, `off`, `none`, `null`, `NA`, `NaN`, `nein`, `non`,
    `nee`, `nej`, `nei`, `nie`, `ei`, `não`. These mean a click: a positive number, a time, and the
    words `true`, `t`, `yes`, `y`, `on`, `x`, `ja`, `j`, `oui`, `si`, `sì`, `sí`, `sim`, `tak`,
    `kyllä`. Another word is refused."""
    values: list[str | int | float | bool] = []
    """Values of `column` that mean a click, in upper or lower case; all others mean no click. With
    `["*"]`, every word means a click, except the words above that mean no click."""
    timestamp: str | None = None
    """Column with the time of the click, in the format of the impressions. These mean no click: an
    empty value, `0`, a negative number, and a time before 2 January 1970 or from 2099 on. A row is
    refused if another value is no time, or if the time is more than a minute before that of the
    impression."""
    delay_ms: int = 0
    """Milliseconds from the impression to the click, with `column`."""
    value: str | None = None
    """Column with a value of the click."""


class BagLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field of several values in one column."""

    column: str
    """Column of the values."""
    separator: str
    """Text between two values."""


class LogLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A complete layout."""

    event: EventLayout
    file: FileLayout = FileLayout()
    click: ClickLayout | None = None
    fields: dict[str, str | BagLayout] = {}

    @property
    def numbers(self) -> set[str]:
        """The columns whose texts become numbers in the events."""
        return {*self.file.numbers, *self.file.decimal_commas}

    def format_of(self, path: Path) -> str:
        """Return the format of a file. Raises SpecError if neither layout nor name has it."""
        return self.file.format or format_of(path)

    def columns(self, there: list[str], *, strict: bool = True) -> list[str]:
        """Return the columns to read among those of a file.

        strict: raise SpecError if a column of the layout is missing.
        """
        event, click = self.event, self.click
        named = {
            "[event] impression_id": event.impression_id,
            "[event] request_id": event.request_id,
            **{f"[event] timestamp{'[1]' * i}": name for i, name in enumerate(event.time_columns)},
        }
        if click is not None:
            named["[click] column"] = click.column
            named |= {"[click] timestamp": click.timestamp, "[click] value": click.value}
        commas = self.file.decimal_commas
        named |= {f"[file] decimal_commas[{place}]": name for place, name in enumerate(commas)}
        for name, field in self.fields.items():
            named[f"[fields] {name}"] = field if isinstance(field, str) else field.column
        joined = there[0] if len(there) == 1 else ""
        mark = max(";\t|,", key=joined.count)
        shown = "\\t" if mark == "\t" else mark
        hint = f': set [file] delimiter = "{shown}" in the layout' if mark in joined else ""
        if not hint and not self.file.columns and (odd := value_among(there)) is not None:
            hint = f": {odd!r} looks like a value. If the file has no header, name its columns in "
            hint += "the layout, [file] columns"
        for key, column in named.items():
            if strict and column and column not in there:
                expected = one_of(there, column)
                got = f"{column!r} ({key} of the layout)"
                raise SpecError(f"expected a column, {expected}, got {got}{hint}")
        return [column for column in there if not self.fields or column in named.values()]

    def field_columns(self, there: list[str]) -> dict[str, str | BagLayout]:
        """Return event field -> column, for a file with these columns."""
        if self.fields:
            return self.fields
        taken = {self.event.impression_id, self.event.request_id, *self.event.time_columns}
        if self.click is not None:
            taken |= {self.click.column, self.click.timestamp, self.click.value}
        return {column: column for column in there if column not in taken}


_TABLES: dict[str, type[msgspec.Struct]] = {
    "": LogLayout,
    "file": FileLayout,
    "event": EventLayout,
    "click": ClickLayout,
}


def format_of(path: Path) -> str:
    """Return the format of a file by its name. Raises SpecError."""
    name = path.with_suffix("") if path.suffix.lower() in CODECS else path
    suffix = name.suffix.lower()
    if suffix not in SUFFIXES:
        expected = one_of(SUFFIXES, suffix)
        raise SpecError(
            f"{path}: expected a name that ends with {expected}, got {path.name!r}. Export a "
            "spreadsheet as CSV. If a table has another name, set format in [file] of a layout"
        )
    return SUFFIXES[suffix]


def value_among(names: Sequence[str]) -> str | None:
    """Return the first of these names of columns that looks like a value; None without one.

    Columns that are numbered from 0 have numbers as names.
    """
    if list(names) == [str(number) for number in range(len(names))]:
        return None
    return next(filter(_VALUE.match, names), None)


def load_layout(name: str) -> LogLayout:
    """Return the included layout of this name, or the layout in the file at this path.

    Raises SpecError with file and line.
    """
    packaged = files("headrace.ingest.logs.layouts").joinpath(f"{name}.toml")
    if packaged.is_file():
        return parse_layout(packaged.read_text("utf-8"), f"{name}.toml")
    try:
        return parse_layout(Path(name).read_text("utf-8-sig"), name)
    except (OSError, UnicodeDecodeError) as error:
        known = sorted(
            file.name[:-5]
            for file in files("headrace.ingest.logs.layouts").iterdir()
            if file.name.endswith(".toml")
        )
        why = error.strerror if isinstance(error, OSError) else error
        raise SpecError(
            f"--layout: expected {' or '.join(known)}, or a TOML file, got {name}: {why}"
        ) from error


def parse_layout(text: str, path: str) -> LogLayout:
    """Return the layout in a text; errors name `path`. Raises SpecError."""
    where = SpecText(path, text)
    tables = where.tables()
    try:
        layout = msgspec.convert(tables, LogLayout)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        keys = [key for key in re.split(r"[.\[\]`]+", place) if key and key != "..."]
        unknown = re.search(r"unknown field `(\w+)`", problem)
        keys += [unknown[1]] if unknown else []
        if unknown and (kind := _TABLES.get("".join(keys[:-1]))) is not None:
            known = [each.encode_name for each in msgspec.structs.fields(kind)]
            expected = f"a key of this table, {one_of(known, unknown[1])}"
            raise where.error(keys, expected, repr(unknown[1])) from error
        raise where.error(keys, "a key of a layout (docs/reference/layout.md)", problem) from error
    _check(layout, where)
    return layout


def _check(layout: LogLayout, where: SpecText) -> None:
    click = layout.click
    _check_event(layout.event, where)
    if len(layout.file.delimiter) != 1:
        found = repr(layout.file.delimiter)
        raise where.error(("file", "delimiter"), "one character", found)
    if click is not None and (click.column is None) == (click.timestamp is None):
        found = "both" if click.column else "neither"
        raise where.error(("click",), "either column or timestamp", found)
    if click is not None and click.values and click.column is None:
        raise where.error(("click", "values"), "column beside values", "timestamp")
    if click is not None and click.delay_ms < 0:
        raise where.error(("click", "delay_ms"), "0 or more", str(click.delay_ms))
    for name in layout.fields:
        if name in (TIME, IMPRESSION_ID, REQUEST_ID):
            expected = "a field that [event] does not set"
            raise where.error(("fields", name), expected, name)


def _check_event(event: EventLayout, where: SpecText) -> None:
    if isinstance(event.timestamp, list) and len(event.timestamp) != 2:
        found = f"{len(event.timestamp)} columns"
        raise where.error(("event", "timestamp"), "one column, or a date and a time of day", found)
    if event.timestamp is None and event.start is None:
        raise where.error(("event",), "timestamp or start", "neither")
    if event.timestamp and event.start and event.timestamp_format not in PER_MS:
        expected = "start alone, or beside times that count from it in s, ms, us or ns"
        raise where.error(("event", "timestamp_format"), expected, event.timestamp_format)
    # the times that count from a start are checked row by row
    if event.start is not None and event.timestamp is None:
        start = event.start if event.start.tzinfo else event.start.replace(tzinfo=UTC)
        if start.timestamp() * 1000 < EARLIEST_MS:
            raise where.error(("event", "start"), "a start in 2000 or later", str(start))
    _check_pattern(event.timestamp_format, where)
    _check_zone(event, where)
    if event.rows_per_s <= 0:
        raise where.error(("event", "rows_per_s"), "more than 0 rows", str(event.rows_per_s))


def _check_pattern(form: str, where: SpecText) -> None:
    expected = ""
    if "%f" in FRACTION.sub("", form, 1):
        expected = '%f once, after a point or a comma, or "iso"'
    elif "%Z" in form:
        expected = (
            "%z for an offset such as +0100, the text UTC or GMT itself, or time_zone: other names "
            "such as CET are not read"
        )
    if expected:
        raise where.error(("event", "timestamp_format"), expected, form)


def _check_zone(event: EventLayout, where: SpecText) -> None:
    if event.time_zone is None:
        return
    form = event.timestamp_format
    if event.timestamp is None or form in ("s", "us", "ns", "%s") or "%z" in form:
        expected = "no time_zone beside times that have one or count from 1970"
        raise where.error(("event", "time_zone"), expected, event.time_zone)
    try:
        pc.assume_timezone(pa.scalar(0, pa.timestamp("ms")), event.time_zone)
    except pa.ArrowInvalid as error:
        expected = 'a zone of the tz database, such as "Europe/Berlin"'
        raise where.error(("event", "time_zone"), expected, event.time_zone) from error
