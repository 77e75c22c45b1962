"""Tests the answers of the collector, and the messages in Kafka when they arrive."""

import asyncio
import gzip

import pytest
from confluent_kafka import KafkaError

from headrace.ingest.collector.backpressure import CollectorLimits
from headrace.ingest.collector.responses import RETRY_AFTER_S
from headrace.ingest.collector.validation import _WANTED
from headrace.ingest.events.contract import Reason
from tests.ingest.collector.collected_events import CLICKS, IMPRESSIONS, JSON, line
from tests.ingest.collector.collecting import NOW_MS, collecting, until

pytestmark = pytest.mark.anyio
NDJSON = {"content-type": "application/x-ndjson"}


DAY_AHEAD = NOW_MS + 86_400_001

BROKEN: dict[str, tuple[bytes, int, str, str, str]] = {
    # sent: body; answer: status, reason, field and what was found
    "cut off": (
        b'{"impression_id": "a", "times',
        422,
        "not_json",
        "",
        '{"impression_id": "a", "ti',
    ),
    "not UTF-8": (b'{"impression_id": "\xff"}', 422, "not_json", "", '{"impression_id": "\\xff"}'),
    "another kind of JSON": (b'"click"', 422, "not_an_object", "", '"click"'),
    "no id": (b'{"timestamp_ms": 1767225600000, "a": 1}', 422, "no_id", "impression_id", "none"),
    "a tick": (b'{"timestamp_ms": 1767225600000}', 422, "no_id", "impression_id", "none"),
    "an id that is a number": (
        b'{"impression_id": 7, "timestamp_ms": 1767225600000}',
        *(422, "bad_id", "impression_id", "7"),
    ),
    "an empty id": (
        b'{"impression_id": "", "timestamp_ms": 1767225600000}',
        *(422, "bad_id", "impression_id", '""'),
    ),
    "no time": (b'{"impression_id": "a"}', 422, "no_time", "timestamp_ms", "none"),
    "a time in words": (
        b'{"impression_id": "a", "timestamp_ms": "yesterday"}',
        *(422, "bad_time", "timestamp_ms", '"yesterday"'),
    ),
    "a time in seconds": (
        b'{"impression_id": "a", "timestamp_ms": 1767225600}',
        *(422, "before_2000", "timestamp_ms", "1767225600"),
    ),
    "a time of next week": (
        line(timestamp_ms=DAY_AHEAD),
        *(422, "ahead", "timestamp_ms", str(DAY_AHEAD)),
    ),
    "a nested field": (line(user={"age": 3}), 422, "nested", "user", '{"age": 3}'),
    "a matrix": (line(tags=["a"], grid=[[1]]), 422, "nested", "grid", "[[1]]"),
    "an event too large": (line(text="x" * 70_000), 413, "too_large", "", "bytes"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_the_collector_answers_an_invalid_event_with_what_was_expected_and_found(
    name: str,
) -> None:
    body, status, reason, field, found = BROKEN[name]
    async with collecting() as collector:
        answer = await collector.http.post(IMPRESSIONS, content=body, headers=JSON)
        [refused] = answer.json()["refused"]
        assert (answer.status_code, answer.json()["accepted"]) == (status, 0)
        assert (refused["index"], refused["reason"], refused["field"]) == (0, reason, field)
        assert found in refused["found"]
        assert refused["expected"]
        assert "error" not in answer.json()
        assert collector.kafka.written == []
        labels = f'{{event="impression",reason="{reason}"}}'
        assert f"headrace_collector_refused_events_total{labels} 1.0" in collector.metrics()


def test_every_reason_of_the_joiner_that_the_collector_can_check_has_a_case() -> None:
    # one needs the watermark, the others the spec of a model
    assert set(Reason) - set(_WANTED) == {Reason.TOO_LATE, Reason.TOO_LARGE, Reason.BAD_WEIGHT}


WRONG: dict[str, tuple[bytes, dict[str, str], int, str, str]] = {
    # sent: body, headers; answer: status, field at fault and what was expected
    "a form": (
        b"a=1",
        {"content-type": "application/x-www-form-urlencoded"},
        *(415, "Content-Type", "application/json"),
    ),
    "no type": (b"{}", {}, 415, "Content-Type", "application/x-ndjson"),
    "an encoding": (b"{}", {**JSON, "content-encoding": "br"}, 415, "Content-Encoding", "gzip"),
    "nothing": (b"", JSON, 400, "", "at least one event"),
    "blank lines": (b"\n \r\n", NDJSON, 400, "", "at least one event"),
    "an empty batch": (b"[]", JSON, 400, "", "at least one event"),
    "half a batch": (b'[{"impression_id": "a"}, {', JSON, 400, "", "an array of JSON objects"),
    "not gzip": (b"{}", {**JSON, "content-encoding": "gzip"}, 400, "", "a body in gzip"),
    "half of gzip": (
        gzip.compress(line())[:-9],
        *({**JSON, "content-encoding": "gzip"}, 400, "", "a complete body in gzip"),
    ),
    "gzip and more": (
        gzip.compress(line()) * 2,
        *({**JSON, "content-encoding": "gzip"}, 400, "", "one gzip member"),
    ),
    "a body too large": (b" " * 2001, JSON, 413, "", "a body of at most 2000 bytes"),
    "a bomb": (
        gzip.compress(b" " * 2_000_000),
        *({**JSON, "content-encoding": "gzip"}, 413, "", "a body of at most 2000 bytes"),
    ),
    "a batch too large": (b"{}\n" * 11, NDJSON, 413, "", "at most 10 events"),
    "a promise too large": (
        b"",
        *({**JSON, "content-length": "9" * 30}, 413, "", "a body of at most 2000 bytes"),
    ),
    "a promise of nothing": (
        b"",
        *({**JSON, "content-length": "-5"}, 400, "Content-Length", "a number of bytes"),
    ),
}


@pytest.mark.parametrize("name", WRONG)
async def test_the_collector_refuses_an_invalid_request_as_a_whole(name: str) -> None:
    body, headers, status, field, expected = WRONG[name]
    limits = CollectorLimits(body_bytes=2000, batch_events=10)
    async with collecting(limits) as collector:
        answer = await collector.http.post(CLICKS, content=body, headers=headers)
        error = answer.json()["error"]
        assert (answer.status_code, error["field"]) == (status, field)
        assert expected in error["expected"]
        assert error["found"]
        assert (answer.json()["accepted"], answer.json()["refused"]) == (0, [])
        assert collector.kafka.written == []
        counted = f'headrace_collector_requests_total{{code="{status}",event="click"}} 1.0'
        assert counted in collector.metrics()


async def test_the_collector_writes_single_events_batches_and_lines_unchanged_with_keys() -> None:
    one = b' {"impression_id":"\xc3\xa9","timestamp_ms":1767225600000.0,"price":1.50} '
    bodies = [
        (one, JSON),
        (b"[" + line("b") + b" , " + line("c") + b"]", JSON),
        (line("d") + b"\r\n\n" + line("e") + b"\n", NDJSON),
        (gzip.compress(line("f")), {**NDJSON, "content-encoding": "gzip"}),
    ]
    async with collecting() as collector:
        for body, headers in bodies:
            answer = await collector.http.post(CLICKS, content=body, headers=headers)
            assert answer.status_code == 200, answer.text
        written = collector.kafka.written
        assert [each.key.decode() for each in written] == ["é", "b", "c", "d", "e", "f"]
        assert written[0].value == one.strip()
        assert [each.value.strip() for each in written[1:]] == [line(n) for n in "bcdef"]
        assert {each.topic for each in written} == {"clicks"}
        assert 'headrace_collector_events_total{event="click"} 6.0' in collector.metrics()


async def test_the_collector_answers_after_kafka_acknowledged() -> None:
    async with collecting() as collector:
        collector.kafka.holding = True
        asked = asyncio.create_task(collector.http.post(IMPRESSIONS, content=line(), headers=JSON))
        await until(lambda: collector.bound.events == 1)
        assert not asked.done()
        assert "headrace_collector_waiting_events 1.0" in collector.metrics()
        collector.kafka.holding = False
        assert (await asked).json() == {"accepted": 1, "refused": []}


async def test_the_collector_names_unacknowledged_events_for_sending_again() -> None:
    timed_out = KafkaError(KafkaError._MSG_TIMED_OUT)
    async with collecting() as collector:
        collector.kafka.failing = {line("b"): timed_out, line("c"): timed_out}
        body = b"\n".join([line("a"), line("b"), b"{}", line("c"), line("c"), line("d")])
        answer = await collector.http.post(IMPRESSIONS, content=body, headers=NDJSON)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == str(RETRY_AFTER_S[503])
        assert answer.json()["accepted"] == 2
        refused = [(each["index"], each["reason"]) for each in answer.json()["refused"]]
        assert refused == [
            (1, "not_acknowledged"),
            (2, "no_time"),
            (3, "not_acknowledged"),
            (4, "not_acknowledged"),
        ]
        assert "fake:9092" in answer.json()["refused"][0]["found"]


@pytest.mark.parametrize("when", ["when it is queued", "by the broker"])
async def test_the_collector_marks_events_that_kafka_refuses_as_final(when: str) -> None:
    async with collecting() as collector:
        if when == "by the broker":
            collector.kafka.failing = {line("b"): KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)}
        else:
            collector.kafka.refusing = {line("b")}
        body = b"\n".join([line("a"), line("b")])
        answer = await collector.http.post(IMPRESSIONS, content=body, headers=NDJSON)
        assert answer.status_code == 422
        [refused] = answer.json()["refused"]
        assert (refused["index"], refused["reason"]) == (1, "refused_by_kafka")
        assert [each.key for each in collector.kafka.written] == [b"a"]


FULL = {
    "requests": CollectorLimits(requests=1),
    "events": CollectorLimits(waiting_events=3),
    "bytes": CollectorLimits(waiting_bytes=150),
}


@pytest.mark.parametrize("what", FULL)
async def test_the_collector_answers_429_beyond_its_limits(what: str) -> None:
    async with collecting(FULL[what]) as collector:
        collector.kafka.holding = True
        body = b"\n".join([line("a"), line("b")])
        first = asyncio.create_task(collector.http.post(IMPRESSIONS, content=body, headers=NDJSON))
        await until(lambda: collector.bound.events == 2)
        second = await collector.http.post(CLICKS, content=body, headers=NDJSON)
        assert second.status_code == 429
        assert second.headers["retry-after"] == str(RETRY_AFTER_S[429])
        assert second.json()["accepted"] == 0
        assert "waiting" in second.json()["error"]["expected"]
        collector.kafka.holding = False
        assert (await first).status_code == 200
        assert (await collector.http.post(CLICKS, content=body, headers=NDJSON)).is_success
        assert len(collector.kafka.written) == 4
