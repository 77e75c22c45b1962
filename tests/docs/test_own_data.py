"""docs/guides/own_data.md is true: its layouts parse, and its code works."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace.ingest.logs.layout import parse_layout
from headrace.ingest.logs.table_log import TableLog
from tests.docs.pages import DOCS, blocks

PAGE = (DOCS / "guides" / "own_data.md").read_text()


@pytest.mark.parametrize("text", blocks(PAGE, "toml"))
def test_a_layout_of_the_page_parses(text: str) -> None:
    parse_layout(text, "layout.toml")


def test_clicks_of_a_file_of_their_own_join_the_impressions_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    at = datetime(2026, 5, 4, 8, tzinfo=UTC)
    shown = [{"exposure_id": i, "seen_at": at, "skills": ["sql", "java"]} for i in range(3)]
    applied = [{"exposure_id": 1, "applied_at": at + timedelta(seconds=s)} for s in (60, 30)]
    pyarrow.parquet.write_table(pa.Table.from_pylist(shown), "exposures.parquet")
    pyarrow.parquet.write_table(pa.Table.from_pylist(applied), "applications.parquet")
    [joining] = blocks(PAGE, "python")
    exec(joining)
    [layout] = [text for text in blocks(PAGE, "toml") if "applied_at" in text]
    log = TableLog(Path("log.parquet"), parse_layout(layout, "layout.toml"))
    events = [(line.is_click, json.loads(line.value)) for line in log.lines()]
    at_ms = int(at.timestamp() * 1000)
    assert [event for is_click, event in events if is_click] == [
        {"impression_id": "1", "timestamp_ms": at_ms + 30_000}
    ]
    assert [event["impression_id"] for is_click, event in events if not is_click] == list("012")
