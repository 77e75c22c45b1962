"""Load shedding, limits of bodies, and tokens."""

import asyncio
from typing import Any

import httpx
import pytest

from headrace.runtime.http.http_errors import RequestRefused
from headrace.serving.api.load_shedding import LoadShedder
from headrace.serving.requests.limits import RequestLimits
from tests.serving.api.app_client import PREDICT, TOKEN, ask, complete
from tests.serving.served_models import NOW_MS, Serving, memory_store, news


def test_a_request_that_would_wait_too_long_is_refused_until_the_queue_is_shorter() -> None:
    shedder = LoadShedder(RequestLimits(waiting_ms=50))
    shedder.take(8_000)
    shedder.done(8_000, 0.1)  # a body of this size takes 100 ms
    taken = 0
    while shedder.waiting_s <= 0.05:
        shedder.take(8_000)
        taken += 1
    with pytest.raises(RequestRefused) as refused:
        shedder.take(8_000)
    assert refused.value.status == 503
    assert "at most 50 ms of queued work" in refused.value.refusal.expected
    assert 0.05 < shedder.waiting_s < 0.15
    for _ in range(taken):
        shedder.done(8_000, None)
    assert shedder.waiting_s == 0.0
    shedder.take(8_000)


def test_a_request_to_an_empty_queue_is_admitted_however_long_it_takes() -> None:
    shedder = LoadShedder(RequestLimits(waiting_ms=1))
    shedder.take(100_000)
    shedder.done(100_000, 60.0)
    shedder.take(100_000)
    assert shedder.waiting_s > 0.001


def test_requests_that_arrive_together_are_answered_or_get_503_with_retry_after() -> None:
    store = memory_store(news())
    serving = Serving(store, RequestLimits(waiting_ms=1))
    serving.follow()
    asked = {"candidates": [{"article_id": i} for i in range(300)]}

    async def ask_together() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=serving.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            posts = (client.post(PREDICT, json=asked) for _ in range(100))
            return await asyncio.gather(*posts)

    answers = asyncio.run(ask_together())
    statuses = {answer.status_code for answer in answers}
    assert statuses == {200, 503}
    told = next(answer for answer in answers if answer.status_code == 503)
    assert told.headers["retry-after"] == "1"
    assert "ms of queued work" in told.json()["error"]["expected"]
    assert serving.sample("headrace_server_requests_total", code="503")
    assert ask(serving, "POST", PREDICT, json=asked).status_code == 200


def stalled(serving: Serving, begin: bytes, second: dict[str, Any]) -> list[httpx.Response]:
    """Return the answers to a request whose body stalls, and to one sent meanwhile."""

    async def two() -> list[httpx.Response]:
        sending, go_on = asyncio.Event(), asyncio.Event()

        async def slowly() -> Any:
            yield begin
            sending.set()
            await go_on.wait()
            yield b"[{}]}"

        transport = httpx.ASGITransport(app=serving.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            first = asyncio.create_task(client.post(PREDICT, content=slowly()))
            await sending.wait()
            answer = await client.post(PREDICT, **second)
            go_on.set()
            return [await first, answer]

    return asyncio.run(two())


def test_a_stalled_body_takes_no_place_of_another_request() -> None:
    serving, _ = complete(limits=RequestLimits(requests=1))
    answers = stalled(serving, b'{"candidates":', {"json": {"candidates": [{}]}})
    assert [answer.status_code for answer in answers] == [200, 200]


def test_bodies_that_arrive_hold_at_most_some_bytes_together() -> None:
    serving, _ = complete(limits=RequestLimits(reading_bytes=30))

    async def parts() -> Any:
        yield b'{"candidates":[{}],'
        yield b'"request_id":"r"}'

    answers = stalled(serving, b'{"candidates":', {"content": parts()})
    assert [answer.status_code for answer in answers] == [200, 503]
    assert answers[1].json()["error"]["expected"] == "at most 30 bytes of bodies that are arriving"
    assert ask(serving, "POST", PREDICT, json={"candidates": [{}]}).status_code == 200


async def never() -> Any:
    """A body that begins, and does not go on."""
    yield b"{"
    await asyncio.Event().wait()


async def endless() -> Any:
    while True:
        yield b" "


def test_a_body_that_is_too_large_or_too_late_is_refused_before_it_ends() -> None:
    serving, _ = complete(limits=RequestLimits(body_bytes=100, body_timeout_s=0.05))
    announced = {"content-length": "101"}
    for body, headers, status in ((never, announced, 413), (endless, {}, 413), (never, {}, 408)):
        answer = ask(serving, "POST", PREDICT, content=body(), headers=headers)
        assert answer.status_code == status
    assert answer.json()["error"]["found"] == "1 bytes"


def test_a_long_request_computed_on_the_thread_has_the_same_scores() -> None:
    rows = [{"article_id": i} for i in range(50)]
    asked: dict[str, Any] = {"candidates": rows, "timestamp_ms": NOW_MS}
    scores = []
    for aside_bytes in (1, 1 << 20):
        serving, _ = complete(limits=RequestLimits(aside_bytes=aside_bytes))
        answer = ask(serving, "POST", PREDICT, json=asked).json()
        scores.append([each["score"] for each in answer["predictions"]])
    assert scores[0] == scores[1]


def test_a_prediction_without_a_valid_token_gets_401() -> None:
    serving, _ = complete(tokens=[TOKEN])
    asked: dict[str, Any] = {"candidates": [{}]}
    for path in (PREDICT, "/v1/models/news:rank"):
        for given in ({}, {"Authorization": "Bearer another"}, {"Authorization": f"Basic {TOKEN}"}):
            answer = ask(serving, "POST", path, json=asked, headers=given)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert TOKEN not in answer.text
    given = {"Authorization": f"Bearer {TOKEN}"}
    assert ask(serving, "POST", PREDICT, json=asked, headers=given).status_code == 200
    assert ask(serving, "GET", "/health/ready").status_code == 200
    page = ask(serving, "GET", "/openapi.json").json()
    assert page["paths"][PREDICT]["post"]["security"] == [{"token": []}]
