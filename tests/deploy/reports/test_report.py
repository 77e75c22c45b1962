"""The report: recounted from topics and rows, and written whole."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import zstandard

from headrace.deploy.local.log_run import in_words
from headrace.deploy.models.shipped import path_of
from headrace.deploy.reports.event_log import (
    check_log,
    curl_of,
    fields_of_requests,
    impression_ids_of,
    sample_request,
)
from headrace.deploy.reports.refusals import RefusalReason, Refusals, read_refusals
from headrace.deploy.reports.report import count_rows, make_report, write_report
from headrace.ingest.dead_letters.letter import pack as pack_letter
from headrace.ingest.events.contract import Reason
from headrace.ingest.examples.batch import Kind
from headrace.ingest.joiner.committed_state import JoinerState
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Record, Source
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, ensure_topics, topics_for
from headrace.ingest.logs.layout import ClickLayout, EventLayout, LogLayout
from headrace.learner.loop.guard.batch_guard import quarantine_letter
from headrace.learner.loop.marks.parked_marks import ParkedCause, ParkedMessage, ParkedRequest
from headrace.learner.spec.model_spec import load_spec, parse_spec
from headrace.learner.validation.outcomes import join_outcomes
from headrace.pserver.rows.deltas import RowDeltas
from headrace.pserver.rows.table import RowTable
from tests.deploy.reports.handmade import examples, scores

SPEC = load_spec(path_of("demo"))


def rows(counts: Sequence[tuple[int, int, int]]) -> RowTable:
    """A table of (field number, shows, clicks), one row each."""
    table = RowTable(SPEC.width)
    order = np.argsort([number for number, _, _ in counts], kind="stable")
    ids = [(place + 1) << 10 | number for place, (number, _, _) in enumerate(counts)]
    table.add(
        RowDeltas(
            np.array(ids, np.uint64)[order],
            np.array([shows for _, shows, _ in counts], np.uint32)[order],
            np.array([clicks for _, _, clicks in counts], np.uint32)[order],
            np.zeros(len(counts), np.uint32),
            np.zeros(len(counts), np.uint32),
            np.zeros((len(counts), SPEC.width), np.float32),
        )
    )
    return table


def log(directory: Path, lines: Sequence[bytes], *, packed: bool = False) -> Path:
    """A directory with these impressions, and a click at 40."""
    directory.mkdir()
    (directory / "clicks.ndjson").write_bytes(impression("b", 40))
    text = b"".join(line + b"\n" for line in lines)
    if packed:
        (directory / "impressions.ndjson.zst").write_bytes(zstandard.compress(text))
    else:
        (directory / "impressions.ndjson").write_bytes(text)
    return directory


def impression(name: str, timestamp_ms: int = 5) -> bytes:
    return orjson.dumps({"impression_id": name, "timestamp_ms": timestamp_ms, "page": "home"})


def test_the_report_sums_counters_by_the_field_of_a_row() -> None:
    # the spec numbers user 1, item 2; 0 is the intercept, 40 a statistic: neither is a field
    counted = count_rows(
        rows([(1, 3, 1), (2, 5, 2), (1, 4, 0), (0, 7, 3), (40, 9, 9)]), SPEC.fields
    )
    assert counted.rows == 5
    assert counted.shows_by_field["user"] == 7
    assert counted.clicks_by_field["user"] == 1
    assert (counted.shows_by_field["item"], counted.clicks_by_field["item"]) == (5, 2)
    assert set(counted.shows_by_field) == {field.name for field in SPEC.fields.singles}
    assert sum(counted.shows_by_field.values()) == 12


@pytest.mark.parametrize("packed", [False, True])
def test_a_log_is_read_plain_or_compressed_without_malformed_impressions(
    tmp_path: Path, packed: bool
) -> None:
    lines = [impression("a", 10), b"not JSON", b'{"timestamp_ms": 3}', b"\xff", impression("b", 35)]
    directory = log(tmp_path / "log", lines, packed=packed)
    assert impression_ids_of(directory).to_pylist() == ["a", "b"]
    assert [each["impression_id"] for each in sample_request(directory, ["page"])] == ["a", "b"]
    assert sample_request(directory, ["page"])[0]["page"] == "home"


def test_a_table_of_events_is_read_by_its_layout(tmp_path: Path) -> None:
    table = tmp_path / "log.csv"
    table.write_text("at,page,clicked\n1700000000,home,0\n1700000001,away,1\n")
    layout = LogLayout(
        event=EventLayout(timestamp="at", timestamp_format="s"), click=ClickLayout("clicked")
    )
    check_log(table, layout)
    assert impression_ids_of(table, layout).to_pylist() == ["log-0", "log-1"]
    assert [each["page"] for each in sample_request(table, ["page"], layout)] == ["home", "away"]


def test_the_sample_request_is_the_one_with_the_most_fields(tmp_path: Path) -> None:
    table = tmp_path / "log.csv"
    shown = ["1,r,,a,home", "2,r,,b,home", "3,s,u1,c,home", "4,t,u2,d,", "5,t,u2,e,home"]
    shown += ["6,t,u2,f,home", "7,v,u3,g,home", "8,v,u3,h,home"]
    table.write_text("\n".join(["at,view,user,item,page", *shown]) + "\n")
    event = EventLayout(timestamp="at", timestamp_format="s", request_id="view")
    # r has no user, s has one impression, and v is later than t
    found = sample_request(table, ["user", "item", "page"], LogLayout(event=event))
    assert [each["item"] for each in found] == ["e", "f", "d"]


def test_the_context_of_a_sample_request_has_what_all_of_its_impressions_share() -> None:
    spec = parse_spec(
        """
        model.name = "site"
        [fields]
        user = { number = 1, transform = "id" }
        brand = { number = 2, transform = "id" }
        item = { number = 3, transform = "id" }
        """,
        "site.toml",
    )
    assert fields_of_requests(spec.fields) == ["user", "brand", "item"]
    shared: dict[str, Any] = {"user": "u1", "brand": "x", "view": "r"}
    events = [shared | {"item": "a"}, shared | {"item": None}, shared | {"brand": "y"}]
    command = curl_of("http://here", spec, events)
    asked = orjson.loads(command.partition("-d '")[2].rstrip("'"))
    assert asked == {
        "context": {"user": "u1"},
        "candidates": [{"brand": "x", "item": "a"}, {"brand": "x"}],
    }


def test_the_report_has_the_accuracy_of_the_whole_and_of_each_directory(tmp_path: Path) -> None:
    data = [
        log(tmp_path / "one", [impression("a"), impression("b")]),
        log(tmp_path / "two", [impression("c"), impression("d")]),
    ]
    outcomes = join_outcomes(
        [
            examples([(Kind.SHOWN, name, "r1") for name in "ab"]),
            examples([(Kind.SHOWN, name, "r2") for name in "cd"]),
            examples([(Kind.CLICKED, "a", "r1"), (Kind.CLICKED, "c", "r2")]),
        ],
        [scores([("a", 0.6), ("b", 0.5), ("c", 0.1), ("d", 0.3)])],
    )
    report = make_report(
        state=JoinerState(4, 5, 1, 1, examples=6, dead_letters=1, unmatched_clicks=2),
        refusals=Refusals(
            *(2, 300, (RefusalReason("gradients explode", 300, "examples.m/0@7"),)),
            (RefusalReason(Reason.BEFORE_2000, 1, '{"timestamp_ms":1700000000}'),),
            (ParkedMessage("id/3", 7, 120, ParkedRequest.NOTHING, 8, ParkedCause.NUMBERS),),
        ),
        outcomes=outcomes,
        data=data,
        rows=count_rows(rows([(1, 4, 2)]), SPEC.fields),
        freshness_ms={"p50": 12.5, "p99": None},
        seconds=1.23456,
    )
    assert report["progressive"]["auc"] == 0.5
    assert report["progressive"]["request_auc"] == 0.5
    assert report["progressive"]["calibration"] == 0.75
    assert [part["auc"] for part in report["by_data"]] == [1.0, 0.0]
    assert [part["data"] for part in report["by_data"]] == [str(each) for each in data]
    assert report["freshness_ms"] == {"p50": 12.5, "p99": None}
    assert report["seconds"] == 1.235
    assert (report["held_batches"], report["held_examples"]) == (2, 300)
    assert (report["impressions"], report["clicks"], report["dead_letters"]) == (4, 5, 1)
    assert (report["rows"], report["shows_by_field"]["user"]) == (1, 4)
    assert list(report)[:6] == [
        *("impressions", "clicks", "learned_clicks", "late_clicks", "unmatched_clicks"),
        "duplicates",
    ]
    assert "after the impression" not in in_words(report, None)
    late = in_words(report | {"scored_after_ms": 600_000}, None)
    assert "(by scores made 10 minutes after the impression" in late
    words = in_words(report, None)
    assert (
        "parked, not learned so far: 120 examples at 3@7 (numbers) (headrace learner parked)"
        in words
    )
    assert "earlier runs" not in words
    accuracy = report["progressive"]
    for entropy, said in ((0.99, False), (1.01, True), (None, False)):
        changed = report | {"progressive": accuracy | {"normalized_entropy": entropy}}
        assert ("click rate alone would predict better" in in_words(changed, None)) is said
    assert "4 impressions and 2 clicks learned" in words
    assert "late clicks 1, clicks without an impression 2, duplicates 1, dead letters 1" in words
    assert f"1 time: {Reason.BEFORE_2000}" in words
    assert 'first: {"timestamp_ms":1700000000}' in words
    survey = {"refused": [{"reason": Reason.BEFORE_2000, "cause": "expected 3 columns, got 2"}]}
    told = in_words(report | {"logs": [survey]}, None)
    assert f"1 time: {Reason.BEFORE_2000} (expected 3 columns, got 2)" in told
    assert "300 examples in 2 batches" in words
    assert "300 times: gradients explode\n    first: examples.m/0@7" in words
    none = {"held_batches": 0, "held_by_reason": [], "refused_by_reason": []}
    of_earlier_runs = in_words(report | {"this_run": none}, None)
    assert "time" not in of_earlier_runs
    assert "quarantined" not in of_earlier_runs
    before = {"impressions": 3, "clicks": 4, "late_clicks": 1, "unmatched_clicks": 2}
    again = in_words(report | {"earlier": before}, None)
    assert "1 impression and 1 click learned" in again
    assert "with the 3 impressions of earlier runs:\n" in again


def test_an_undefined_figure_of_the_report_is_null(tmp_path: Path) -> None:
    outcomes = join_outcomes([examples([(Kind.SHOWN, "a", None)])], [scores([("a", 0.5)])])
    report = make_report(
        state=JoinerState(impressions=1, examples=1),
        refusals=Refusals(),
        outcomes=outcomes,
        data=[],
        rows=count_rows(rows([]), SPEC.fields),
        freshness_ms={},
        seconds=0.1,
    )
    path = tmp_path / "made" / "report.json"
    write_report(path, report)
    assert orjson.loads(path.read_bytes()) == report
    assert report["progressive"]["auc"] is None
    assert not {"AUC", "None", "-,"} & set(in_words(report, None).split())
    assert list(path.parent.iterdir()) == [path]


def test_a_quarantined_batch_counts_once_even_with_several_dead_letters(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    settings, name = KafkaSettings(kafka), fresh_name("held")
    spec = parse_spec(SPEC.text.replace('"demo"', f'"{name}"', 1), "held.toml")
    letters = EventTopics().dead_letters
    ensure_topics(settings, [each for each in topics_for(name) if each.name == letters])
    of_others = Source("examples.other", 0)
    writer = KafkaWriter(settings)
    for source, offset, reason in (
        (Source(f"examples.{name}", 1), 7, quarantine_letter(120, "gradients explode")),
        (Source(f"examples.{name}", 1), 7, quarantine_letter(120, "gradients explode")),
        (Source(f"examples.{name}", 0), 7, quarantine_letter(30, "another")),
        (of_others, 7, quarantine_letter(500, "gradients explode")),
    ):
        writer.send(Source(letters, 0), pack_letter(Record(source, offset, 1, b"[]"), reason))
    writer.flush()
    writer.close()
    held = read_refusals(settings, spec)
    assert (held.quarantined_batches, held.quarantined_examples) == (2, 150)
    assert [(each.count, each.reason) for each in held.quarantined] == [
        (120, "gradients explode"),
        (30, "another"),
    ]
    assert held.quarantined[0].example == f"examples.{name}/1@7"
