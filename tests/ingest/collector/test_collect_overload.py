"""The collector under stalled or large bodies and outages; its clients and its page."""

import asyncio
import gzip
import json
import logging
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from headrace.ingest.collector import delivery as delivery_module
from headrace.ingest.collector.backpressure import CollectorLimits
from headrace.ingest.collector.body import unpack_gzip
from headrace.ingest.collector.collector_process import refuse_models
from headrace.ingest.errors import Fenced
from headrace.ingest.events.json_schema import EventKind
from headrace.runtime.http.bearer_tokens import Tokens, token_lines
from headrace.runtime.http.http_errors import BadTokens, RequestRefused
from headrace.runtime.http.token_grants import TokenGrant
from tests.ingest.collector.collected_events import CLICKS, IMPRESSIONS, JSON, line
from tests.ingest.collector.collecting import collecting, until

pytestmark = pytest.mark.anyio
TOKEN, ANOTHER = "a token of sixteen characters", "another of sixteen characters"


async def test_a_stalled_body_takes_no_place_of_another_request() -> None:
    async with collecting(CollectorLimits(requests=1)) as collector:
        go_on = asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield line("a")[:5]
            await go_on.wait()
            yield line("a")[5:]

        first = asyncio.create_task(
            collector.http.post(IMPRESSIONS, content=slowly(), headers=JSON)
        )
        await until(lambda: collector.bound.bytes == 5)
        assert collector.bound.requests == 0
        second = await collector.http.post(IMPRESSIONS, content=line("b"), headers=JSON)
        assert second.status_code == 200
        go_on.set()
        assert (await first).status_code == 200


async def test_the_collector_answers_503_at_once_during_a_long_outage_and_recovers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery_module, "_PROBE_S", 0.01)
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


async def test_a_fatal_producer_error_fails_waiting_requests_and_stops_the_collector() -> None:
    fatal = KafkaError(KafkaError._FENCED, "fenced by another", fatal=True)
    async with collecting() as collector:
        collector.kafka.holding = True
        asked = asyncio.create_task(collector.http.post(IMPRESSIONS, content=line(), headers=JSON))
        await until(lambda: collector.bound.events == 1)
        collector.kafka.say(fatal)
        answer = await asked
        assert answer.status_code == 503
        assert "fenced by another" in answer.json()["refused"][0]["found"]
        assert isinstance(collector.delivery.failure, Fenced)
        assert (await collector.http.get("/health/ready")).status_code == 503
        later = await collector.http.post(IMPRESSIONS, content=line(), headers=JSON)
        assert later.status_code == 503
        assert collector.kafka.written == []


async def test_a_stalled_body_times_out_and_releases_its_share_of_the_limits() -> None:
    async def stalling() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    async with collecting(CollectorLimits(body_timeout_s=0.01)) as collector:
        answer = await collector.http.post(IMPRESSIONS, content=stalling(), headers=JSON)
        assert answer.status_code == 408
        assert answer.json()["error"]["found"] == "1 bytes of it"


GIVEN = {
    "none": (None, 401),
    "another": ("Bearer not the right one at all", 401),
    "a beginning": (f"Bearer {TOKEN[:-1]}", 401),
    "of another scheme": (f"Basic {TOKEN}", 401),
    "good": (f"Bearer {TOKEN}", 200),
    "good, in other letters": (f"bearer  {TOKEN}", 200),
    "the other good one": (f"Bearer {ANOTHER}", 200),
}


@pytest.mark.parametrize("given", GIVEN)
def test_the_collector_accepts_only_requests_with_a_valid_token(
    given: str, caplog: pytest.LogCaptureFixture
) -> None:
    header, status = GIVEN[given]

    async def send() -> None:
        tokens = [TOKEN, ANOTHER]
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


async def test_the_collector_accepts_the_examples_of_its_openapi_page() -> None:
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


async def test_the_collector_serves_schemas_and_answers_unknown_paths_in_the_same_shape() -> None:
    async with collecting() as collector:
        schema = await collector.http.get("/v1/schemas/click")
        assert schema.json()["title"] == "Click"
        assert schema.headers["content-type"] == "application/schema+json"
        absent = await collector.http.post("/v1/purchases", content=b"{}")
        assert (absent.status_code, absent.json()["accepted"]) == (404, 0)
        assert absent.json()["error"]["found"] == "POST /v1/purchases"
        paths = f"POST {IMPRESSIONS} or POST {CLICKS}"
        assert absent.json()["error"]["expected"] == paths
        assert (await collector.http.get("/")).json()["error"]["expected"] == paths
        assert (await collector.http.post(f"{CLICKS}/", content=b"{}")).status_code == 404
        assert (await collector.http.get(CLICKS)).status_code == 405
        assert (await collector.http.get("/health/live")).json() == {"live": True}


def test_a_small_body_that_unpacks_to_a_large_one_takes_no_memory_for_it() -> None:
    limits = CollectorLimits(body_bytes=1 << 16)
    bomb = gzip.compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(RequestRefused, match="more, unpacked"):
            unpack_gzip(bomb, limits)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * limits.body_bytes


async def test_a_client_of_a_collector_gets_its_rate_and_is_counted_alone() -> None:
    grants = [TokenGrant(TOKEN, "shop", 0.001), TokenGrant(ANOTHER)]
    async with collecting(tokens=[TOKEN, ANOTHER], grants=grants) as collector:

        async def status(token: str) -> tuple[int, str | None]:
            headers = {**JSON, "authorization": f"Bearer {token}"}
            answer = await collector.http.post(CLICKS, content=line(), headers=headers)
            return answer.status_code, answer.headers.get("retry-after")

        assert await status(TOKEN) == (200, None)
        assert await status(TOKEN) == (429, "1000")
        assert await status(ANOTHER) == (200, None)
        value = collector.registry.get_sample_value
        kind = EventKind.CLICK
        for code in ("200", "429"):
            labels = {"client": "shop", "event": kind, "code": code}
            assert value("headrace_collector_client_requests_total", labels) == 1.0
        events = {"client": "shop", "event": kind}
        assert value("headrace_collector_client_events_total", events) == 1.0
        assert value("headrace_collector_events_total", {"event": kind}) == 2.0


def test_a_collector_refuses_tokens_that_name_models() -> None:
    grants = [TokenGrant(TOKEN, "shop", 0.0, ("news",))]
    with pytest.raises(BadTokens, match="events belong to no model"):
        refuse_models(grants)
