"""Tests the contract with producers: which messages are events, and why others are refused."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest.events.contract import AHEAD_MS, EARLIEST_MS, Reason, is_tick, read_event

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", Reason.EMPTY),
        (b"{", Reason.NOT_JSON),
        (b"\xff\xfe", Reason.NOT_JSON),
        (b'{"impression_id":"\xff","timestamp_ms":1700000000000}', Reason.NOT_JSON),
        (b"[" * 5000, Reason.NOT_JSON),
        (b"[1]", Reason.NOT_AN_OBJECT),
        (b"null", Reason.NOT_AN_OBJECT),
        (b'"text"', Reason.NOT_AN_OBJECT),
        (b"{}", Reason.NO_TIME),
        (b'{"impression_id":"i"}', Reason.NO_TIME),
        (b'{"impression_id":"i","timestamp_ms":null}', Reason.NO_TIME),
        (b'{"impression_id":"i","timestamp_ms":"1700000000000"}', Reason.BAD_TIME),
        (b'{"impression_id":"i","timestamp_ms":true}', Reason.BAD_TIME),
        (b'{"impression_id":"i","timestamp_ms":1.5}', Reason.BAD_TIME),
        (b'{"impression_id":"i","timestamp_ms":[1]}', Reason.BAD_TIME),
        (b'{"impression_id":"i","timestamp_ms":1700000000}', Reason.BEFORE_2000),
        (b'{"impression_id":"i","timestamp_ms":-1}', Reason.BEFORE_2000),
        (b'{"impression_id":"i","timestamp_ms":1700086400001}', Reason.AHEAD),
        (b'{"impression_id":"i","timestamp_ms":1e300}', Reason.AHEAD),
        (b'{"impression_id":"i","timestamp_ms":18446744073709551615}', Reason.AHEAD),
        (b'{"user":1,"timestamp_ms":1700000000000}', Reason.NO_ID),
        (b'{"impression_id":null,"timestamp_ms":1700000000000}', Reason.NO_ID),
        (b'{"impression_id":5,"timestamp_ms":1700000000000}', Reason.BAD_ID),
        (b'{"impression_id":"","timestamp_ms":1700000000000}', Reason.BAD_ID),
        (b'{"impression_id":["i"],"timestamp_ms":1700000000000}', Reason.BAD_ID),
        (b'{"impression_id":"i","timestamp_ms":1700000000000,"a":{}}', Reason.NESTED),
        (b'{"impression_id":"i","timestamp_ms":1700000000000,"a":[[1]]}', Reason.NESTED),
        (b'{"impression_id":"i","timestamp_ms":1700000000000,"a":[1,{}]}', Reason.NESTED),
    ],
)
def test_an_unusable_message_is_refused_with_its_reason(value: bytes, reason: Reason) -> None:
    assert read_event(value, NOW_MS) is reason


@given(
    st.dictionaries(
        st.text(),
        st.none()
        | st.booleans()
        | st.text()
        | st.integers(-(2**63), 2**63 - 1)
        | st.lists(st.text()),
    )
)
def test_an_event_keeps_all_its_fields(more: dict[str, object]) -> None:
    event = {**more, "impression_id": "i{[", "timestamp_ms": NOW_MS}
    assert read_event(orjson.dumps(event), NOW_MS) == event


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
_NEAR = st.fixed_dictionaries({}, optional={"impression_id": _JSON, "timestamp_ms": _JSON})


@given(st.binary() | (_JSON | _NEAR).map(lambda value: json.dumps(value).encode()))
def test_no_content_of_a_message_raises_an_error(value: bytes) -> None:
    assert isinstance(read_event(value, NOW_MS), Reason | dict)


def test_a_whole_number_written_as_a_float_is_a_time() -> None:
    event = read_event(b'{"impression_id":"i","timestamp_ms":1700000000000.0}', NOW_MS)
    assert isinstance(event, dict)
    assert event["timestamp_ms"] == NOW_MS
    assert type(event["timestamp_ms"]) is int


def test_an_event_with_only_a_time_is_a_tick() -> None:
    event = read_event(b'{"timestamp_ms":1700000000000}', NOW_MS)
    assert isinstance(event, dict) and is_tick(event)
    event = read_event(b'{"timestamp_ms":1700000000000,"impression_id":"i"}', NOW_MS)
    assert isinstance(event, dict) and not is_tick(event)


def test_the_accepted_range_of_event_time_depends_on_the_append_time() -> None:
    def at(time_ms: int, append_ms: int) -> object:
        return read_event(b'{"timestamp_ms":%d}' % time_ms, append_ms)

    assert at(EARLIEST_MS, NOW_MS) == {"timestamp_ms": EARLIEST_MS}
    assert at(EARLIEST_MS - 1, NOW_MS) is Reason.BEFORE_2000
    assert at(NOW_MS + AHEAD_MS, NOW_MS) == {"timestamp_ms": NOW_MS + AHEAD_MS}
    assert at(NOW_MS + AHEAD_MS + 1, NOW_MS) is Reason.AHEAD
    # without an append time
    assert at(NOW_MS + 10 * AHEAD_MS, -1) == {"timestamp_ms": NOW_MS + 10 * AHEAD_MS}
    assert at(10**15, -1) is Reason.AHEAD
