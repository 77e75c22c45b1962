"""The HTTP routes of a server, without a socket."""

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from headrace.ingest.features.encoder import Encoder
from headrace.learner.spec.optimizer_spec import Optimizer
from tests.serving.api.app_client import PREDICT, RANK, ask, complete
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


def test_scores_are_those_of_the_forward_pass_that_training_uses() -> None:
    serving, pusher = complete()
    for article, z in ((1, -3.0), (2, 2.0), (3, -0.5)):
        pusher.push(deltas_of_article(serving.spec, article, z))
    serving.follow()
    context = {"user_id": "u", "slate_size": 3}
    candidates = [
        {"article_id": article, "topics": ["a"], "price": 2.5} for article in (1, 2, 3, 4)
    ]
    answer = ask(
        serving,
        "POST",
        PREDICT,
        json={"context": context, "candidates": candidates, "timestamp_ms": NOW_MS},
    )
    assert answer.status_code == 200
    found = [each["score"] for each in answer.json()["predictions"]]
    events = [{**context, **each, "timestamp_ms": NOW_MS} for each in candidates]
    features = serving.predictor._encoder.encode(events)
    times = np.full(4, NOW_MS, np.int64)
    assert found == serving.model.predict(serving.follower.table, features, times).tolist()
    assert found[0] > found[2] > found[3] > found[1]

    instances = ask(serving, "POST", PREDICT, json={"instances": events})
    assert [each["score"] for each in instances.json()["predictions"]] == found


def test_an_answer_has_the_version_the_ages_and_the_event_times_of_the_model() -> None:
    serving, pusher = complete()
    nothing = deltas_of_article(serving.spec, 1, -1.0)
    pusher.push(nothing, append_ms=NOW_MS - 300)  # the pusher's events happen as they are appended
    pusher.push(nothing, append_ms=NOW_MS - 100, buckets=[0])
    serving.follow()
    answer = ask(serving, "POST", PREDICT, json={"candidates": [{}], "request_id": "r1"}).json()
    assert (answer["model"], answer["request_id"]) == ("news", "r1")
    assert answer["version"] == BUCKETS + 1
    assert answer["age_ms"] == {"newest": 100, "oldest": 300}
    assert answer["event_ms"] == {"newest": NOW_MS - 100, "oldest": NOW_MS - 300}
    assert answer["event_age_ms"] == {"newest": 100, "oldest": 300}


def test_missing_impression_ids_are_generated_and_unique() -> None:
    serving, _ = complete()
    asked = {"candidates": [{"impression_id": "mine"}, {}, {}]}
    first = ask(serving, "POST", PREDICT, json=asked).json()["predictions"]
    second = ask(serving, "POST", PREDICT, json=asked).json()["predictions"]
    assert first[0]["impression_id"] == second[0]["impression_id"] == "mine"
    assert len({each["impression_id"] for each in first[1:] + second[1:]}) == 4


VERBS = "POST /v1/models/NAME:predict or POST /v1/models/NAME:rank"


@pytest.mark.parametrize(
    ("method", "path", "status", "expected"),
    [
        ("GET", "/nothing", 404, f"{VERBS}, or another path of /docs"),
        ("DELETE", "/v1/models", 405, ""),
        ("POST", "/v1/models/news:predict/", 404, ""),  # no redirect, which would leave TLS
        ("GET", "/v1/models/news:predict", 405, "the method POST"),
        ("GET", "/v1/models/news:rank", 405, "the method POST"),
        ("POST", "/v1/models/news:rnk", 404, VERBS),
        ("POST", "/v1/models/old:predict", 404, "news"),
        ("GET", "/v1/models/old", 404, "news"),
    ],
)
def test_a_request_to_a_wrong_path_is_refused_with_the_right_one(
    method: str, path: str, status: int, expected: str
) -> None:
    serving, _ = complete()
    answer = ask(serving, method, path, json={"candidates": [{}]})
    assert answer.status_code == status
    assert status != 405 or answer.headers["allow"]
    error = answer.json()["error"]
    assert set(error) == {"field", "expected", "found"}
    assert expected in error["expected"]
    unknown = "/old" in path
    assert error["found"] == "old" if unknown else path in error["found"]
    assert not unknown or error["field"] == "model"


def test_predictions_get_503_until_the_replica_is_complete() -> None:
    store = Fallible(memory_store(news()))
    Pusher(store).push(deltas_of_article(news(), 1, -1.0))  # type: ignore[arg-type]
    store.away = {2}
    serving = Serving(store)  # type: ignore[arg-type]
    for _ in range(3):
        serving.follower.step()
    answer = ask(serving, "POST", PREDICT, json={"candidates": [{}]})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert f"all {BUCKETS} buckets" in answer.text
    assert ask(serving, "GET", "/health/ready").status_code == 503
    assert ask(serving, "GET", "/health/live").status_code == 200
    shown = ask(serving, "GET", "/v1/models/news").json()
    assert shown["ready"] is False
    assert shown["buckets"] == {"total": BUCKETS, "complete": BUCKETS - 1, "unreachable": 1}

    store.away = set()
    serving.follow()
    assert ask(serving, "POST", PREDICT, json={"candidates": [{}]}).status_code == 200
    assert ask(serving, "GET", "/health/ready").status_code == 200


def test_the_model_status_has_rows_freshness_and_errors() -> None:
    serving, pusher = complete()
    pusher.push(deltas_of_article(serving.spec, 1, -1.0), clicks=[NOW_MS, NOW_MS], append_ms=NOW_MS)
    serving.clock.ms += 250
    serving.follow()
    status = ask(serving, "GET", "/v1/models/news").json()
    assert status["rows"] == 1
    assert status["fingerprint"] == serving.spec.fingerprint
    assert status["freshness"] == {"p50_ms": 250.0, "p99_ms": 250.0, "count": 2}
    assert status["trouble"] == ""
    assert ask(serving, "GET", "/v1/models").json() == {"models": [status]}


def test_metrics_have_requests_candidates_freshness_and_rows() -> None:
    serving, pusher = complete()
    serving.clock.ms += 250
    deltas = deltas_of_article(serving.spec, 1, -1.0)
    pusher.push(deltas, clicks=[NOW_MS], append_ms=serving.clock.ms)
    serving.follow()
    ask(serving, "POST", PREDICT, json={"candidates": [{}, {}]})
    answer = ask(serving, "GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    for line in (
        'headrace_server_requests_total{code="200",model="news"} 1.0',
        'headrace_server_candidates_total{model="news"} 2.0',
        'headrace_server_request_seconds_count{model="news"} 1.0',
        'headrace_server_freshness_seconds_bucket{le="0.3",model="news"} 1.0',
        'headrace_server_freshness_seconds_bucket{le="0.2",model="news"} 0.0',
        'headrace_server_rows{model="news"} 1.0',
        f'headrace_server_version{{model="news"}} {BUCKETS}.0',
        'headrace_server_unreachable_buckets{model="news"} 0.0',
        'headrace_server_age_seconds{bucket="oldest",model="news"} 0.0',
    ):
        assert line in answer.text.splitlines()


def test_the_docs_page_shows_every_route_and_loads_nothing_from_the_network() -> None:
    serving, _ = complete()
    page = ask(serving, "GET", "/docs")
    assert page.status_code == 200
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    found = _Links()
    found.feed(page.text)
    assert found.loads == [] and found.links == ["openapi.json"]
    for path, methods in ask(serving, "GET", "/openapi.json").json()["paths"].items():
        for method in methods:
            assert f"<code>{method.upper()} {path}</code>" in page.text


class _Links(HTMLParser):
    """Collects the addresses that a page loads, and those that it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href"):
                (self.links if tag == "a" else self.loads).append(value or "")
        if tag in ("script", "iframe", "object"):
            self.loads.append(tag)


def test_the_examples_of_the_openapi_document_can_be_sent_unchanged() -> None:
    serving, _ = complete()
    page = ask(serving, "GET", "/openapi.json").json()
    sent = 0
    for path, methods in page["paths"].items():
        for example in _examples(methods.get("post", {})):
            answer = ask(serving, "POST", path, json=example["value"])
            assert answer.status_code == 200, (path, answer.text)
            sent += 1
    assert sent == 4  # two of :predict and two of :rank
    refusals = {"401", "403", "404", "408", "412", "413", "415", "422", "429", "503"}
    assert set(page["paths"][PREDICT]["post"]["responses"]) == {"200"} | refusals
    for reference in _references(page):
        at: Any = page
        for part in reference.removeprefix("#/").split("/"):
            at = at[part]
        assert at


def _examples(post: dict[str, Any]) -> list[Any]:
    content = post.get("requestBody", {}).get("content", {})
    return [each for kind in content.values() for each in kind.get("examples", {}).values()]


def test_a_request_for_uncertainty_gets_it_for_each_candidate() -> None:
    serving, pusher = complete()
    pusher.push(deltas_of_article(serving.spec, 1, -3.0))
    serving.follow()
    candidates = [{"article_id": 1}, {"article_id": 9}]
    asked = {"candidates": candidates, "timestamp_ms": NOW_MS}
    known, new = ask(serving, "POST", PREDICT, json={**asked, "uncertainty": True}).json()[
        "predictions"
    ]
    features = Encoder(serving.spec.fields).encode([{**each} for each in candidates])
    times = np.full(2, NOW_MS, np.int64)
    view = serving.follower.reading().table_for(features, times)
    expected = serving.model.uncertainty(view, features, times).tolist()
    assert [known["uncertainty"], new["uncertainty"]] == expected
    assert 0.0 < known["uncertainty"] < new["uncertainty"]
    ranking = ask(serving, "POST", RANK, json={**asked, "uncertainty": True}).json()["ranking"]
    assert [each["uncertainty"] for each in ranking] == [
        expected[each["index"]] for each in ranking
    ]
    plain = ask(serving, "POST", PREDICT, json=asked).json()["predictions"]
    assert [each["score"] for each in plain] == [known["score"], new["score"]]
    assert "uncertainty" not in plain[0]


def test_a_request_for_uncertainty_to_a_model_without_counts_gets_422(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serving, _ = complete()
    monkeypatch.setattr(serving.model, "_optimizer", Optimizer("sgd"))
    answer = ask(serving, "POST", PREDICT, json={"candidates": [{}], "uncertainty": True})
    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == "uncertainty"
    assert "sgd" in answer.json()["error"]["found"]


def test_a_ranking_has_the_highest_scores_first_and_at_most_top_k_candidates() -> None:
    serving, pusher = complete()
    for article, z in ((1, -3.0), (2, 2.0), (3, -0.5)):
        pusher.push(deltas_of_article(serving.spec, article, z))
    serving.follow()
    asked = {"candidates": [{"article_id": each} for each in (2, 9, 1, 9, 3)]}
    scores = ask(serving, "POST", PREDICT, json=asked).json()["predictions"]
    ranking = ask(serving, "POST", RANK, json=asked).json()["ranking"]
    assert [each["index"] for each in ranking] == [2, 4, 1, 3, 0]  # ties keep request order
    assert [each["score"] for each in ranking] == [scores[i]["score"] for i in (2, 4, 1, 3, 0)]
    top = ask(serving, "POST", RANK, json={**asked, "top_k": 2}).json()["ranking"]
    assert [each["index"] for each in top] == [2, 4]
    for wrong in (0, -1, "two", 1.5):
        answer = ask(serving, "POST", RANK, json={**asked, "top_k": wrong})
        assert answer.status_code == 422
        assert answer.json()["error"]["field"] == "top_k"
    answer = ask(serving, "POST", PREDICT, json={**asked, "top_k": 2})
    assert answer.json()["error"]["field"] == "top_k"


def _references(part: Any) -> list[str]:
    if isinstance(part, list):
        return [found for each in part for found in _references(each)]
    if not isinstance(part, dict):
        return []
    own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
    return own + [found for each in part.values() for found in _references(each)]
