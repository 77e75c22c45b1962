"""docs/guides/serving.md is true: its request is answered as it shows."""

import asyncio
import json
import math
import re

import httpx
import msgspec
import pytest

from headrace.serving.api.responses import PredictResponse
from tests.docs.pages import DOCS, blocks
from tests.serving.api.app_client import PREDICT, ask
from tests.serving.served_models import (
    Pusher,
    Serving,
    deltas_of_article,
    impressions_of,
    memory_store,
    news,
)

PAGE = (DOCS / "guides/serving.md").read_text()
REQUEST, ANSWER, REFUSED, LACKING, EXPLAINED = (json.loads(text) for text in blocks(PAGE, "json"))


def asked(verb: str, body: object) -> httpx.Response:
    """The answer of a server that has learned one round of pushes."""
    store = memory_store(news())
    Pusher(store).push(deltas_of_article(news(), "a1", -0.5))
    serving = Serving(store)
    serving.follow()

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(serving.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.post(f"/v1/models/news:{verb}", json=body)

    return asyncio.run(ask())


def test_a_strict_request_with_a_misspelled_field_gets_the_refusal_of_the_page() -> None:
    misspelled = {**REQUEST, "context": {"user": "u1"}, "strict": True}
    made = asked("predict", misspelled).json()["error"]
    shown = REFUSED["error"]
    assert (made["field"], made["found"]) == (shown["field"], shown["found"])
    for part in ("a field of the model, one of article_id, ", '(did you mean "user_id"?)'):
        assert part in made["expected"]
        assert part in shown["expected"]


def test_the_status_of_a_model_shows_the_fields_of_the_page() -> None:
    store = memory_store(news())
    for event, times in (({"article_id": "a", "user_id": "u"}, 3), ({"article_id": "b"}, 1)):
        Pusher(store, f"topic/{times}").push(impressions_of(event, times))
    serving = Serving(store)
    serving.follow()
    body = {"context": {"user_id": "u"}, "candidates": [{"article": "a"}]}
    assert ask(serving, "POST", PREDICT, json=body).status_code == 200
    status = ask(serving, "GET", "/v1/models/news").json()
    assert {name: status["fields"][name] for name in LACKING["fields"]} == LACKING["fields"]
    assert status["unknown_fields"] == LACKING["unknown_fields"]


def test_an_explanation_has_the_keys_of_the_page_and_parts_that_sum_to_its_score() -> None:
    made = asked("predict", {**REQUEST, "explain": True}).json()["predictions"][0]
    assert made.keys() == EXPLAINED.keys()
    assert made["explanation"].keys() == EXPLAINED["explanation"].keys()
    shown = EXPLAINED["explanation"]
    assert sum(shown["parts"].values()) == pytest.approx(shown["log_odds"])
    assert 1.0 / (1.0 + math.exp(-shown["log_odds"])) == pytest.approx(EXPLAINED["score"], abs=1e-4)


def test_the_request_of_the_page_is_answered_with_the_keys_of_the_page() -> None:
    answer = asked("predict", REQUEST)
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert made.keys() == ANSWER.keys()
    assert {key for each in made["predictions"] for key in each} == {"impression_id", "score"}
    assert made["predictions"][1]["impression_id"] == ANSWER["predictions"][1]["impression_id"]
    msgspec.convert(ANSWER, PredictResponse)


def test_the_request_keys_of_the_page_are_those_that_a_server_accepts() -> None:
    refused = asked("rank", {**REQUEST, "zzz": 1}).json()["error"]["expected"]
    accepted = set(re.split(r", | or ", refused))
    table = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert table | {"top_k"} == accepted
    assert "`top_k`" in PAGE
