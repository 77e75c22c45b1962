"""Tests tables as logs: files become events by a layout, in order of time, without loss."""

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard

from headrace.ingest.events.contract import Reason, read_event
from headrace.ingest.features.spec_text import SpecError
from headrace.ingest.logs.layout import load_layout, parse_layout
from headrace.ingest.logs.ndjson import Line
from headrace.ingest.logs.table_log import TableLog

START_MS = 1_700_000_000_000


def events(lines: list[Line]) -> list[tuple[bool, dict[str, Any]]]:
    return [(line.is_click, json.loads(line.value)) for line in lines]


def check_order(lines: list[Line]) -> None:
    times = [line.time_ms for line in lines]
    assert times == sorted(times)
    for line in lines:
        if line.key is not None:
            assert json.loads(line.value)["impression_id"] == line.key.decode()
            assert not isinstance(read_event(line.value, 0), Reason)


def test_a_csv_file_with_times_and_clicks_becomes_events(tmp_path: Path) -> None:
    path = tmp_path / "shown.csv"
    path.write_text(
        "id,time,session,item,price,clicked_at,dwell\n"
        f"a,{START_MS},s1,shoe,2.50,{START_MS + 700},12\n"
        f"b,{START_MS + 500},s1,hat,,,\n"
        f"c,{START_MS + 1000},s2,coat,7,{START_MS + 1500},\n"
    )
    layout = parse_layout(
        """
        [file]
        numbers = ["price"]
        [event]
        impression_id = "id"
        request_id = "session"
        timestamp = "time"
        [click]
        timestamp = "clicked_at"
        value = "dwell"
        """,
        "layout.toml",
    )
    log = TableLog(path, layout)
    lines = list(log.lines())
    check_order(lines)
    shared = {"request_id": "s1"}
    first = {"item": "shoe", "price": 2.5, "impression_id": "a", "timestamp_ms": START_MS}
    second = {"item": "hat", "impression_id": "b", "timestamp_ms": START_MS + 500}
    click = {"impression_id": "a", "timestamp_ms": START_MS + 700, "value": 12}
    assert events(lines)[:3] == [(False, first | shared), (False, second | shared), (True, click)]
    assert events(lines)[3][1]["price"] == 7
    assert events(lines)[4] == (
        True,
        {"impression_id": "c", "timestamp_ms": START_MS + 1500},
    )
    assert log.bytes_read() == log.bytes_total == path.stat().st_size
    assert list(log.lines()) == lines, "a second reading gives the same lines"


def criteo_row(i: int) -> str:
    label = "1" if i % 4 == 0 else "0"
    counts = ["" if k == i % 13 else str(k * i) for k in range(13)]
    categories = [f"{k:02x}{i % 7:02x}" if k != 5 else "" for k in range(26)]
    return "\t".join([label, *counts, *categories])


def test_the_criteo_layout_reads_plain_and_compressed_files(tmp_path: Path) -> None:
    text = "".join(criteo_row(i) + "\n" for i in range(17_000)).encode()
    path = tmp_path / "train.txt"
    path.write_bytes(text)
    log = TableLog(path, load_layout("criteo"))
    lines = list(log.lines())
    check_order(lines)
    found = events(lines)
    impressions = [event for is_click, event in found if not is_click]
    clicks = [event for is_click, event in found if is_click]
    assert len(impressions) == 17_000
    assert len({event["impression_id"] for event in impressions}) == 17_000
    assert len(clicks) == 4_250
    third = impressions[3]
    assert third["I2"] == 3
    assert third["C1"] == "0003"
    assert "C6" not in third
    assert "I4" not in third
    assert "label" not in third
    start_ms = datetime(2014, 5, 1, tzinfo=UTC).timestamp() * 1000
    assert impressions[75]["timestamp_ms"] == start_ms + 1000
    assert clicks[0]["timestamp_ms"] == start_ms + 10_000
    assert log.bytes_read() == log.bytes_total
    for packing, packed in (
        (".gz", gzip.compress(text, 1)),
        (".zst", zstandard.compress(text, 1)),
    ):
        path = tmp_path / f"train.txt{packing}"
        path.write_bytes(packed)
        log = TableLog(path, load_layout("criteo"))
        assert list(log.lines()) == lines, packing
        assert log.bytes_read() == log.bytes_total, packing


def test_the_avazu_layout_reads_impressions_and_clicks(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text(
        "id,click,hour,C1,banner_pos,site_id\n"
        "1000009418151094273,0,14102100,1005,0,1fbe01fe\n"
        "10000169349117863715,1,14102101,1005,0,1fbe01fe\n"
    )
    lines = list(TableLog(path, load_layout("avazu")).lines())
    check_order(lines)
    hour_ms = int(datetime(2014, 10, 21, tzinfo=UTC).timestamp() * 1000)
    first = {"impression_id": "1000009418151094273", "timestamp_ms": hour_ms}
    second = {"impression_id": "10000169349117863715", "timestamp_ms": hour_ms + 3_600_000}
    shared = {"C1": "1005", "banner_pos": "0", "site_id": "1fbe01fe"}
    assert events(lines) == [
        (False, shared | first),
        (False, shared | second),
        (True, second | {"timestamp_ms": hour_ms + 3_610_000}),
    ]


def test_parquet_keeps_types_and_splits_bags(tmp_path: Path) -> None:
    path = tmp_path / "shown.parquet"
    moments = [datetime.fromtimestamp(START_MS / 1000 + i, UTC) for i in range(3)]
    table = pa.table(
        {
            "when": pa.array(moments, pa.timestamp("us", "UTC")),
            "item": [7, None, 9],
            "tags": ["a|b", None, "c"],
            "vector": [[1, 2], [3], []],
            "clicked": [True, False, True],
            "unused": [1, 2, 3],
        }
    )
    pa.parquet.write_table(table, path)
    layout = parse_layout(
        """
        [event]
        timestamp = "when"
        [click]
        column = "clicked"
        delay_ms = 1500
        [fields]
        item_id = "item"
        vector = "vector"
        tags = { column = "tags", separator = "|" }
        """,
        "layout.toml",
    )
    found = events(list(TableLog(path, layout).lines()))

    def at(row: int, after_ms: int = 0) -> dict[str, Any]:
        return {
            "impression_id": f"shown-{row}",
            "timestamp_ms": START_MS + 1000 * row + after_ms,
        }

    assert found == [
        (False, {"item_id": 7, "vector": [1, 2], "tags": ["a", "b"], **at(0)}),
        (False, {"vector": [3], **at(1)}),
        (True, at(0, 1500)),
        (False, {"item_id": 9, "vector": [], "tags": ["c"], **at(2)}),
        (True, at(2, 1500)),
    ]


def test_a_line_that_is_not_a_row_is_replayed_unchanged(tmp_path: Path) -> None:
    layout = parse_layout('[event]\ntimestamp = "t"\nimpression_id = "i"', "layout.toml")
    csv = tmp_path / "odd.csv"
    csv.write_text(f"i,t,x\na,{START_MS},1\nb,{START_MS},1,2,3\nc,soon,1\n,{START_MS},1\n")
    values = [line.value for line in TableLog(csv, layout).lines()]
    assert len(values) == 4
    assert f"b,{START_MS},1,2,3".encode() in values
    refused = [read_event(value, 0) for value in values]
    assert [each for each in refused if isinstance(each, Reason)].count(Reason.NO_TIME) == 1
    assert Reason.BAD_ID in refused
    ndjson = tmp_path / "odd.ndjson"
    ndjson.write_bytes(
        b'{"i": "a", "t": %d, "x": 1}\nnot json\n[1]\n{"i": "b", "t": %d, "y": 2.5}'
        % (START_MS, START_MS + 1)
    )
    lines = list(TableLog(ndjson, layout).lines())
    assert [line.value for line in lines[1:3]] == [b"not json", b"[1]"]
    assert json.loads(lines[0].value)["x"] == 1
    assert json.loads(lines[3].value)["y"] == 2.5


TIMED = '[event]\ntimestamp = "t"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[event]\ntimestamp = "t"\n[file]\nformat = "xml"', r"l\.toml:4: .*'xml'"),
        ("[event]\n", r"l\.toml:1: expected timestamp or start, found neither"),
        ('[event]\ntimestamp = "t"\ntimezone = "CET"', r"l\.toml:3: .*mean .time_zone.*timezone"),
        ('[event]\ntimestamp = "t"\n[click]\ncolumn = 3', r"l\.toml:4: .*got `int`"),
        ('[event]\ntimestamp = "t"\n[click]\n', "either column or timestamp, found neither"),
        ('[event]\ntimestamp = "t"\n[fields]\ntimestamp_ms = "t"', r"l\.toml:4: .*timestamp_ms"),
        ("[event]\nstart = 1970-01-01T00:00:00Z", r"l\.toml:2: expected a start in 2000"),
        ('[event]\ntimestamp = "t"\n[file]\ndelimiter = "ab"', r"l\.toml:4: .*one character"),
        ("[event", r"l\.toml:1: expected TOML"),
        (TIMED + 'timestamp_format = "iso"\ntime_zone = "Berlin"', "a zone of the tz database"),
        (TIMED + 'timestamp_format = "s"\ntime_zone = "Asia/Seoul"', "no time_zone beside"),
        (TIMED + 'timestamp_format = "%c %z"\ntime_zone = "Asia/Seoul"', "expected no time_zone"),
        (TIMED + 'timestamp_format = "%s"\ntime_zone = "Asia/Seoul"', "expected no time_zone"),
        (TIMED + 'timestamp_format = "%d.%m.%Y %Z"', r"l\.toml:3: expected %z .*CET are not read"),
        (TIMED + 'timestamp_format = "%f %S"', "expected %f once, after a point or a comma"),
        (TIMED + 'timestamp_format = "iso"\nstart = 2026-03-01T08:00:00Z', "expected start alone"),
        (TIMED + '[click]\ntimestamp = "c"\nvalues = ["x"]', "column beside values, found"),
    ],
)
def test_an_invalid_layout_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        parse_layout(text, "l.toml")


def test_a_file_without_the_columns_of_its_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"criteo.*got nothing\.toml"):
        load_layout("nothing.toml")
    layout = parse_layout('[event]\ntimestamp = "time"', "l.toml")
    path = tmp_path / "a.csv"
    with pytest.raises(SpecError, match="got no such file"):
        TableLog(path, layout)
    path.write_text("tyme,x\n1,2\n")
    with pytest.raises(SpecError, match=r'did you mean "tyme"'):
        list(TableLog(path, layout).lines())
    with pytest.raises(SpecError, match="format"):
        TableLog(tmp_path / "a.bin", layout)
