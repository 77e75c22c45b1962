"""Answers say how old their rows are, and continue when the store fails."""

import pytest

from headrace.pserver.errors import MissingBucket
from tests.serving.api.app_client import PREDICT, RANK, ask
from tests.serving.served_models import (
    BUCKETS,
    NOW_MS,
    Fallible,
    Pusher,
    Serving,
    deltas_of_article,
    memory_store,
    news,
)


def test_a_request_that_demands_more_freshness_than_available_gets_412() -> None:
    store = Fallible(memory_store(news()))
    pusher = Pusher(store)  # type: ignore[arg-type]
    serving = Serving(store)  # type: ignore[arg-type]
    serving.follow()
    fresh = {"candidates": [{}], "max_age_ms": 1_000}
    answer = ask(serving, "POST", PREDICT, json=fresh)
    assert answer.status_code == 412
    assert "nothing learned yet" in answer.json()["error"]["found"]
    pusher.push(deltas_of_article(serving.spec, 1, -1.0), append_ms=NOW_MS)
    serving.follow()
    assert ask(serving, "POST", PREDICT, json=fresh).status_code == 200
    assert ask(serving, "POST", RANK, json=fresh).status_code == 200
    versioned = {"candidates": [{}], "min_version": BUCKETS}
    assert ask(serving, "POST", PREDICT, json=versioned).status_code == 200

    store.away = {3}
    serving.clock.ms += 1_001
    pusher.push(deltas_of_article(serving.spec, 1, -1.0), append_ms=NOW_MS + 1_001)
    serving.follow()
    answer = ask(serving, "POST", PREDICT, json=fresh)
    assert answer.status_code == 412
    assert answer.json()["error"] == {
        "field": "max_age_ms",
        "expected": "information at most 1000 ms old in every bucket of the model",
        "found": "1001 ms (unreachable)",
    }
    answer = ask(serving, "POST", PREDICT, json={"candidates": [{}], "min_version": 1_000})
    assert (answer.status_code, answer.json()["error"]["field"]) == (412, "min_version")
    assert ask(serving, "POST", PREDICT, json={"candidates": [{}]}).status_code == 200


def test_answers_and_metrics_have_the_state_of_the_replica() -> None:
    store = Fallible(memory_store(news()))
    pusher = Pusher(store)  # type: ignore[arg-type]
    serving = Serving(store)  # type: ignore[arg-type]

    def state() -> str:
        answer = ask(serving, "POST", PREDICT, json={"candidates": [{}]})
        assert answer.status_code == 200
        said = str(answer.json()["state"])
        assert serving.sample("headrace_server_state", state=said) == 1.0
        return said

    serving.follower.step()
    assert serving.follower.status.complete
    assert state() == "starting"
    serving.follower.step()
    assert state() == "fresh"
    for _ in range(100):  # more than one poll folds
        pusher.push(deltas_of_article(serving.spec, 1, -1.0))
    serving.follower.step()
    assert state() == "behind"
    serving.follow()
    assert state() == "fresh"
    serving.clock.ms += 1_001  # no poll for more than a second
    assert state() == "behind"
    store.away = {1}
    serving.follower.step()
    assert state() == "unreachable"
    assert serving.sample("headrace_server_unreachable_buckets") == 1.0
    assert ask(serving, "GET", "/health/ready").status_code == 200
    store.failure = MissingBucket("bucket 2 of news has no version: restore it")
    with pytest.raises(MissingBucket):
        serving.follower.step()
    assert state() == "unreachable", "answers go on"
