"""Guesses the layout of a file from its first rows, for `--layout auto`.

Names and values decide together: a column of times has values that are times, and its name says
whether they are of impressions or of clicks. The guess is a layout in TOML with its reasons as
comments, so that a user can read, correct and keep it.
"""

import re
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.events.contract import IMPRESSION_ID, REQUEST_ID, TIME
from headrace.ingest.features.cells.labels import ClickWords, are_labels
from headrace.ingest.features.cells.lists import are_bracketed, split
from headrace.ingest.features.cells.values import are_untyped, cell_of, is_nested, numbers_of
from headrace.ingest.features.spec_text import SpecError, toml_text
from headrace.ingest.logs.byte_streams import refusal_of, unpacked
from headrace.ingest.logs.decimal_commas import are_decimal_commas, with_points
from headrace.ingest.logs.guessed_times import (
    CLICK_NAME,
    SURELY_TIME,
    GuessedTimes,
    are_days,
    has_no_zone,
    impression_time,
    share_of_clicks,
    times_of,
)
from headrace.ingest.logs.layout import FileLayout, LogLayout, format_of, parse_layout, value_among
from headrace.ingest.logs.table_file import RepeatedNames, first_rows

_DELIMITERS = (",", "\t", ";", "|")
_HEADER_BYTES = 1 << 16
_SEPARATORS = ("|", ";", ",")
_REQUEST_NAME = re.compile(
    r"^(request|view|page|page_?(view|load)|search|query|slate|impression_group|session)(_?id)?$",
    re.IGNORECASE,
)
_ID_NAME = re.compile(r"^(impression|exposure|event|row|show)?_?(id|uuid)$", re.IGNORECASE)
_MOST_COUNTED = 999_999
_CLICK_DELAY_MS = 1_000
_ROWS_PER_S = 100.0
"""Of a file without times. A click 1 ms after its row is then known before the next request."""
_MOST_CLICKED = 0.7
"""Share of rows. A second time that nearly every row has is not that of a click."""
_LONGEST_DELAY_MS = 7 * 86_400_000
_REQUEST_MS = 60_000
"""The rows of one request are shown together; those of a session are not."""


class GuessedLayout(NamedTuple):
    """A layout, and the text that says why."""

    layout: LogLayout
    text: str
    """TOML."""


def guess_layout(path: Path) -> GuessedLayout:
    """Return a layout for the file at `path`, from its first 50,000 rows. Raises SpecError."""
    kind = format_of(path)
    file = FileLayout(delimiter=_delimiter_of(path) if kind == "csv" else ",")
    try:
        columns = first_rows(path, kind, file)
    except RepeatedNames as error:
        _refuse_values(path, file, error.names)
        raise
    if not columns:
        raise SpecError(f"{path}: expected rows to guess a layout from, got none")
    if kind == "csv":
        _refuse_values(path, file, list(columns))
    text = _layout_text(path, file, columns)
    return GuessedLayout(parse_layout(text, f"guessed layout of {path}"), text)


def _delimiter_of(path: Path) -> str:
    """Return the character that most likely separates the columns. Raises SpecError."""
    try:
        with pa.OSFile(str(path), "rb") as file:
            text = unpacked(file, path).read(_HEADER_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise refusal_of(path, error) from error
    first, _, rest = text.decode("utf-8", "replace").strip().partition("\n")
    first = first.strip()
    if first.startswith("sep=") and len(first) == len("sep=") + 1:
        raise SpecError(
            f"{path}: expected the names of columns in the first line, got {first!r}: remove this "
            "line, which only spreadsheets read"
        )
    # a title or a comment above the names has none
    known = first if any(map(first.count, _DELIMITERS)) else rest.partition("\n")[0]
    return max(_DELIMITERS, key=known.count)


def _refuse_values(path: Path, file: FileLayout, found: list[str]) -> None:
    """Raise SpecError, with a layout that names the columns, if a name of a CSV is a value."""
    if (odd := value_among(found)) is None:
        return
    names = [f"column_{number}" for number in range(1, len(found) + 1)]
    named = msgspec.structs.replace(file, columns=names)
    raise SpecError(
        f"{path}: expected names of columns in the first line, got {odd!r} for column "
        f"{found.index(odd) + 1}. If the file has no header, save these lines as "
        "layout.toml, replace the names in them, and add --layout layout.toml:\n\n"
        f"{_layout_text(path, named, first_rows(path, 'csv', named))}"
    )


def _layout_text(path: Path, file: FileLayout, columns: dict[str, pa.Array]) -> str:
    """Return the layout of a file with these columns as TOML."""
    lines = [f"# guessed from the first rows of {path.name}"]
    commas = [name for name, column in columns.items() if are_decimal_commas(column)]
    columns = {
        name: with_points(columns[name]) if name in commas else columns[name] for name in columns
    }
    times = [each for name in columns if (each := times_of(name, columns[name])) is not None]
    shown_at = impression_time(times, columns)
    taken = set(shown_at.names) if shown_at else set()
    event = ["[event]", *_ids(columns, shown_at, taken), *_event_time(shown_at)]
    flat = {name: each for name, each in columns.items() if not pa.types.is_nested(each.type)}
    click = _click(flat, times, shown_at, taken)
    numbers = [name for name in columns if name not in taken and _untyped(columns[name])]
    lines += _file(file, commas, [name for name in numbers if name not in commas])
    lines += [*event, *click, *_fields(columns, taken)]
    text = "\n".join(lines) + "\n"
    _refuse_unread(path, columns, shown_at, text)
    return text


def _event_time(shown_at: GuessedTimes | None) -> list[str]:
    """Return the lines of [event] about the time of an impression."""
    if shown_at is None:
        return [
            "# no column has times, so they follow the order of the rows: those of a request",
            "# share a time, and each click is known before the next request",
            "start = 2025-01-01T00:00:00Z",
            f"rows_per_s = {_ROWS_PER_S}",
        ]
    names = ", ".join(map(toml_text, shown_at.names))
    lines = [f"timestamp = {f'[{names}]' if isinstance(shown_at.column, list) else names}"]
    if shown_at.form:
        lines.append(f"timestamp_format = {toml_text(shown_at.form)}")
    if has_no_zone(shown_at):
        lines.append('# these times have no zone and count as UTC; time_zone = "Area/City" if not')
    if are_days(shown_at):
        lines.append("# these are days: all rows of a day have the time of its midnight")
    elif "%H" in shown_at.form and "%M" not in shown_at.form:
        lines.append("# these are hours: all rows of an hour have the time of its start")
    return lines


def _refuse_unread(
    path: Path, columns: dict[str, pa.Array], shown_at: GuessedTimes | None, text: str
) -> None:
    """Raise SpecError if the time of an impression is ambiguous or cannot be read.

    A time that a guess invents would teach a model other windows, rates and hours, and no message
    would say so. text: the layout so far.
    """
    if shown_at is not None and shown_at.other:
        value = cell_of(shown_at.cells.drop_null(), 0)
        raise SpecError(
            f"{path}: expected times of one meaning, got {value!r} in the column "
            f"{shown_at.column!r}, where {shown_at.form} and {shown_at.other} both read every "
            "row. Save these lines as layout.toml with the right timestamp_format, and add "
            f"--layout layout.toml:\n\n{text}"
        )
    if shown_at is not None:
        return
    for name, column in columns.items():
        cells = column.drop_null()
        if CLICK_NAME.search(name) or not SURELY_TIME.search(name) or not len(cells):
            continue
        raise SpecError(
            f"{path}: expected times since 2000 in the column {name!r}, got "
            f"{str(cell_of(cells, 0))!r}, which no known format reads. Save these lines as "
            "layout.toml and add --layout layout.toml. "
            f"If the column has times, write timestamp = {toml_text(name)} with their "
            "timestamp_format (numbers from a start: the unit, beside start). If it has none, keep "
            f"start, the time of the first row:\n\n{text}"
        )


def _file(file: FileLayout, commas: list[str], numbers: list[str]) -> list[str]:
    """Return the section [file], empty if all of it is the default."""
    lines = []
    if file.delimiter != ",":
        lines.append(f"delimiter = {toml_text(file.delimiter)}")
    if file.columns:
        lines.append(f"columns = [{', '.join(map(toml_text, file.columns))}]")
    if numbers:
        shown = ", ".join(map(toml_text, numbers))
        lines.append(
            f"numbers = [{shown}]  # requests send 1 for 1.0, 76.5 for 76.50, true for True"
        )
    if commas:
        shown = ", ".join(map(toml_text, commas))
        lines.append(f"decimal_commas = [{shown}]  # numbers such as 3,5")
    return ["[file]", *lines, ""] if lines else []


def _untyped(column: pa.Array) -> bool:
    """Whether a column has only numbers such as 1.0 and 76.50, or True and False."""
    texts = column.drop_null()
    return len(texts) > 0 and bool(are_untyped(texts).all())


def _ids(columns: dict[str, pa.Array], shown_at: GuessedTimes | None, taken: set[str]) -> list[str]:
    lines = []
    for name, column in columns.items():
        if name in taken or (
            not pa.types.is_primitive(column.type) and not pa.types.is_string(column.type)
        ):
            continue
        different = pc.count_distinct(column).as_py()
        if (
            _ID_NAME.match(name.replace(".", "_"))
            and different == len(column)
            and not column.null_count
        ):
            lines.append(f"impression_id = {toml_text(name)}  # every value is different")
            taken.add(name)
            break
    for name, column in columns.items():
        flat = name.replace(".", "_")  # session.id, a key of an object
        if name in taken or not _REQUEST_NAME.match(flat) or pa.types.is_nested(column.type):
            continue
        per_value = len(column) / max(1, pc.count_distinct(column).as_py())
        seconds = _typical_span_ms(column, shown_at) / 1000
        if 1000 * seconds > _REQUEST_MS:
            lines.append(
                f"# {toml_text(name)} is no request_id: the rows of one value are "
                f"{seconds:,.0f} s apart"
            )
            continue
        lines.append(f"request_id = {toml_text(name)}  # {per_value:.1f} rows a value")
        taken.add(name)
        break
    return lines


def _typical_span_ms(keys: pa.Array, shown_at: GuessedTimes | None) -> float:
    """Return the median time between the first and the last row of a key with several rows."""
    if shown_at is None:
        return 0.0
    spans = (
        pa.table({"key": keys, "ms": shown_at.milliseconds()})
        .group_by("key")
        .aggregate([("ms", "min"), ("ms", "max"), ("ms", "count")])
    )
    several = spans.filter(pc.greater(spans["ms_count"], 1))
    span_ms = pc.approximate_median(pc.subtract(several["ms_max"], several["ms_min"])).as_py()
    return float(span_ms or 0.0)


def _click(
    columns: dict[str, pa.Array],
    times: list[GuessedTimes],
    shown_at: GuessedTimes | None,
    taken: set[str],
) -> list[str]:
    for name, column in columns.items():
        if name in taken or not CLICK_NAME.search(name) or shown_at is None:
            continue
        if share := share_of_clicks(column, shown_at):
            taken.add(name)
            said = f"  # {100 * share:.1f} % of the rows have one"
            return ["", "[click]", f"timestamp = {toml_text(name)}{said}"]
    for name, column in columns.items():
        if name in taken or not CLICK_NAME.search(name):
            continue
        counts = _counts(column)
        if not counts and not are_labels(column):
            continue
        taken.add(name)
        delay_ms = 1 if shown_at is None else _CLICK_DELAY_MS
        return [
            "",
            "[click]",
            f"column = {toml_text(name)}{counts}",
            f"delay_ms = {delay_ms:_}  # the file has no time of the click",
        ]
    return _later_time(times, shown_at, taken) or [
        "",
        "# no column says whether an item was clicked: the file has only impressions",
        *_candidates(columns, taken),
        '# if a column does: [click] with column = "NAME", and values = ["WORD"] for words that',
        '# mean a click; or timestamp = "NAME" for a time',
    ]


def _candidates(columns: dict[str, pa.Array], taken: set[str]) -> list[str]:
    """Return comments on the columns with two values, those named like a click first."""
    found = []
    for name in sorted(columns, key=lambda each: not CLICK_NAME.search(each)):
        if name in taken:
            continue
        words = ClickWords()
        words.add(columns[name])
        if len(words.given) == 2:
            named = "named like a click, " if CLICK_NAME.search(name) else ""
            found.append(f"#   {' '.join(toml_text(name).split())}: {named}{words.in_words()}")
    return ["# columns with two values:", *found] if found else []


def _later_time(
    times: list[GuessedTimes], shown_at: GuessedTimes | None, taken: set[str]
) -> list[str]:
    """Return the click of a file in which some rows have a second time, after the first."""
    if shown_at is None:
        return []
    shown = shown_at.milliseconds()
    for each in times:
        name = str(each.column)
        if name in taken or each.form != shown_at.form or each.share > _MOST_CLICKED:
            continue
        delays = pc.subtract(each.milliseconds(), shown).drop_null()
        if pc.all(pc.and_(pc.greater_equal(delays, 0), pc.less(delays, _LONGEST_DELAY_MS))).as_py():
            taken.add(name)
            why = f"  # {100 * each.share:.1f} % of the rows have one, after {shown_at.column}"
            return ["", "[click]", f"timestamp = {toml_text(name)}{why}"]
    return []


def _counts(column: pa.Array) -> str:
    """Return a comment on a column that counts the clicks of a row; "" for other columns."""
    numbers = numbers_of(column)
    if numbers is None or pa.types.is_floating(column.type) or not numbers.size:
        return ""
    clicked, most = int(np.count_nonzero(numbers > 0)), float(numbers.max())
    # a number of many other things is rarely 0, and never below
    whole = bool((numbers == np.floor(numbers)).all()) and most <= _MOST_COUNTED
    if not whole or most < 2 or numbers.min() or clicked > _MOST_CLICKED * len(column):
        return ""
    return f"  # counts up to {most:g}: a row above 0 is one click"


def _fields(columns: dict[str, pa.Array], taken: set[str]) -> list[str]:
    left = [name for name in columns if name not in taken and not is_nested(columns[name].type)]
    nested = [name for name in columns if is_nested(columns[name].type)]
    bags = {name: found for name in left if (found := _separator(columns[name]))}
    reserved = {TIME, IMPRESSION_ID, REQUEST_ID} & set(left)
    if not bags and not reserved and not nested:
        return []
    lines = ["", "[fields]"]
    if nested:
        lines.append(f"# not {' '.join(map(toml_text, nested))}: nested values, no event has them")
    for name in left:
        field = f"{name}_column" if name in reserved else name
        column = toml_text(name)
        if name in bags:
            column = f"{{ column = {column}, separator = {toml_text(bags[name])} }}"
        lines.append(f"{_key(field)} = {column}")
    return lines


def _separator(column: pa.Array) -> str | None:
    """Return the separator of a column of short lists, None for a column of single values."""
    if not pa.types.is_string(column.type):
        return None
    texts = column.drop_null()
    if not len(texts):
        return None
    if are_bracketed(texts):
        return ","
    different = pc.count_distinct(texts).as_py()
    for separator in _SEPARATORS:
        counts = pc.count_substring(texts, separator)
        if pc.mean(pc.greater(counts, 0)).as_py() >= 0.2:
            items = pc.count_distinct(split(texts, separator).flatten()).as_py()
            if separator == ",":  # sentences have commas too, but their parts hardly repeat
                if 2 * items <= different:
                    return separator
            elif items < different or different < 20:
                return separator
    return None


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_text(name)
