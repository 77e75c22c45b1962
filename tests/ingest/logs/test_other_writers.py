"""Files as spreadsheets, databases, loggers and data frames write them: read right, or refused."""

import bz2
import gzip
import io
import json
import subprocess
import sys
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard

from headrace.ingest.features.spec_text import SpecError
from headrace.ingest.logs.layout import LogLayout, parse_layout
from headrace.ingest.logs.layout_guess import guess_layout
from headrace.ingest.logs.opening import open_log
from headrace.ingest.logs.table_file import TableBlock
from headrace.ingest.logs.table_log import TableLog
from headrace.ingest.survey.log_survey import survey_log
from headrace.learner.suggestion.log_sample import sample_log
from headrace.learner.suggestion.spec_suggestion import suggest_spec
from tests.ingest.logs.surveyed_events import FIELDS, T0_MS, click, impression

AT = datetime(2026, 3, 1, 8, tzinfo=UTC)
AT_MS = int(AT.timestamp() * 1000)
BY_CLICK_TEXT = '[event]\ntimestamp = "time"\n[click]\ncolumn = "clicked"'
BY_CLICK = parse_layout(BY_CLICK_TEXT, "l.toml")
BY_TIME_TEXT = (
    '[event]\ntimestamp = "time"\ntimestamp_format = "iso"\n[click]\ntimestamp = "clicked_at"'
)
BY_TIME = parse_layout(BY_TIME_TEXT, "l.toml")


def read(path: Path, layout: LogLayout) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the impressions and the clicks of a file."""
    events: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for line in TableLog(path, layout).lines():
        if line.value.startswith(b"{"):  # other lines are no rows
            events[line.is_click].append(json.loads(line.value))
    return events


def guessed(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return read(path, guess_layout(path).layout)


def csv_file(folder: Path, *lines: str, name: str = "log.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


BY_SECONDS = """
[event]
timestamp = "time"
timestamp_format = "s"
start = 2026-03-01T08:00:00Z
"""
IN_BERLIN = """
[event]
timestamp = "at"
timestamp_format = "%d.%m.%Y %H:%M:%S"
time_zone = "Europe/Berlin"
[click]
timestamp = "opened_at"
"""
DECIMAL = '[file]\ndelimiter = ";"\ndecimal_commas = ["price"]\n[event]\ntimestamp = "time"\n'
NAN = f'{{"time": {AT_MS}, "price": NaN}}'
LISTS = [(f"{i % 5}", f"{i // 5}") for i in range(25)]

WRITTEN: dict[str, Any] = {
    # the header, empty for NDJSON, and the rows of a file, with its layout, empty for a guess;
    # then the values of fields in the impressions, and the delays of the clicks after AT_MS
    "whole numbers and flags of a data frame": (
        *("", "time,item,prem,clicked", [f"{AT_MS},1.0,True,0", f"{AT_MS},,False,1"]),
        *({"item": [1, None], "prem": [True, False]}, [1000]),
    ),
    "prices with two decimal places": (
        *("", "time,item,price", [f"{AT_MS},a,76.50", f"{AT_MS + 1},b,3.25", f"{AT_MS + 2},c,"]),
        *({"price": [76.5, 3.25, None]}, []),
    ),
    "numbers of a data frame, some of them whole": (
        *("", "time,size", [f"{AT_MS},1.0", f"{AT_MS + 1},2.25"]),
        *({"size": [1, 2.25]}, []),
    ),
    "versions with one and two decimal places": (
        *("", "time,version", [f"{AT_MS},1.1", f"{AT_MS + 1},1.10"]),
        *({"version": ["1.1", "1.10"]}, []),
    ),
    "the index of a data frame": (
        *("", ",time,item", [f"0,{AT_MS},a", f"1,{AT_MS + 1},a"]),
        *({"column_1": ["0", "1"], "impression_id": ["log-0", "log-1"]}, []),
    ),
    "blanks around cells": (
        *("", "time, item, clicked", ["2026-03-01 08:00:00, a, 0", "2026-03-01 08:00:07, b, 1"]),
        *({"item": ["a", "b"]}, [8000]),
    ),
    "a date and a time of day in two columns": (
        *("", "date,time,item,clicked", ["2026-03-01,08:00:00,a,0", "2026-03-01,23:00:00,a,1"]),
        *({"timestamp_ms": [AT_MS, AT_MS + 54_000_000], "date": [None] * 2}, [54_001_000]),
    ),
    "numbers that count from a start": (
        *(BY_SECONDS, "time,item", ["0,a", "7,a"]),
        *({"timestamp_ms": [AT_MS, AT_MS + 7000]}, []),
    ),
    "times and clicks in a zone": (
        *(IN_BERLIN, "at,opened_at", ["01.03.2026 09:00:00,01.03.2026 09:00:09"]),
        *({"timestamp_ms": [AT_MS]}, [9000]),
    ),
    "a start without a zone": (
        *("[event]\nstart = 2026-03-01T08:00:00", "item", ["a"], {"timestamp_ms": [AT_MS]}, []),
    ),
    "a click in a row without a time": (
        *(BY_TIME_TEXT, "time,clicked_at", [",2026-03-01 08:00:06", "2026-03-01 08:00:06,-"]),
        *({"timestamp_ms": [None, AT_MS + 6000]}, []),
    ),
    "a time of a click that cannot be read": (
        *(BY_TIME_TEXT, "time,clicked_at", ["2026-03-01 08:00:00,soon", "2026-03-01 08:00:06,"]),
        *({"timestamp_ms": [None, AT_MS + 6000]}, []),
    ),
    "never, as the time of a click": (
        *(BY_TIME_TEXT, "time,clicked_at"),
        [f"2026-03-01 08:00:00,{never}" for never in ("1970-01-01", "9999-12-31", "0", "-1")],
        *({"timestamp_ms": [AT_MS] * 4}, []),
    ),
    "numbers that JSON lacks": (*(BY_CLICK_TEXT, "", [NAN]), {"price": [None]}, []),
    "decimal commas": (
        *(DECIMAL, "time;price", [f"{AT_MS};{price}" for price in ("3,5", "1.234,5", "much")]),
        *({"price": ["3.5", "1234.5", "much"]}, []),
    ),
    **{
        f"lists as {form}": (
            *("", "time,genres", [f'{AT_MS},"{form.format(*each)}"' for each in LISTS]),
            *({"genres": [list(each) for each in LISTS]}, []),
        )
        for form in ("{}, {}", "[{}, {}]", "['{}', '{}']", "[{} {}]")
    },
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_is_read_as_its_writer_meant_it(tmp_path: Path, name: str) -> None:
    layout, header, rows, fields, delays_ms = WRITTEN[name]
    lines = [header, *rows] if header else rows
    path = csv_file(tmp_path, *lines, name="log.csv" if header else "log.ndjson")
    shown, clicks = read(path, parse_layout(layout, "l.toml")) if layout else guessed(path)
    for field, values in fields.items():
        assert [each.get(field) for each in shown] == values
    assert [each["timestamp_ms"] - AT_MS for each in clicks] == delays_ms


# ------------------------------------------------------------------------------ labels and clicks


@pytest.mark.parametrize(("never", "unit"), [(0, "s"), (-1, "s"), (0, "ms")])
def test_a_number_that_says_never_is_no_click(tmp_path: Path, never: int, unit: str) -> None:
    scale = 1000 if unit == "s" else 1
    times = [(AT_MS + 1000 * i) // scale for i in range(4)]
    path = tmp_path / "log.parquet"
    pa.parquet.write_table(
        pa.table({"time": times, "clicked_at": [never, times[1], never, None]}), path
    )
    text = f'[event]\ntimestamp = "time"\ntimestamp_format = "{unit}"\n'
    layout = parse_layout(f'{text}[click]\ntimestamp = "clicked_at"', "l.toml")
    assert [each["timestamp_ms"] for each in read(path, layout)[1]] == [AT_MS + 1000]
    found = survey_log(path, FIELDS, layout)
    assert (found.clicks, found.refused) == (1, ())


def test_a_click_long_before_its_impression_refuses_its_row(tmp_path: Path) -> None:
    path = csv_file(
        tmp_path,
        "time,item,clicked_at",
        "2026-03-01 08:00:00,a,2026-02-01 08:00:00",
        "2026-03-01 08:00:30,a,2026-03-01 08:00:29",
        "2026-03-01 08:00:40,a,2026-03-01",
    )
    found = survey_log(path, FIELDS, BY_TIME)
    assert (found.clicks, found.refused_count) == (2, 1)
    assert "expected a time since 2000 that is not before the impression" in found.refused[0].advice


# ------------------------------------------------------------------------------------------- ids


def test_a_list_in_one_row_leaves_the_ids_of_the_other_rows_as_they_are(tmp_path: Path) -> None:
    items: list[Any] = ["a", 17, "17", None, ["b", "c"], ["b"], None, "a", True]
    rows = [json.dumps({"time": AT_MS + i, "item": item}) for i, item in enumerate(items)]
    path = tmp_path / "log.ndjson"
    path.write_text("\n".join(rows))
    layout = parse_layout('[event]\ntimestamp = "time"', "l.toml")
    blocks = [each for each in TableLog(path, layout).blocks() if isinstance(each, TableBlock)]
    assert [each.place(0) for each in blocks] == ["line 1", "line 5", "line 8"]
    assert [each.get("item") for each in read(path, layout)[0]] == [
        *("a", "17", "17", None, ["b", "c"], ["b"], None, "a", "true")
    ]


def test_a_suggestion_reads_ids_of_64_bits_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    columns = {
        "time": [AT_MS + i for i in range(200)],
        "tweet": [1_900_000_000_000_000_001 + i // 2 for i in range(200)],
        "key": [bytes([154, i // 2]) for i in range(200)],
        "row": [1_900_000_000_000_000_001 + i for i in range(200)],
        "clicked": [i % 2 for i in range(200)],
    }
    pa.parquet.write_table(pa.table(columns), path)
    spec = suggest_spec(path, guess_layout(path).layout).text
    assert "# 100 values" in spec
    assert "# not used: row: 200 values: nearly every row has its own" in spec


def test_a_check_names_the_key_that_reads_what_a_data_frame_wrote(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "time,user,clicked", f"{AT_MS},1.0,0", f"{AT_MS},2.0,1")
    warnings = survey_log(path, FIELDS, BY_CLICK).warnings()
    assert any('write numbers = ["user"] in [file]' in each for each in warnings)
    typed = parse_layout('[file]\nnumbers = ["user"]\n' + BY_CLICK_TEXT, "l.toml")
    assert not any("numbers" in each for each in survey_log(path, FIELDS, typed).warnings())


def test_a_suggestion_has_fields_for_as_many_columns_as_there_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    columns = {f"c{k}": [i % 2 for i in range(40)] for k in range(1_005)}
    times = {"time": [AT_MS + i for i in range(40)], "clicked": [i % 4 // 3 for i in range(40)]}
    pa.parquet.write_table(pa.table(times | columns), path)
    text = suggest_spec(path, guess_layout(path).layout).text
    assert "one of more than 800 useful columns" in text


# ----------------------------------------------------------------------------------------- times


@pytest.mark.parametrize(
    "times",
    [
        *(["0", "7", "14"], ["874724710", "874724717", "874724724"]),
        *(["yesterday", "today", "now"], ["08:00:00", "08:00:07", "08:00:09"]),
    ],
)
def test_a_time_that_no_format_reads_is_refused_with_lines_to_start_from(
    tmp_path: Path, times: list[str]
) -> None:
    path = csv_file(tmp_path, "time,item,clicked", *(f"{each},a,1" for each in times))
    with pytest.raises(SpecError) as refused:
        guess_layout(path)
    message = str(refused.value)
    assert message.startswith(
        f"{path}: expected times since 2000 in the column 'time', got {times[0]!r}"
    )
    kept = parse_layout(message.partition("\n\n")[2], "layout.toml")
    assert kept.event.start is not None


def test_times_before_2000_are_moved_by_a_start_before_it(tmp_path: Path) -> None:
    """28 years after 1970, so the days of the week remain."""
    path = csv_file(tmp_path, "time,item,clicked", "874724710,a,1")
    layout = parse_layout(
        '[event]\ntimestamp = "time"\ntimestamp_format = "s"\nstart = 1998-01-01T00:00:00Z\n',
        "layout.toml",
    )
    then = datetime.fromtimestamp(874_724_710, UTC)
    moved = datetime.fromtimestamp(sample_log(path, layout, 1).times[0] / 1000, UTC)
    assert moved == then.replace(year=then.year + 28)
    assert moved.weekday() == then.weekday()


# ----------------------------------------------------------------------------------------- files


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("log.csv", "time,item\n1,a\n")
    return file.getvalue()


UNREADABLE: dict[str, tuple[str, bytes, str]] = {
    # the name of the file, its bytes, and words of the refusal
    "no rows": ("log.csv", b"", "expected rows to guess a layout from, got none"),
    "a spreadsheet": ("log.xlsx", b"PK", r"got 'log\.xlsx'\. Export a spreadsheet as CSV"),
    "an archive named as a CSV": (
        *("log.csv", zipped()),
        "expected text, got a ZIP archive or a spreadsheet",
    ),
    "latin1 in a header": (
        *("log.csv", "time,größe\n1,2\n".encode("latin1")),
        "expected UTF-8, got other bytes in its first line: conv",
    ),
    "latin1 in a column": (
        *("log.csv", "time,user,item\n1,u,Schlüpfer\n".encode("latin1")),
        "expected UTF-8, got other bytes in the column 'item'",
    ),
    "latin1 in a row of another width": (
        *("log.csv", f"time,item\n{AT_MS},a\n{AT_MS},ö,b\n".encode("latin1")),
        r"log\.csv: expected UTF-8, got other bytes in line 3",
    ),
    "a line for spreadsheets": (
        *("log.csv", f"sep=;\ntime;item\n{T0_MS};a\n".encode()),
        "got 'sep=;': remove this line",
    ),
    "a comment above the names": (
        *("log.csv", b"# of March\ntime;item\n2026-03-01 08:00:00;a\n"),
        "expected 1 column in each line, as the header names, go",
    ),
    "a repeated column": (
        *("log.csv", f"time,user,user\n{T0_MS},u,v\n".encode()),
        "a different name for each column, got 'user' 2 times",
    ),
    "day and month in any order": (
        *("log.csv", b"time,item\n03/04/2026 08:00:00,a\n03/04/2026 08:00:01,b\n"),
        "where %d/%m/%Y %H:%M:%S and %m/%d/%Y %H:%M:%S both",
    ),
    "a JSON array": (
        *("log.json", b'[{"a": 1}, {"a": 2}]'),
        r"got an array: convert it, as with jq -c '\.\[\]' log\.json",
    ),
    "JSON over several lines": (
        *("log.json", b'{\n  "a": 1\n}\n'),
        r"got an object over several lines: convert it, as with jq -c \. log\.json",
    ),
}


@pytest.mark.parametrize("file", UNREADABLE)
def test_a_file_that_cannot_be_read_as_a_table_is_refused_with_the_next_step(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], file: str
) -> None:
    name, data, message = UNREADABLE[file]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SpecError, match=message):
        guess_layout(tmp_path / name)
    assert capfd.readouterr().err == ""


def test_a_directory_with_a_file_that_ends_in_the_middle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "impressions.ndjson").write_text(json.dumps(impression(0)))
    packed = zstandard.compress("\n".join(json.dumps(click(i)) for i in range(60_000)).encode())
    (tmp_path / "clicks.ndjson.zst").write_bytes(packed[: len(packed) * 6 // 10])
    wanted = "zst: expected a whole file, got one that ends in the middle: copy it again"
    with pytest.raises(SpecError, match=wanted):
        survey_log(tmp_path, FIELDS)
    with pytest.raises(SpecError, match=wanted):
        list(open_log(tmp_path).lines())


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_a_mark_of_the_encoding_of_ndjson_is_no_part_of_it(tmp_path: Path, encoding: str) -> None:
    rows = [{"time": AT_MS, "größe": "ä", "clicked": 0}, {"time": AT_MS, "clicked": 1}]
    path = tmp_path / "LOG.NDJSON"
    path.write_bytes("\n".join(json.dumps(each) for each in rows).encode(encoding))
    first = guessed(path)[0][0]
    assert (first["timestamp_ms"], first["größe"], len(first)) == (AT_MS, "ä", 3)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, bz2.compress])
def test_a_packed_file_is_read_whatever_its_name(tmp_path: Path, pack: Any) -> None:
    for name in ("log.csv", "log.csv.gz"):
        path = tmp_path / name
        path.write_bytes(pack(f"time,item\n{AT_MS},a\n".encode()))
        assert [each["item"] for each in guessed(path)[0]] == ["a"]


def test_a_damaged_page_of_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    table = pa.table({"time": [AT_MS + i for i in range(100)]})
    pa.parquet.write_table(
        table, path, compression="none", use_dictionary=False, write_page_checksum=True
    )
    data = bytearray(path.read_bytes())
    data[data.index(AT_MS.to_bytes(8, "little")) + 8] ^= 1
    path.write_bytes(data)
    with pytest.raises(SpecError, match="CRC checksum verification failed"):
        guess_layout(path)


def test_ids_that_look_like_seconds_are_no_times_unless_they_rise(tmp_path: Path) -> None:
    users = [1_200_000_000 + 7919 * i % 1000 for i in range(50)]
    rows = [f"{user},a,{i % 2}" for i, user in enumerate(users)]
    assert guess_layout(csv_file(tmp_path, "user,item,clicked", *rows)).layout.event.start
    rising = csv_file(tmp_path, "c0,item,clicked", *sorted(rows))
    assert guess_layout(rising).layout.event.timestamp == "c0"


def test_a_line_break_in_a_cell_of_the_header_is_a_blank(tmp_path: Path) -> None:
    rows = [f"{AT_MS + i},{i % 5},{i % 2}" for i in range(40)]
    path = csv_file(tmp_path, 'time,"my\nitem",clicked', *rows)
    assert 'source = "my item"' in suggest_spec(path, guess_layout(path).layout).text


def test_a_row_of_a_single_format_decides_between_day_and_month(tmp_path: Path) -> None:
    rows = [f"{day}-2004 12:00:00,a" for day in ("01-01", "02-02", "03-03", "13-12")]
    path = csv_file(tmp_path, "time,item", *rows)
    assert guess_layout(path).layout.event.timestamp_format == "%d-%m-%Y %H:%M:%S"


def test_numbers_that_look_like_dates_are_times_only_under_the_name_of_a_time(
    tmp_path: Path,
) -> None:
    for name, form in (("total", "ms"), ("hour", "%y%m%d%H")):
        path = tmp_path / f"{name}.parquet"
        pa.parquet.write_table(pa.table({name: [26_030_108, 26_030_109], "item": [1, 2]}), path)
        event = guess_layout(path).layout.event
        assert (event.timestamp == name, event.timestamp_format) == (form != "ms", form)


@pytest.mark.parametrize("hours", [("00", "00"), ("00", "01")])
def test_times_of_whole_hours_are_not_called_days(tmp_path: Path, hours: tuple[str, str]) -> None:
    rows = [f"141021{hour},a" for hour in hours]
    found = guess_layout(csv_file(tmp_path, "hour,item", *rows)).text
    assert "these are hours" in found
    assert "these are days" not in found


def test_a_nested_column_that_no_field_reads_refuses_no_row(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    columns = {
        "time": [AT + timedelta(seconds=i) for i in range(4)],
        "user": ["a", "b", "a", "b"],
        "carts": [[{"sku": 1}], [], None, [{"sku": 2}]],
        "clicked": [0, 1, 0, 1],
    }
    pa.parquet.write_table(pa.table(columns), path)
    found = guess_layout(path)
    assert '# not "carts": nested values' in found.text
    survey = survey_log(path, FIELDS, found.layout)
    assert (survey.refused, survey.clicks) == ((), 2)


WITHOUT_PANDAS = """
import sys
class NoPandas:
    def find_spec(self, name, *more):
        if name.split(".")[0] == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoPandas())
from pathlib import Path
from headrace.ingest.logs.layout_guess import guess_layout
from headrace.ingest.survey.log_survey import survey_log
from headrace.learner.spec.model_spec import parse_spec
from headrace.learner.suggestion.spec_suggestion import suggest_spec
path = Path(sys.argv[1])
layout = guess_layout(path).layout
spec = parse_spec(suggest_spec(path, layout).text, "spec.toml")
[refused] = survey_log(path, spec.fields, layout).refused
print(refused.count, refused.place, refused.example)
"""


def test_a_row_with_nanoseconds_is_refused_by_its_place_without_pandas(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    times = pa.array([AT_MS * 10**6 + i for i in range(59)] + [7], pa.timestamp("ns"))
    clicked = [i % 3 == 0 for i in range(60)]
    pa.parquet.write_table(
        pa.table({"time": times, "item": ["a", "b"] * 30, "clicked": clicked}), path
    )
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"1 {path}, row 60 time='1970-01-01T00:00:00'")
