"""Guesses the layout of a file from its first rows, for `--layout auto`.

Names and values decide together: a column of times has values that are times, and its name says
whether they are of impressions or of clicks. The guess is a layout in TOML with its reasons as
comments, so that a user can read, correct and keep it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.events import AHEAD_MS, EARLIEST_MS, IMPRESSION_ID, REQUEST_ID, TIME
from headrace.ingest.features import SpecError
from headrace.ingest.logs.click_words import ClickWords
from headrace.ingest.logs.decimal_commas import are_decimal_commas, with_points
from headrace.ingest.logs.first_rows import first_rows
from headrace.ingest.logs.header_line import delimiter_of, value_among
from headrace.ingest.logs.layout import FileLayout, LogLayout, format_of, parse_layout
from headrace.ingest.logs.table_file import RepeatedNames
from headrace.ingest.logs.time_columns import (
    CLICKED,
    ISO,
    NOT_CLICKED,
    PER_MS,
    milliseconds_of,
)
from headrace.ingest.runtime import wall_ms

if TYPE_CHECKING:
    from pathlib import Path

_SEPARATORS = ("|", ";", ",")
_PATTERNS = (
    *("%d.%m.%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%Y/%m/%d %H:%M:%S"),
    *("%Y%m%d%H%M%S", "%y%m%d%H"),
)
_CLICK_NAME = re.compile(
    r"click|klick|cliqu|conver(t|sion)|purchase|gekauft|bestellt|bought|order(ed|s)?(_|$)|label|target|^y$"
    r"|(opened|tapped|applied|booked|played|watched|^opens|^taps|^plays)(_|$)",
    re.IGNORECASE,
)
_TIME_NAME = re.compile(r"time|date|_at$|^ts$|^at$|when|hour|moment|^t$", re.IGNORECASE)
_REQUEST_NAME = re.compile(
    r"^(request|view|page|page_?(view|load)|search|query|slate|impression_group|session)(_?id)?$",
    re.IGNORECASE,
)
_ID_NAME = re.compile(r"^(impression|exposure|event|row|show)?_?(id|uuid)$", re.IGNORECASE)
_COUNT = r"^\s*\d{1,6}\s*$"
_LEAST_TIMES = 0.95
_CLICK_DELAY_MS = 1_000
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


class _Times(NamedTuple):
    column: str
    form: str
    """"" for a column of timestamps, which need none."""
    share: float
    """Of the rows that have one."""


def guess_layout(path: Path) -> GuessedLayout:
    """Return a layout for the file at `path`, from its first 50,000 rows. Raises SpecError."""
    kind = format_of(path)
    file = FileLayout(delimiter=delimiter_of(path) if kind == "csv" else ",")
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
    lines += _file(file, commas)
    times = [each for name in columns if (each := _times_of(name, columns[name])) is not None]
    shown_at = _impression_time(times)
    taken = {shown_at.column} if shown_at else set()
    lines.append("[event]")
    lines += _ids(columns, shown_at, taken)
    if shown_at is None:
        lines += [
            "# no column has times: each row gets a time after that of the row before",
            "start = 2025-01-01T00:00:00Z",
            "rows_per_s = 1000.0",
        ]
    else:
        lines.append(f"timestamp = {_quoted(shown_at.column)}")
        if shown_at.form:
            lines.append(f"timestamp_format = {_quoted(shown_at.form)}")
        if _has_no_zone(columns[shown_at.column], shown_at.form):
            lines.append(
                '# these times have no zone and count as UTC; time_zone = "Area/City" if not'
            )
    lines += _click(columns, times, shown_at, taken)
    lines += _fields(columns, taken)
    return "\n".join(lines) + "\n"


def _file(file: FileLayout, commas: list[str]) -> list[str]:
    """Return the section [file], empty if all of it is the default."""
    lines = []
    if file.delimiter != ",":
        lines.append(f"delimiter = {_quoted(file.delimiter)}")
    if file.columns:
        lines.append(f"columns = [{', '.join(map(_quoted, file.columns))}]")
    if commas:
        shown = ", ".join(map(_quoted, commas))
        lines.append(f"decimal_commas = [{shown}]  # numbers such as 3,5")
    return ["[file]", *lines, ""] if lines else []


def guess_time_format(column: pa.Array) -> str | None:
    """Return the `timestamp_format` that reads a column; "" if it needs none, None if none does."""
    present = len(column) - column.null_count
    if not present:
        return None
    temporal = pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)
    forms = [""] if temporal else [*PER_MS, ISO, *_PATTERNS]
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        forms = list(PER_MS)
    elif not temporal and not pa.types.is_string(column.type):
        return None
    for form in forms:
        times = milliseconds_of(column, form or ISO).drop_null().to_numpy(zero_copy_only=False)
        good = np.count_nonzero((times >= EARLIEST_MS) & (times <= wall_ms() + AHEAD_MS))
        if good >= _LEAST_TIMES * present:
            return form
    return None


def _has_no_zone(column: pa.Array, form: str) -> bool:
    if form in PER_MS:
        return False
    if not form:
        return pa.types.is_timestamp(column.type) and column.type.tz is None
    # the same text has another time in another zone only if it names none itself
    some = column.drop_null().slice(0, 1)
    return bool(milliseconds_of(some, form, "Etc/GMT-1") != milliseconds_of(some, form))


def _times_of(name: str, column: pa.Array) -> _Times | None:
    column = _without_blanks(column)
    form = guess_time_format(column)
    return None if form is None else _Times(name, form, 1 - column.null_count / len(column))


def _without_blanks(column: pa.Array) -> pa.Array:
    if not pa.types.is_string(column.type):
        return column
    blank = pc.equal(pc.utf8_trim_whitespace(column), "")
    return pc.if_else(blank, pa.scalar(None, column.type), column)


def _impression_time(times: list[_Times]) -> _Times | None:
    def rank(each: _Times) -> tuple[bool, bool, float]:
        clicked = bool(_CLICK_NAME.search(each.column))
        return (not clicked, bool(_TIME_NAME.search(each.column)), each.share)

    best = max(times, key=rank, default=None)
    return best if best and rank(best)[0] and best.share >= _LEAST_TIMES else None


def _ids(columns: dict[str, pa.Array], shown_at: _Times | None, taken: set[str]) -> list[str]:
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
            lines.append(f"impression_id = {_quoted(name)}  # every value is different")
            taken.add(name)
            break
    for name, column in columns.items():
        flat = name.replace(".", "_")  # session.id, a key of an object
        if name in taken or not _REQUEST_NAME.match(flat) or pa.types.is_nested(column.type):
            continue
        per_value = len(column) / max(1, pc.count_distinct(column).as_py())
        seconds = _typical_span_ms(column, columns, shown_at) / 1000
        if 1000 * seconds > _REQUEST_MS:
            lines.append(
                f"# {_quoted(name)} is no request_id: the rows of one value are "
                f"{seconds:,.0f} s apart"
            )
            continue
        lines.append(f"request_id = {_quoted(name)}  # {per_value:.1f} rows a value")
        taken.add(name)
        break
    return lines


def _typical_span_ms(
    keys: pa.Array, columns: dict[str, pa.Array], shown_at: _Times | None
) -> float:
    """Return the median time between the first and the last row of a key with several rows."""
    if shown_at is None:
        return 0.0
    times = milliseconds_of(columns[shown_at.column], shown_at.form or ISO)
    spans = (
        pa.table({"key": keys, "ms": times})
        .group_by("key")
        .aggregate([("ms", "min"), ("ms", "max"), ("ms", "count")])
    )
    several = spans.filter(pc.greater(spans["ms_count"], 1))
    span_ms = pc.approximate_median(pc.subtract(several["ms_max"], several["ms_min"])).as_py()
    return float(span_ms or 0.0)


def _click(
    columns: dict[str, pa.Array], times: list[_Times], shown_at: _Times | None, taken: set[str]
) -> list[str]:
    form = shown_at.form if shown_at else ""
    for each in times:
        if each.column not in taken and _CLICK_NAME.search(each.column) and each.form == form:
            taken.add(each.column)
            share = f"  # {100 * each.share:.1f} % of the rows have one"
            return ["", "[click]", f"timestamp = {_quoted(each.column)}{share}"]
    for name, column in columns.items():
        if name in taken or not _CLICK_NAME.search(name):
            continue
        counts = _counts(column)
        if not counts and not _binary(column):
            continue
        taken.add(name)
        return [
            "",
            "[click]",
            f"column = {_quoted(name)}{counts}",
            f"delay_ms = {_CLICK_DELAY_MS:_}  # the file has no time of the click",
        ]
    return _later_time(columns, times, shown_at, taken) or [
        "",
        "# no column says whether an item was clicked: the file has only impressions",
        *_candidates(columns, taken),
        '# if a column does: [click] with column = "NAME", and values = ["WORD"] for words that',
        '# mean a click; or timestamp = "NAME" for a time',
    ]


def _candidates(columns: dict[str, pa.Array], taken: set[str]) -> list[str]:
    """Return comments on the columns with two values, those named like a click first."""
    found = []
    for name in sorted(columns, key=lambda each: not _CLICK_NAME.search(each)):
        if name in taken or pa.types.is_nested(columns[name].type):
            continue
        words = ClickWords()
        words.add(columns[name])
        if len(words.given) == 2:
            named = "named like a click, " if _CLICK_NAME.search(name) else ""
            found.append(f"#   {' '.join(_quoted(name).split())}: {named}{words.in_words()}")
    return ["# columns with two values:", *found] if found else []


def _later_time(
    columns: dict[str, pa.Array], times: list[_Times], shown_at: _Times | None, taken: set[str]
) -> list[str]:
    """Return the click of a file in which some rows have a second time, after the first."""
    if shown_at is None:
        return []
    form = shown_at.form or ISO
    shown = milliseconds_of(columns[shown_at.column], form)
    for each in times:
        if each.column in taken or each.form != shown_at.form or each.share > _MOST_CLICKED:
            continue
        delays = pc.subtract(milliseconds_of(columns[each.column], form), shown).drop_null()
        if pc.all(pc.and_(pc.greater_equal(delays, 0), pc.less(delays, _LONGEST_DELAY_MS))).as_py():
            taken.add(each.column)
            why = f"  # {100 * each.share:.1f} % of the rows have one, after {shown_at.column}"
            return ["", "[click]", f"timestamp = {_quoted(each.column)}{why}"]
    return []


def _binary(column: pa.Array) -> bool:
    if pa.types.is_nested(column.type) or pa.types.is_temporal(column.type):
        return False
    values = pc.unique(column.cast(pa.string())).drop_null().to_pylist()
    known = {*CLICKED, *NOT_CLICKED}
    return len(values) <= len(known) and {each.strip().lower() for each in values} <= known


def _counts(column: pa.Array) -> str:
    """Return a comment on a column that counts the clicks of a row; "" for other columns."""
    if pa.types.is_string(column.type):
        texts = column.drop_null()
        if not len(texts) or not pc.all(pc.match_substring_regex(texts, _COUNT)).as_py():
            return ""
        column = texts.cast(pa.float64())
    elif not pa.types.is_integer(column.type):
        return ""
    present = column.drop_null()
    clicked = pc.sum(pc.greater(present, 0)).as_py() or 0
    most = pc.max(present).as_py()
    # a number of many other things is rarely 0, and never below
    if most is None or most < 2 or pc.min(present).as_py() or clicked > _MOST_CLICKED * len(column):
        return ""
    return f"  # counts up to {most:g}: a row above 0 is one click"


def _fields(columns: dict[str, pa.Array], taken: set[str]) -> list[str]:
    left = [name for name in columns if name not in taken]
    bags = {name: found for name in left if (found := _separator(columns[name]))}
    reserved = {TIME, IMPRESSION_ID, REQUEST_ID} & set(left)
    if not bags and not reserved:
        return []
    lines = ["", "[fields]"]
    for name in left:
        field = f"{name}_column" if name in reserved else name
        column = _quoted(name)
        if name in bags:
            column = f"{{ column = {column}, separator = {_quoted(bags[name])} }}"
        lines.append(f"{_key(field)} = {column}")
    return lines


def _separator(column: pa.Array) -> str | None:
    """Return the separator of a column of short lists, None for a column of single values."""
    if not pa.types.is_string(column.type):
        return None
    texts = column.drop_null()
    if not len(texts):
        return None
    different = pc.count_distinct(texts).as_py()
    for separator in _SEPARATORS:
        counts = pc.count_substring(texts, separator)
        if pc.mean(pc.greater(counts, 0)).as_py() >= 0.2:
            items = pc.count_distinct(pc.list_flatten(pc.split_pattern(texts, separator))).as_py()
            if separator == ",":  # sentences have commas too, but their parts hardly repeat
                if 2 * items <= different:
                    return separator
            elif items < different or different < 20:
                return separator
    return None


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
    return f'"{escaped}"'


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)
