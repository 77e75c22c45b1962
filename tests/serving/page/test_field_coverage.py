"""The table of fields on the page: coverage of events beside that of requests."""

from headrace.ingest.status import ProcessStatus
from headrace.serving.page.field_coverage import (
    DIFFERS,
    MISSING_IN_EVENTS,
    MISSING_IN_REQUESTS,
    UNKNOWN,
)
from headrace.serving.page.history import SILENT_MS, History
from tests.serving.page.told_coverage import T0_MS, joiner, server


def shown(*statuses: ProcessStatus, at_ms: int = T0_MS) -> list[tuple[object, ...]]:
    history = History([])
    for status in statuses:
        history.take(status)
    history.step(at_ms)
    return [tuple(row.values()) for row in history.answer(0)["coverage"]]


def test_shares_are_those_of_all_processes_together_and_marked_where_they_differ() -> None:
    rows = shown(
        joiner("a", 90, user=90, article=90, device=81, site=0, tags=10),
        joiner("b", 10, user=10, article=10, device=9, site=0, tags=0),
        server("a", 60, user=60, article=0, device=36, site=30, tags=18, unknown_article=60),
        server("b", 40, user=40, article=0, device=24, site=20, tags=7, unknown_article=15),
    )
    assert rows == [
        ("news", "user", 1.0, 1.0, ""),
        ("news", "article (article_id)", 1.0, 0.0, MISSING_IN_REQUESTS),
        ("news", "device", 0.9, 0.6, DIFFERS),
        ("news", "site", 0.0, 0.5, MISSING_IN_EVENTS),
        ("news", "tags", 0.1, 0.25, ""),
        ("news", "unknown_article", None, 0.75, UNKNOWN),
    ]


def test_without_events_or_requests_a_share_is_undefined_and_not_marked() -> None:
    assert shown(joiner("a", 0, user=0), server("a", 0, user=0)) == [
        ("news", "user", None, None, "")
    ]
    assert shown(joiner("a", 4, user=4, weight=1)) == [
        ("news", "user", 1.0, None, ""),
        ("news", "weight", 0.25, None, ""),
    ]
    assert shown(server("a", 4, user=0)) == [("news", "user", None, 0.0, MISSING_IN_REQUESTS)]


def test_a_field_of_a_few_requests_is_marked_only_if_none_has_it() -> None:
    few = server("a", 99, user=99, article=0), server("a", 100, user=100, article=0)
    events = joiner("a", 100, user=70, article=100)
    assert [[row[-1] for row in shown(events, asked)] for asked in few] == [
        ["", MISSING_IN_REQUESTS],
        [DIFFERS, MISSING_IN_REQUESTS],
    ]


def test_models_have_rows_of_their_own_and_a_silent_process_has_none() -> None:
    statuses = joiner("a", 4, user=4), server("a", 2, user=2), server("a2", 2, "other", user=0)
    assert shown(*statuses) == [
        ("news", "user", 1.0, 1.0, ""),
        ("other", "user", None, 0.0, MISSING_IN_REQUESTS),
    ]
    assert shown(*statuses, at_ms=T0_MS + SILENT_MS + 1) == []
