"""Generated logs of many dialects make the events of their truth, or are refused by name."""

import csv
import gzip
import io
import json
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.ingest.examples.batch import concatenate
from headrace.ingest.features.cells.values import text_of
from headrace.ingest.features.encoder import Encoder
from headrace.ingest.features.spec_text import SpecError
from headrace.ingest.logs.layout import LogLayout
from headrace.ingest.logs.layout_guess import guess_layout
from headrace.ingest.logs.table_log import TableLog
from headrace.ingest.survey.log_survey import survey_log
from headrace.learner.batch.sources import FilePosition
from headrace.learner.batch.table_source import TableSource
from headrace.learner.spec.model_spec import parse_spec

SPEC = parse_spec(
    '[model]\nname = "m"\n[fields]\nitem = { number = 1, transform = "id" }\n', "spec.toml"
)
START = datetime(2026, 3, 1, 8, tzinfo=UTC)
CLOCKS = {  # patterns -> the unit to which they cut a time, in milliseconds
    "%Y-%m-%d %H:%M:%S": 1000,
    "%Y-%m-%dT%H:%M:%SZ": 1000,
    "%Y-%m-%d %H:%M:%S.%f UTC": 1,
    "%Y-%m-%d %H:%M:%S,%f": 1,
    "%Y-%m-%dT%H:%M:%S.%f+00:00": 1,
    "%d.%m.%Y %H:%M:%S": 1000,
    "%m/%d/%Y %I:%M:%S %p": 1000,
    "%m/%d/%Y %H:%M": 60_000,
    "%d/%m/%Y %H:%M:%S": 1000,
    "%a, %d %b %Y %H:%M:%S GMT": 1000,
    "s": 1000,
    "ms": 1,
    "us": 1,
}
LABELS = [
    ("0", "1"),
    ("no", "yes"),
    ("False", "True"),
    ("-1", "1"),
    ("", "1"),
    ("0.0", "1.0"),
    ("nein", "ja"),
    ("N", "Y"),
    ("0", "3"),
    *((never, "time") for never in ("", "0", "-1", "1970-01-01 00:00:00", "9999-12-31")),
]
"""Cells without and with a click; "time": that of the click, in the pattern of the impressions."""
ITEMS = [
    lambda i: (f"item {i % 7}", f"item {i % 7}"),
    lambda i: (str(i % 7), str(i % 7)),
    lambda i: (f"{i % 7}.0", str(i % 7)),
    lambda i: (str(i % 2 == 0), "true" if i % 2 == 0 else "false"),
    lambda i: (f'ä{i % 7} "x", y', f'ä{i % 7} "x", y'),
    lambda i: (str(2**63 + i % 7), str(2**63 + i % 7)),
]

MORE = st.lists(st.sampled_from(["", "a", "1.5", "x|y", "[1, 2]", "-"]), min_size=2, max_size=2)
"""Two cells of a column that no test looks at, and no reader may stumble over."""


@dataclass(frozen=True)
class Written:
    """A file and its truth."""

    name: str
    data: bytes
    times: list[int]
    items: list[str]
    clicked: list[bool]
    ambiguous: bool
    broken: bool
    odd: int | None
    """A row whose time, of the impression or of the click, cannot be read."""

    def __repr__(self) -> str:
        return f"{self.name}: {self.data[:300]!r}, broken={self.broken}"


def at(moment: datetime, pattern: str) -> str:
    ms = round(moment.timestamp() * 1000)
    counted = {"s": ms // 1000, "ms": ms, "us": ms * 1000}
    return str(counted[pattern]) if pattern in counted else f"{moment:{pattern}}"


@st.composite
def logs(draw: st.DrawFn) -> Written:
    rows, pattern = draw(st.integers(30, 60)), draw(st.sampled_from(sorted(CLOCKS)))
    gaps = draw(st.lists(st.integers(0, 30_000_000), min_size=rows, max_size=rows))
    moments, now = [], START
    for gap in gaps:
        now += timedelta(milliseconds=gap)
        moments.append(now)
    item, (no, yes) = draw(st.sampled_from(ITEMS)), draw(st.sampled_from(LABELS))
    clicked = [i % 5 == 3 for i in range(rows)]
    table = [
        [
            at(moment, pattern),
            item(i)[0],
            no if not clicked[i] else at(moment, pattern) if yes == "time" else yes,
            *draw(MORE)[i % 2 :][:1],
        ]
        for i, moment in enumerate(moments)
    ]
    odd = draw(st.none() | st.integers(0, rows - 1))
    if odd is not None:
        faults = ["soon", "2026-02-30 08:00:00", "30.02.2026"]
        if yes == "time" and draw(st.booleans()):
            table[odd][2] = draw(st.sampled_from(faults))
        else:
            table[odd][0] = draw(st.sampled_from(["", *faults]))
    suffix = draw(st.sampled_from(["csv", "CSV", "tsv", "txt", "ndjson", "jsonl", "parquet"]))
    packing, data = "", written(draw, suffix, table)
    if suffix != "parquet":
        packing = draw(st.sampled_from(["", ".gz", ".zst"]))
    broken = False
    if packing:
        data = gzip.compress(data) if packing == ".gz" else zstandard.compress(data)
        broken = draw(st.booleans())
        data = data[: len(data) * draw(st.integers(20, 95)) // 100] if broken else data
    cut = CLOCKS[pattern]
    times = [round(each.timestamp() * 1000) // cut * cut for each in moments]
    ambiguous = "%d/%m" in pattern or "%m/%d" in pattern
    items = [item(i)[1] for i in range(rows)]
    name = f"log.{suffix}{packing}"
    return Written(name, data, times, items, clicked, ambiguous, broken, odd)


def written(draw: st.DrawFn, suffix: str, table: list[list[str]]) -> bytes:
    """Return the bytes of a file with these rows of texts."""
    names = ["time", "item", "clicked", "more"]
    if suffix == "parquet":
        columns = [pa.array(each, pa.string()) for each in zip(*table, strict=True)]
        columns = [each.dictionary_encode() if draw(st.booleans()) else each for each in columns]
        file = io.BytesIO()
        pyarrow.parquet.write_table(pa.table(columns, names), file, row_group_size=17)
        return file.getvalue()
    if suffix in ("ndjson", "jsonl"):
        rows = [dict(zip(names, row, strict=True)) for row in table]
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    text = io.StringIO()
    ending = draw(st.sampled_from(["\n", "\r\n"]))
    writer = csv.writer(text, delimiter=draw(st.sampled_from(",;\t|")), lineterminator=ending)
    writer.writerows([names, *table])
    return text.getvalue().encode(draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16"])))


def events_of(log: TableLog) -> tuple[list[int | None], list[str], list[bool]]:
    shown: list[dict[str, Any]] = []
    clicks = set()
    for line in log.lines():
        event = json.loads(line.value)
        if line.is_click:
            clicks.add(event["impression_id"])
        else:
            shown.append(event)
    return (
        [each.get("timestamp_ms") for each in shown],
        [text_of(each["item"]) for each in shown],
        [each["impression_id"] in clicks for each in shown],
    )


def check_the_fit(log: Written, path: Path, layout: LogLayout) -> None:
    """Whether the survey and the fit refuse the odd row by its place, and learn the others."""
    found = survey_log(path, SPEC.fields, layout, now_ms=log.times[-1]).refused
    data = TableSource([str(path)], layout, SPEC, now_ms=log.times[-1])
    blocks = list(data.blocks(FilePosition()))
    fitted = [each for block in blocks for each in block.refusals]
    assert [each.place for each in found] == [each.place for each in fitted]
    kept = [i for i in range(len(log.times)) if i != log.odd]
    learned = concatenate([block.examples for block in blocks])
    assert learned.labels.tolist() == [log.clicked[i] for i in kept]
    assert learned.event_ms.tolist() == [log.times[i] for i in kept]
    truth = Encoder(SPEC.fields).encode([{"item": log.items[i]} for i in kept])
    np.testing.assert_array_equal(learned.features.ids, truth.ids)
    if log.odd is None:
        assert not found
        return
    line = log.odd + 1 if "parquet" in log.name or "json" in log.name else log.odd + 2
    [refusal] = found
    assert refusal.count == 1
    assert refusal.place.endswith((f"line {line}", f"row {line}"))
    assert "time" in refusal.advice


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(logs())
def test_a_generated_log_makes_the_events_of_its_truth_or_is_refused(log: Written) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / log.name
        path.write_bytes(log.data)
        try:
            layout = guess_layout(path).layout
            found = events_of(TableLog(path, layout))
        except SpecError as error:
            refusal = str(error)
        else:
            refusal = ""
            check_the_fit(log, path, layout)
    if refusal:
        assert refusal.startswith(str(path))
        assert log.broken or (log.ambiguous and "expected times of one meaning" in refusal)
        return
    assert not log.broken
    times: list[int | None] = [*log.times]
    clicked = log.clicked.copy()
    if log.odd is not None:
        times[log.odd], clicked[log.odd] = None, False
    assert found == (times, log.items, clicked)
