"""Tables with objects, counts of clicks and Arrow's many types become logs of flat events."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace.ingest.features.spec_text import SpecError
from headrace.ingest.logs.layout import LogLayout, parse_layout
from headrace.ingest.logs.layout_guess import guess_layout
from headrace.ingest.logs.table_log import TableLog
from headrace.learner.suggestion.column_profile import profile_of
from headrace.learner.suggestion.log_sample import sample_log

PLAYS = [
    {
        "ts": f"2026-06-01T06:{i // 2:02}:00.250+02:00",
        "session": {"id": f"s{i // 2}", "device": {"os": "car"}},
        "episode": {"id": f"e{i}", "guests": ["ana", "bob"][: i % 3]},
        "outcome": {"played_at": f"2026-06-01T06:{i // 2:02}:30.250+02:00" if i % 5 == 0 else None},
    }
    for i in range(40)
]
SHOWN_MS = 1_780_286_400_250
"""06:00:00.250 at two hours ahead of UTC."""


def impressions(path: Path, layout: LogLayout) -> list[dict[str, Any]]:
    return [json.loads(line.value) for line in TableLog(path, layout).lines() if not line.is_click]


def as_ndjson(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def as_parquet(path: Path, columns: Any) -> Path:
    pa.parquet.write_table(columns, path)
    return path


@pytest.mark.parametrize("kind", ["ndjson", "parquet"])
def test_keys_of_objects_become_fields_with_dots(tmp_path: Path, kind: str) -> None:
    if kind == "ndjson":
        path = as_ndjson(tmp_path / "plays.ndjson", PLAYS)
    else:
        path = as_parquet(tmp_path / "plays.parquet", pa.Table.from_pylist(PLAYS))
    guessed = guess_layout(path).layout
    assert guessed.event.request_id == "session.id"
    assert guessed.click is not None
    assert guessed.click.timestamp == "outcome.played_at"
    shown = impressions(path, guessed)
    assert shown[2] == {
        "impression_id": "plays-2",
        "request_id": "s1",
        "timestamp_ms": SHOWN_MS + 60_000,
        "session.device.os": "car",
        "episode.id": "e2",
        "episode.guests": ["ana", "bob"],
    }
    assert sample_log(path, guessed, 1_000).labels.sum() == 8


@pytest.mark.parametrize("kind", ["ndjson", "parquet"])
def test_a_layout_names_the_keys_of_objects(tmp_path: Path, kind: str) -> None:
    text = '[event]\ntimestamp = "ts"\ntimestamp_format = "iso"\n[fields]\nepisode = "episode.id"\n'
    if kind == "ndjson":
        path = as_ndjson(tmp_path / "plays.ndjson", PLAYS)
    else:
        path = as_parquet(tmp_path / "plays.parquet", pa.Table.from_pylist(PLAYS))
        with pytest.raises(SpecError, match=r"expected a column, one of .*episode\.id.*eposide"):
            impressions(path, parse_layout(text.replace("episode.id", "eposide.id"), "l.toml"))
    shown = impressions(path, parse_layout(text, "l.toml"))
    assert shown[1] == {"impression_id": "plays-1", "timestamp_ms": SHOWN_MS, "episode": "e1"}


def test_an_array_of_objects_is_refused_by_the_suggestion(tmp_path: Path) -> None:
    path = as_ndjson(tmp_path / "a.ndjson", [{"ts": 1_780_286_400_250, "parts": [{"a": 1}]}] * 3)
    sample = sample_log(path, parse_layout('[event]\ntimestamp = "ts"\n', "l.toml"), 10)
    assert "nested values" in profile_of("parts", sample.columns["parts"], sample.labels).reason


def test_other_arrow_types_are_read_like_the_plain_ones(tmp_path: Path) -> None:
    texts = ["top", "side", None, "top"]
    columns = {
        "shown": pa.array(range(SHOWN_MS, SHOWN_MS + 4), pa.timestamp("ms")),
        "slot": pa.array(texts).dictionary_encode(),
        "place": pa.array(texts, pa.string_view()),
        "large": pa.array(texts, pa.large_string()),
        "tags": pa.array([["a"], [], None, ["b", "c"]], pa.large_list(pa.large_string())),
        "price": pa.array([Decimal("1.50"), Decimal("2.25"), None, Decimal(3)]),
        "nothing": pa.array([{"a": 1}, None, None, {"a": 2}]),
    }
    path = as_parquet(tmp_path / "log.parquet", pa.table(columns))
    layout = guess_layout(path).layout
    first, _, third, last = impressions(path, layout)
    assert first["price"] == 1.5
    assert (first["slot"], first["place"], first["large"]) == ("top", "top", "top")
    assert set(third) == {"impression_id", "timestamp_ms"}
    assert (last["tags"], last["nothing.a"]) == (["b", "c"], 2)
    sample = sample_log(path, layout, 10)
    for name, column in sample.columns.items():
        assert profile_of(name, column, sample.labels).source == name


@pytest.mark.parametrize("name", ["clicks", "plays", "opens"])
@pytest.mark.parametrize("as_text", [False, True])
def test_counts_of_clicks_are_clicks_where_they_are_above_zero(
    tmp_path: Path, as_text: bool, name: str
) -> None:
    counts = [0, 0, 1, 0, 3, 0, 0, 0, 0, 1]
    shown = list(range(SHOWN_MS, SHOWN_MS + 10))
    if as_text:
        path = tmp_path / "ads.csv"
        rows = [f"{ms},{count}" for ms, count in zip(shown, counts, strict=True)]
        path.write_text("\n".join([f"shown_at,{name}", *rows]) + "\n")
    else:
        path = as_parquet(tmp_path / "ads.parquet", pa.table({"shown_at": shown, name: counts}))
    guessed = guess_layout(path)
    assert "counts up to 3: a row above 0 is one click" in guessed.text
    assert sample_log(path, guessed.layout, 20).labels.tolist() == [each > 0 for each in counts]


def test_a_number_that_is_rarely_zero_is_no_count_of_clicks(tmp_path: Path) -> None:
    columns = {"shown_at": range(SHOWN_MS, SHOWN_MS + 10), "order_total": range(10)}
    path = as_parquet(
        tmp_path / "ads.parquet", pa.table({name: list(each) for name, each in columns.items()})
    )
    assert guess_layout(path).layout.click is None
