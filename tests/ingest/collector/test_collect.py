"""Tests the answers of the collector, and the messages in Kafka when they arrive."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError

from headrace.ingest.collector import delivery as delivery_module
from headrace.ingest.collector.backpressure import CollectorLimits
from headrace.ingest.collector.responses import RETRY_AFTER_S
from headrace.ingest.collector.validation import _WANTED
from headrace.ingest.errors import Fenced
from headrace.ingest.events.contract import Reason
from headrace.ingest.http.bearer_tokens import Tokens, token_lines
from headrace.ingest.http.http_errors import BadTokens
from tests.ingest.collector.collecting import NOW_MS, collecting, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

IMPRESSIONS, CLICKS = "/v1/impressions", "/v1/clicks"
JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
TOKEN = "a token of sixteen characters"


def event(name: str = "a", **fields: Any) -> dict[str, Any]:
    return {"impression_id": name, "timestamp_ms": NOW_MS, **fields}


def line(name: str = "a", **fields: Any) -> bytes:
    return json.dumps(event(name, **fields)).encode()


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
def test_the_collector_answers_an_invalid_event_with_what_was_expected_and_found(name: str) -> None:
    body, status, reason, field, found = BROKEN[name]

    async def send() -> None:
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

    asyncio.run(send())


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
def test_the_collector_refuses_an_invalid_request_as_a_whole(name: str) -> None:
    body, headers, status, field, expected = WRONG[name]

    async def send() -> None:
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

    asyncio.run(send())


def test_the_collector_writes_single_events_batches_and_lines_unchanged_with_keys() -> None:
    one = b' {"impression_id":"\xc3\xa9","timestamp_ms":1767225600000.0,"price":1.50} '
    bodies = [
        (one, JSON),
        (b"[" + line("b") + b" , " + line("c") + b"]", JSON),
        (line("d") + b"\r\n\n" + line("e") + b"\n", NDJSON),
        (gzip.compress(line("f")), {**NDJSON, "content-encoding": "gzip"}),
    ]

    async def send() -> None:
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

    asyncio.run(send())


def test_an_invalid_event_does_not_block_the_rest_of_its_batch() -> None:
    async def send() -> None:
        async with collecting() as collector:
            body = json.dumps([event("a"), event("b", timestamp_ms=5), event("c"), 7])
            answer = await collector.http.post(IMPRESSIONS, content=body, headers=JSON)
            assert answer.status_code == 422
            assert answer.json()["accepted"] == 2
            assert [each["index"] for each in answer.json()["refused"]] == [1, 3]
            assert [each.key for each in collector.kafka.written] == [b"a", b"c"]

    asyncio.run(send())


def test_the_collector_answers_after_kafka_acknowledged() -> None:
    async def send() -> None:
        async with collecting() as collector:
            collector.kafka.holding = True
            asked = asyncio.create_task(
                collector.http.post(IMPRESSIONS, content=line(), headers=JSON)
            )
            await until(lambda: collector.room.events == 1)
            assert not asked.done()
            assert "headrace_collector_waiting_events 1.0" in collector.metrics()
            collector.kafka.holding = False
            assert (await asked).json() == {"accepted": 1, "refused": []}

    asyncio.run(send())


def test_the_collector_names_unacknowledged_events_for_sending_again() -> None:
    timed_out = KafkaError(KafkaError._MSG_TIMED_OUT)

    async def send() -> None:
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

    asyncio.run(send())


@pytest.mark.parametrize("when", ["when it is queued", "by the broker"])
def test_the_collector_marks_events_that_kafka_refuses_as_final(when: str) -> None:
    async def send() -> None:
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

    asyncio.run(send())


FULL = {
    "requests": CollectorLimits(requests=1),
    "events": CollectorLimits(waiting_events=3),
    "bytes": CollectorLimits(waiting_bytes=150),
}


@pytest.mark.parametrize("what", FULL)
def test_the_collector_answers_429_beyond_its_limits(what: str) -> None:
    async def send() -> None:
        async with collecting(FULL[what]) as collector:
            collector.kafka.holding = True
            body = b"\n".join([line("a"), line("b")])
            first = asyncio.create_task(
                collector.http.post(IMPRESSIONS, content=body, headers=NDJSON)
            )
            await until(lambda: collector.room.events == 2)
            second = await collector.http.post(CLICKS, content=body, headers=NDJSON)
            assert second.status_code == 429
            assert second.headers["retry-after"] == str(RETRY_AFTER_S[429])
            assert second.json()["accepted"] == 0
            assert "waiting" in second.json()["error"]["expected"]
            collector.kafka.holding = False
            assert (await first).status_code == 200
            assert (await collector.http.post(CLICKS, content=body, headers=NDJSON)).is_success
            assert len(collector.kafka.written) == 4

    asyncio.run(send())


def test_a_stalled_body_takes_no_place_of_another_request() -> None:
    async def send() -> None:
        async with collecting(CollectorLimits(requests=1)) as collector:
            go_on = asyncio.Event()

            async def slowly() -> AsyncIterator[bytes]:
                yield line("a")[:5]
                await go_on.wait()
                yield line("a")[5:]

            first = asyncio.create_task(
                collector.http.post(IMPRESSIONS, content=slowly(), headers=JSON)
            )
            await until(lambda: collector.room.bytes == 5)
            assert collector.room.requests == 0
            second = await collector.http.post(IMPRESSIONS, content=line("b"), headers=JSON)
            assert second.status_code == 200
            go_on.set()
            assert (await first).status_code == 200

    asyncio.run(send())


def test_the_collector_answers_503_at_once_during_a_long_outage_and_recovers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery_module, "_PROBE_S", 0.01)

    async def send() -> None:
        async with collecting(deadline_s=0.0) as collector:
            collector.kafka.down = True
            collector.kafka.say(KafkaError(KafkaError._ALL_BROKERS_DOWN))
            await until(lambda: collector.delivery.lost)
            answer = await collector.http.post(IMPRESSIONS, content=line(), headers=JSON)
            assert answer.status_code == 503
            assert "a Kafka broker" in answer.json()["error"]["expected"]
            ready = await collector.http.get("/health/ready")
            assert (ready.status_code, ready.json()["kafka"]) == (503, False)
            assert "headrace_collector_kafka_up 0.0" in collector.metrics()
            collector.kafka.down = False
            await until(lambda: not collector.delivery.lost)
            assert (await collector.http.get("/health/ready")).status_code == 200
            answer = await collector.http.post(IMPRESSIONS, content=line(), headers=JSON)
            assert answer.status_code == 200

    asyncio.run(send())


def test_a_fatal_producer_error_fails_waiting_requests_and_stops_the_collector() -> None:
    fatal = KafkaError(KafkaError._FENCED, "fenced by another", fatal=True)

    async def send() -> None:
        async with collecting() as collector:
            collector.kafka.holding = True
            asked = asyncio.create_task(
                collector.http.post(IMPRESSIONS, content=line(), headers=JSON)
            )
            await until(lambda: collector.room.events == 1)
            collector.kafka.say(fatal)
            answer = await asked
            assert answer.status_code == 503
            assert "fenced by another" in answer.json()["refused"][0]["found"]
            assert isinstance(collector.delivery.failure, Fenced)
            assert (await collector.http.get("/health/ready")).status_code == 503
            later = await collector.http.post(IMPRESSIONS, content=line(), headers=JSON)
            assert later.status_code == 503
            assert collector.kafka.written == []

    asyncio.run(send())


def test_a_stalled_body_times_out_and_releases_its_share_of_the_limits() -> None:
    async def send() -> None:
        async def stalling() -> Any:
            yield b"{"
            await asyncio.Event().wait()

        async with collecting(CollectorLimits(body_timeout_s=0.01)) as collector:
            answer = await collector.http.post(IMPRESSIONS, content=stalling(), headers=JSON)
            assert answer.status_code == 408
            assert answer.json()["error"]["found"] == "1 bytes of it"

    asyncio.run(send())


GIVEN = {
    "none": (None, 401),
    "another": ("Bearer not the right one at all", 401),
    "a beginning": (f"Bearer {TOKEN[:-1]}", 401),
    "of another scheme": (f"Basic {TOKEN}", 401),
    "good": (f"Bearer {TOKEN}", 200),
    "good, in other letters": (f"bearer  {TOKEN}", 200),
    "the other good one": ("Bearer another of sixteen characters", 200),
}


@pytest.mark.parametrize("given", GIVEN)
def test_the_collector_accepts_only_requests_with_a_valid_token(
    given: str, caplog: pytest.LogCaptureFixture
) -> None:
    header, status = GIVEN[given]

    async def send() -> None:
        tokens = [TOKEN, "another of sixteen characters"]
        async with collecting(tokens=tokens) as collector:
            headers = JSON if header is None else {**JSON, "authorization": header}
            answer = await collector.http.post(IMPRESSIONS, content=line(), headers=headers)
            assert answer.status_code == status
            assert TOKEN not in answer.text
            if status == 401:
                assert answer.headers["www-authenticate"] == "Bearer"
            assert (await collector.http.get("/health/ready")).status_code == 200

    with caplog.at_level(logging.DEBUG):
        asyncio.run(send())
    assert TOKEN not in caplog.text


def test_tokens_are_read_from_a_file_and_short_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# of the shop\n{TOKEN}\n\n")
    assert token_lines(path) == [TOKEN]
    path.write_text("# none\n")
    with pytest.raises(BadTokens, match="got an empty file"):
        token_lines(path)
    with pytest.raises(BadTokens, match="No such file"):
        token_lines(tmp_path / "absent")
    with pytest.raises(BadTokens, match="got one of 5") as raised:
        Tokens(["hello"])
    assert "hello" not in str(raised.value)


def test_the_collector_accepts_the_examples_of_its_openapi_page() -> None:
    async def send() -> None:
        async with collecting(tokens=[TOKEN]) as collector:
            page = (await collector.http.get("/openapi.json")).json()
            sent = 0
            for path in (IMPRESSIONS, CLICKS):
                operation = page["paths"][path]["post"]
                assert operation["security"] == [{"token": []}]
                for kind, content in operation["requestBody"]["content"].items():
                    for example in content["examples"].values():
                        value = example["value"]
                        body = value if isinstance(value, str) else json.dumps(value)
                        headers = {"content-type": kind, "authorization": f"Bearer {TOKEN}"}
                        answer = await collector.http.post(path, content=body, headers=headers)
                        assert answer.status_code == 200, answer.text
                        sent += answer.json()["accepted"]
            assert sent == len(collector.kafka.written) == 2 * (1 + 2 + 2)
            assert page["components"]["schemas"]["Impression"]["required"]
            docs = await collector.http.get("/docs")
            assert docs.status_code == 200 and "<script" not in docs.text
            assert f"POST {CLICKS}" in docs.text and "http://" not in docs.text

    asyncio.run(send())


def test_the_collector_serves_schemas_and_answers_unknown_paths_in_the_same_shape() -> None:
    async def send() -> None:
        async with collecting() as collector:
            schema = await collector.http.get("/v1/schemas/click")
            assert schema.json()["title"] == "Click"
            assert schema.headers["content-type"] == "application/schema+json"
            absent = await collector.http.post("/v1/purchases", content=b"{}")
            assert (absent.status_code, absent.json()["accepted"]) == (404, 0)
            assert absent.json()["error"]["found"] == "POST /v1/purchases"
            assert (await collector.http.get(CLICKS)).status_code == 405
            assert (await collector.http.get("/health/live")).json() == {"live": True}

    asyncio.run(send())
