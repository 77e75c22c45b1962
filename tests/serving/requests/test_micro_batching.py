"""Micro-batching: requests of one candidate share a call, with the scores they get alone."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.serving.api.fast_path import FastPathProtocol
from headrace.serving.models.micro_batching import MicroBatcher
from headrace.serving.models.predictor import Predictor, Scores
from headrace.serving.replicas.status import RowSource
from headrace.serving.requests.candidates import Candidates
from headrace.serving.requests.limits import RequestLimits
from tests.effort import examples
from tests.serving.api.app_client import Connection, complete, posted
from tests.serving.served_models import Serving, deltas_of_article


def learned() -> Serving:
    serving, pusher = complete(limits=RequestLimits(waiting_ms=60_000))  # even on a slow machine
    for article in range(4):
        pusher.push(deltas_of_article(serving.spec, article, 1.5 - article))
    serving.follow()
    return serving


SERVING = learned()
_FIELDS: dict[str, Any] = {
    "article_id": st.integers(0, 5),
    "user_id": st.sampled_from(["u", 7, 2.5, None, True]),
    "slate_size": st.sampled_from([0, 3, "12", -4.5, "none"]),
    "topics": st.lists(st.sampled_from(["a", "b", 3]), max_size=3),
    "price": st.sampled_from([0, 2.5, "7", 1e30, "dear"]),
    "timestamp_ms": st.sampled_from([1_760_000_000_000, 1_700_000_000_000, 3]),
}
_ROWS = st.fixed_dictionaries({}, optional=_FIELDS)
_DEMANDS = st.fixed_dictionaries(
    {},
    optional={
        "min_version": st.sampled_from([0, 1_000]),
        "max_age_ms": st.sampled_from([0, 10_000]),
        "uncertainty": st.booleans(),
        "explain": st.booleans(),
        "request_id": st.just("r"),
        "context": _ROWS,
    },
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Mostly requests of one candidate; some with more, some invalid, some rankings."""
    count = draw(st.sampled_from([1, 1, 1, 1, 0, 3]))
    rows = [{**draw(_ROWS), "impression_id": f"i{i}"} for i in range(count)]
    verb = draw(st.sampled_from(["predict", "predict", "rank"]))
    body = json.dumps({**draw(_DEMANDS), "candidates": rows}).encode()
    return posted(f"/v1/models/news:{verb}", body)


def answers(serving: Serving, asked: Sequence[bytes], *, together: bool) -> list[bytes]:
    async def ask() -> list[bytes]:
        connections = [Connection(FastPathProtocol, serving) for _ in asked]
        if not together:
            return [await answer(*each) for each in zip(connections, asked, strict=True)]
        for connection, request in zip(connections, asked, strict=True):
            connection.protocol.data_received(request)
        return [await each.answered() for each in connections]

    async def answer(connection: Connection, request: bytes) -> bytes:
        connection.protocol.data_received(request)
        return await connection.answered()

    return asyncio.run(ask())


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(requests(), min_size=1, max_size=9))
def test_requests_in_a_micro_batch_get_the_answers_that_they_get_alone(asked: list[bytes]) -> None:
    assert answers(SERVING, asked, together=True) == answers(SERVING, asked, together=False)


def of(article: object) -> bytes:
    row = {"article_id": article, "impression_id": "i"}
    return posted("/v1/models/news:predict", json.dumps({"candidates": [row]}).encode())


def test_a_micro_batch_is_scored_by_a_single_call_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serving, counts = learned(), []
    predict = serving.model.predict

    def counting(view: Any, features: Any, event_ms: Any, ends: Any) -> Scores:
        counts.append(len(features))
        return predict(view, features, event_ms, ends)

    monkeypatch.setattr(serving.model, "predict", counting)
    answers(serving, [of(i) for i in range(6)], together=True)
    assert counts == [6]
    answers(serving, [of(i) for i in range(3)], together=False)
    assert counts == [6, 1, 1, 1]


def test_a_micro_batch_is_scored_from_its_newest_rows() -> None:
    read: list[object] = []

    class Noting:
        def predict_events(self, rows: object, events: Sequence[object]) -> Scores:
            read.append(rows)
            return np.arange(len(events), dtype=np.float64)

    async def ask() -> list[tuple[Scores, float]]:
        together, predictor = MicroBatcher(), cast("Predictor", Noting())
        return await asyncio.gather(
            *(
                together.predict(predictor, cast("RowSource", rows), Candidates({}, [{}]), 0)
                for rows in ("older", "newer", "newest")
            )
        )

    assert [scores.tolist() for scores, _ in asyncio.run(ask())] == [[0.0], [1.0], [2.0]]
    assert read == ["newest"]


def test_a_failing_request_does_not_affect_the_rest_of_its_micro_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serving = learned()
    expected = answers(serving, [of(i) for i in range(4)], together=False)
    predict = serving.predictor.predict

    def fail(*_: object) -> Scores:
        raise ZeroDivisionError("a mistake")

    def failing(rows: RowSource, candidates: Candidates, now_ms: int) -> Scores:
        [event] = candidates.events(now_ms)
        return fail() if event["article_id"] == 2 else predict(rows, candidates, now_ms)

    monkeypatch.setattr(serving.predictor, "predict_events", fail)
    monkeypatch.setattr(serving.predictor, "predict", failing)
    found = answers(serving, [of(i) for i in range(4)], together=True)
    assert found[2].startswith(b"HTTP/1.1 500")
    assert [*found[:2], found[3]] == [*expected[:2], expected[3]]
