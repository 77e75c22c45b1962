"""Tests the partition keys of a replay and of the collector: requests stay in one partition."""

import orjson

from headrace.ingest.collector.backpressure import CollectorLimits
from headrace.ingest.collector.validation import check
from headrace.ingest.events.contract import request_key
from headrace.ingest.logs.ndjson import Line
from headrace.ingest.replay.request_keys import RequestKeys

WINDOW_MS = 1_000


def shown(name: str, time_ms: int, request: str | None) -> Line:
    return Line(time_ms, False, name.encode(), b"{}", request_key(request))


def clicked(name: str, time_ms: int, request: str | None = None) -> Line:
    return Line(time_ms, True, name.encode(), b"{}", request_key(request))


def test_a_replay_keys_a_click_like_its_impression() -> None:
    keys = RequestKeys(WINDOW_MS)
    assert keys.key_of(shown("a", 0, "r1")) == b"r1"
    assert keys.key_of(shown("b", 0, "r1")) == b"r1"
    assert keys.key_of(shown("c", 0, None)) == b"c"
    assert keys.key_of(clicked("b", 500)) == b"r1"
    assert keys.key_of(clicked("c", 500)) == b"c"
    assert keys.key_of(clicked("d", 500, "r2")) == b"r2"
    assert keys.key_of(Line(500, False, None, b"broken")) is None


def test_a_replay_remembers_requests_for_two_label_windows() -> None:
    keys = RequestKeys(WINDOW_MS)
    for time_ms in range(0, 20_000, 10):
        keys.key_of(shown(f"i{time_ms}", time_ms, f"r{time_ms}"))
    assert keys.key_of(clicked("i18000", 20_000)) == b"r18000"
    assert keys.key_of(clicked("i10000", 20_000)) == b"i10000"
    assert len(keys._younger) + len(keys._older) <= 401 + 201


def test_only_texts_and_whole_numbers_are_request_keys() -> None:
    found = [request_key(value) for value in ("r", "", 7, None, True, 1.5, ["r"])]
    assert found == [b"r", None, b"7", None, None, None, None]


def test_the_collector_keys_by_request_only_if_it_is_asked_to() -> None:
    now_ms = 1_767_225_600_000
    events = [
        orjson.dumps({"impression_id": "a", "timestamp_ms": now_ms, "request_id": "r"}),
        orjson.dumps({"impression_id": "b", "timestamp_ms": now_ms}),
    ]
    limits = CollectorLimits()
    by_default = check(events, now_ms, limits).messages
    by_request = check(events, now_ms, limits, by_request=True).messages
    assert [each.key for each in by_default] == [b"a", b"b"]
    assert [each.key for each in by_request] == [b"r", b"b"]
