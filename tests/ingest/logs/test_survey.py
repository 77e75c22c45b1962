"""Tests the survey of a log: every fault of a log has a count, an example and a remedy."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.ingest.events.contract import Reason
from headrace.ingest.logs.ndjson import NoEventsError
from headrace.ingest.survey.findings import ClickCounts
from headrace.ingest.survey.log_survey import survey_log
from tests.ingest.logs.surveyed_events import (
    COUNT,
    FIELDS,
    NOW_MS,
    WINDOW_MS,
    Event,
    click,
    surveyed,
    without,
)


def test_a_log_without_faults_has_full_coverage_and_no_warning(tmp_path: Path) -> None:
    found = surveyed(tmp_path)
    assert found.warnings() == []
    assert not found.unusable
    assert (found.impressions, found.clicks, found.accepted) == (COUNT, 1, COUNT)
    assert {each.name: each.present - each.unusable for each in found.fields} == dict.fromkeys(
        ["user", "category", "position", "topics", "price"], COUNT
    )
    assert found.joined.matched == 1
    assert "200 impressions, 1 click, 2023-11-14 22:13:20 to" in found.in_words()


@pytest.mark.parametrize(
    ("change", "reason", "says"),
    [
        (
            lambda e: e | {"timestamp_ms": e["timestamp_ms"] // 1000},
            Reason.BEFORE_2000,
            "1700000000 looks like seconds. Write milliseconds, or in a layout timestamp_format",
        ),
        (
            lambda e: e | {"timestamp_ms": e["timestamp_ms"] * 1000},
            Reason.AHEAD,
            "1700000000000000 looks like microseconds",
        ),
        (
            lambda e: e | {"timestamp_ms": NOW_MS + 10 * 86_400_000},
            Reason.AHEAD,
            "impressions.ndjson, line 1: {",
        ),
        (lambda e: without(e, "impression_id"), Reason.NO_ID, "line 1"),
        (lambda e: e | {"impression_id": 7}, Reason.BAD_ID, '"impression_id": 7'),
        (lambda e: e | {"user": {"id": 1}}, Reason.NESTED, '"user": {"id": 1}'),
    ],
)
def test_unusable_events_are_reported_with_reason_count_place_and_remedy(
    tmp_path: Path, change: Callable[[Event], Event], reason: Reason, says: str
) -> None:
    found = surveyed(tmp_path, change, clicks=[])
    [refused] = found.refused
    assert (refused.reason, refused.count) == (reason, COUNT)
    assert found.unusable
    [warning] = found.warnings()
    assert f"200 of 200 events (100.0 %) are refused: {reason}" in warning
    assert says in warning


def test_a_field_that_no_event_has_is_named_with_the_name_that_may_be_meant(
    tmp_path: Path,
) -> None:
    found = surveyed(tmp_path, lambda e: without(e, "category") | {"categry": "news"})
    [warning] = found.warnings()
    assert warning.startswith("field category: no impression has 'category'")
    assert 'Did you mean "categry"?' in warning
    assert "category    0.0 %" in found.in_words()
    assert found.unusable


def test_a_number_given_as_text_is_reported_with_an_example(tmp_path: Path) -> None:
    found = surveyed(tmp_path, lambda e: e | {"position": f"pos {e['position']}"})
    [warning] = found.warnings()
    assert warning == (
        "field position: 200 values are not a number and count as absent, such as 'pos 0'. "
        "Correct the values, or give the field another transform"
    )
    [warning] = surveyed(tmp_path, lambda e: e | {"price": "3,5"}).warnings()
    assert warning.endswith("such as '3,5'. Write a decimal point in place of the comma")
    assert surveyed(tmp_path, lambda e: e | {"position": str(e["position"])}).warnings() == []


def test_a_bag_given_as_one_text_is_reported_with_an_example(tmp_path: Path) -> None:
    found = surveyed(tmp_path, lambda e: e | {"topics": "a|b"})
    [warning] = found.warnings()
    assert "field topics: expected arrays, got only single values, such as 'a|b'" in warning
    assert 'topics = { column = "topics", separator = "|" }' in warning


def test_a_shuffled_log_is_refused_as_the_joiner_would_and_sorting_is_suggested(
    tmp_path: Path,
) -> None:
    order = list(range(COUNT))
    random.Random(4).shuffle(order)
    found = surveyed(tmp_path, order=order)
    newest, late = 0, 0
    for i in order:
        newest = max(newest, i)
        late += 1000 * (newest - i) > WINDOW_MS
    assert {each.reason: each.count for each in found.refused} == {Reason.TOO_LATE: late}
    assert found.accepted == COUNT - late
    assert "user      100.0 %" in found.in_words()
    assert any("come after a newer one, by up to" in each for each in found.warnings())
    assert any("use --sort" in each for each in found.warnings())
    assert surveyed(tmp_path, order=order, sort=True).warnings() == []


def test_clicks_of_refused_impressions_are_not_blamed_on_their_ids(tmp_path: Path) -> None:
    order = list(range(COUNT))
    random.Random(4).shuffle(order)
    found = surveyed(tmp_path, order=order, clicks=[click(i) for i in range(COUNT)])
    [said] = [each for each in found.warnings() if "no impression of the same" in each]
    assert said.endswith("correct the refused events first, then compare the ids of both files")


def test_clicks_are_matched_late_unmatched_and_repeated_apart(tmp_path: Path) -> None:
    clicks = [click(1), click(2, WINDOW_MS + 1), click(5), click(5, 700), click(COUNT + 9)]
    found = surveyed(tmp_path, clicks=clicks)
    assert found.joined == ClickCounts(matched=2, late=1, unmatched=1, repeated=1)
    late, unmatched = sorted(found.warnings(), key=lambda each: "has no" in each)
    assert "1 of 5 clicks has no impression of the same impression_id" in unmatched
    assert "1 of 5 clicks comes more than 60 seconds after the impression: not learned" in late
    assert late.endswith("raise [label] window_s in the spec")


def test_clicks_that_are_mostly_late_point_to_the_zones_of_times(tmp_path: Path) -> None:
    clicks = [click(1), *(click(i, 7_200_000) for i in range(5, 8))]
    [late] = [each for each in surveyed(tmp_path, clicks=clicks).warnings() if "after" in each]
    assert "not learned. Compare the zones and units of both times. To learn them, raise" in late


def test_clicks_long_before_their_impressions_are_not_called_late(tmp_path: Path) -> None:
    placeholder = click(2) | {"timestamp_ms": 946_684_800_000}  # a click that there was not
    found = surveyed(tmp_path, clicks=[click(1), placeholder, click(5, -WINDOW_MS)])
    assert found.joined == ClickCounts(matched=2, early=1)
    assert "clicks: 2 matched, 0 late, 1 early, 0 without" in found.in_words()
    [early] = [each for each in found.warnings() if "the impression" in each]
    assert early.startswith("1 of 3 clicks comes more than 60 seconds before the impression")
    assert early.endswith("Correct the times, or remove these clicks")


def test_repeated_ids_are_estimated(tmp_path: Path) -> None:
    found = surveyed(tmp_path, lambda e: e | {"impression_id": f"s{e['position']}"})
    assert found.repeated_ids == COUNT - 5
    assert any("ids must be unique" in each for each in found.warnings())


def test_a_log_without_any_field_of_the_spec_is_unusable(tmp_path: Path) -> None:
    found = surveyed(
        tmp_path,
        lambda event: {
            **{name: event[name] for name in ("impression_id", "timestamp_ms")},
            "zip_code": "10115",
        },
    )
    assert found.unusable
    assert found.warnings()[0] == (
        "no impression has a value for any field of the spec: expected the spec of this log"
    )
    assert not any("Did you mean" in each for each in found.warnings())


def test_an_empty_or_missing_log_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "impressions.ndjson").touch()
    (tmp_path / "clicks.ndjson").touch()
    found = survey_log(tmp_path, FIELDS)
    assert found.unusable
    assert found.warnings() == [f"{tmp_path}: expected impressions, got none"]
    with pytest.raises(NoEventsError, match="nowhere, got neither a file nor a directory"):
        survey_log(tmp_path / "nowhere", FIELDS)
    (tmp_path / "other").mkdir()
    with pytest.raises(NoEventsError, match=r"expected impressions\.ndjson or"):
        survey_log(tmp_path / "other", FIELDS)


def test_a_directory_of_tables_is_refused_with_their_names_and_the_next_step(
    tmp_path: Path,
) -> None:
    for name in ("applications.parquet", "exposures.parquet", "notes.md"):
        (tmp_path / name).touch()
    with pytest.raises(
        NoEventsError, match=r"got applications\.parquet, exposures\.parquet\. Name"
    ):
        survey_log(tmp_path, FIELDS)
