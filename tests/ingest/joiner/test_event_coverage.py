"""The coverage of declared fields in the impressions that a joiner reads."""

import json
import logging
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from headrace.ingest.features.fields import parse_fields
from headrace.ingest.features.spec_text import SpecText
from headrace.ingest.joiner.core.input import ChunkReader, EventSide
from headrace.ingest.joiner.event_coverage import LEAST_IMPRESSIONS, EventCoverage
from headrace.ingest.joiner.joiner_metrics import JoinerCollector
from headrace.ingest.kafka.fakes import ListTransactions
from headrace.ingest.kafka.protocols import MessageBlock, Record, Source
from headrace.ingest.survey.log_survey import survey_log
from tests.ingest.events_of import START_MS, TOPICS, happen
from tests.ingest.joiner.joiner_run import MODEL, PARTITIONS, JoinerRun

SPEC = """
[examples]
slice_by = ["site"]
[fields.article]
number = 1
transform = "id"
source = "article_id"
[fields.user]
number = 2
transform = "id"
source = "user_id"
[fields.price]
number = 3
transform = "number"
[fields.age]
number = 4
transform = "log_bucket"
[fields.tags]
number = 5
transform = "bag"
"""
WHERE = SpecText("test.toml", SPEC)
FIELDS = parse_fields(WHERE.tables(), WHERE)
EVENTS: list[dict[str, object]] = [
    {"article_id": "a", "price": 2, "age": "3", "tags": ["x"], "site": "s"},
    {"article_id": None, "price": "word", "age": None, "tags": "x"},
    {"article_id": ["a"], "price": "1.5", "tags": None},
    {"article_id": 7, "tags": [], "site": "\u00fc \\ escaped"},
]
SHARES = {
    "article": 0.5,
    "user": 0.0,
    "price": 0.5,
    "age": 0.25,
    "tags": 0.75,
    "site (slice_by)": 0.5,
}


def written(event: dict[str, object], place: int) -> bytes:
    both = {"impression_id": f"i{place}", "timestamp_ms": START_MS + place, **event}
    return json.dumps(both).encode()


def read(coverage: EventCoverage, lines: list[bytes]) -> None:
    records = [Record(Source("shown", 0), i, START_MS, line) for i, line in enumerate(lines)]
    ChunkReader(FIELDS, coverage.count).read(EventSide.IMPRESSIONS, MessageBlock.of(records))


def test_a_joiner_counts_what_check_reports(tmp_path: Path) -> None:
    good = [written(event, place) for place, event in enumerate(EVENTS)]
    tick = b'{"timestamp_ms":%d}' % START_MS
    coverage = EventCoverage(FIELDS, lambda: START_MS)
    read(coverage, [*good, b"nonsense", tick])
    found = coverage.recent()
    assert {name: found.share(name) for name in found.usable} == SHARES

    (tmp_path / "impressions.ndjson").write_bytes(b"\n".join(good))
    (tmp_path / "clicks.ndjson").write_bytes(b"")
    survey = survey_log(tmp_path, FIELDS)
    checked = {f.name: (f.present - f.unusable) / survey.readable for f in survey.fields}
    assert checked == SHARES


def test_a_joiner_warns_once_about_a_field_that_no_impression_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    coverage = EventCoverage(FIELDS, lambda: START_MS)
    lines = [written({**EVENTS[0], "user": f"u{i}"}, i) for i in range(LEAST_IMPRESSIONS)]
    with caplog.at_level(logging.WARNING):
        read(coverage, lines[:-1])
        assert not caplog.messages
        for _ in range(3):
            read(coverage, lines)
    [warning] = caplog.messages
    assert warning.startswith("field user: expected usable values of 'user_id', got none")


def test_metrics_have_the_recent_impressions_and_the_values_of_each_field() -> None:
    happened = happen(seed=5, count=400, partitions=PARTITIONS)
    joiner_run = JoinerRun(happened.records(TOPICS, PARTITIONS), ListTransactions())
    joiner_run.run()
    registry = CollectorRegistry()
    registry.register(JoinerCollector(MODEL, joiner_run.joiner))

    def seen(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(
            f"headrace_joiner_recent_{name}", {"model": MODEL} | labels
        )

    impressions = seen("impressions")
    assert impressions is not None and impressions >= 400
    for each in joiner_run.joiner.coverage.fields:
        values = seen("values", field=each.name, source=each.source)
        assert values is not None and 0 <= values <= impressions
    joiner_run.clock_ms += 3_600_000
    assert seen("impressions") == 0
