"""The coverage of requests: which fields they have, beside those that the model has learned."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from headrace.serving.models.absent_rows import learned_shares
from headrace.serving.observers import request_coverage
from headrace.serving.observers.request_coverage import (
    LARGEST_BODY,
    LEAST_REQUESTS,
    LONGEST_NAME,
    MOST_UNKNOWN,
    OTHERS,
    shown_name,
    unknown_counts,
)
from headrace.serving.requests.candidates import MOST_COUNTED, Candidates
from tests.serving.api.app_client import PREDICT, RANK, ask, complete
from tests.serving.models.two_models import Two
from tests.serving.served_models import Serving, impressions_of

STATUS = "/v1/models/news"
FIELDS = ("article", "user", "slate", "topics", "price")


@pytest.fixture(autouse=True)
def _samples_at_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine takes as many samples as a fast one."""
    monkeypatch.setattr(request_coverage, "_TIMES_AS_LONG", 0)


def asked(serving: Serving, body: Mapping[str, Any], path: str = PREDICT) -> None:
    """Send a request when the next sample is due."""
    serving.clock.ms += 10_000
    assert ask(serving, "POST", path, json=body).status_code == 200


def fields_of(serving: Serving) -> dict[str, tuple[float | None, float | None]]:
    fields = ask(serving, "GET", STATUS).json()["fields"]
    return {name: (each["requests"], each["learned"]) for name, each in fields.items()}


def test_the_status_of_a_model_compares_its_requests_with_what_it_learned() -> None:
    serving, pusher = complete()
    nothing = dict.fromkeys(FIELDS, (None, None))
    assert fields_of(serving) == nothing
    pusher.push(impressions_of({"article_id": "a", "user_id": "u"}, 3))
    pusher.push(impressions_of({"article_id": "b"}, 1))
    serving.follow()
    asked(serving, {"context": {"user_id": "u"}, "candidates": [{"article": "a"}] * 2})
    asked(serving, {"instances": [{"user_id": None, "article_id": "a"}, {"topics": []}]}, RANK)
    assert fields_of(serving) == {
        "article": (0.25, 1.0),
        "user": (0.5, 0.75),
        "slate": (0.0, 0.0),
        "topics": (0.25, None),
        "price": (0.0, None),
    }
    assert ask(serving, "GET", STATUS).json()["unknown_fields"] == {"article": 0.5}
    every = ask(serving, "GET", "/v1/models").json()["models"]
    assert every[0]["unknown_fields"] == {"article": 0.5}


def test_metrics_count_the_sampled_candidates_by_field() -> None:
    serving, _ = complete()
    asked(serving, {"context": {"user_id": "u", "colour": "red"}, "candidates": [{}] * 3})
    asked(serving, {"candidates": [{"user_id": "u"}]})
    assert serving.sample("headrace_server_recent_candidates") == 4
    assert serving.sample("headrace_server_recent_values", field="user", source="user_id") == 4
    assert (
        serving.sample("headrace_server_recent_values", field="article", source="article_id") == 0
    )
    assert serving.sample("headrace_server_recent_unknown_values", field="colour") == 3
    serving.clock.ms += 3_600_000
    assert serving.sample("headrace_server_recent_candidates") == 0


def test_requests_between_two_samples_are_not_counted() -> None:
    serving, _ = complete()
    asked(serving, {"candidates": [{}]})
    for _ in range(5):
        assert ask(serving, "POST", PREDICT, json={"candidates": [{}]}).status_code == 200
    assert serving.sample("headrace_server_recent_candidates") == 1


def test_a_few_candidates_of_a_large_request_stand_for_all() -> None:
    rows = [{"article_id": i} if i % 2 else {} for i in range(10 * MOST_COUNTED + 1)]
    total, [article, user] = Candidates({"user_id": 1}, rows).present(["article_id", "user_id"])
    assert total <= MOST_COUNTED
    assert user == total and 0 < article < total


def test_only_the_first_unknown_names_are_kept_and_all_are_short() -> None:
    serving, _ = complete()
    for i in range(MOST_UNKNOWN + 5):
        asked(serving, {"candidates": [{f"name {i}": 1}]})
    unknown = ask(serving, "GET", STATUS).json()["unknown_fields"]
    assert list(unknown) == [*(f"name {i}" for i in range(MOST_UNKNOWN)), OTHERS]
    assert sum(unknown.values()) == pytest.approx(1.0, abs=0.01)
    assert shown_name("ü") == "ü"
    assert shown_name("\x1b[2J") == "\\x1b[2J"
    assert len(shown_name("x" * 10_000)) == LONGEST_NAME + 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs": []}',
        b'{"candidates": [1]}',
        b'\x00\x01"',
        b'{"candidates": [{"\xff": 1}]}',
        b'{"candidates": [{"a": "' + b"x" * LARGEST_BODY + b'"}]}',
    ],
)
def test_a_body_without_readable_names_has_no_unknown_field(body: bytes) -> None:
    assert unknown_counts(body, frozenset()) == {}


def test_fields_of_other_models_of_an_alias_are_known() -> None:
    serving = Two()
    registry = serving.models
    split = {"model": "news=1 news-2=1 by cohort"}
    assert ask(serving, "PUT", "/v1/aliases/production", json=split).is_success
    from headrace.serving.observers.request_coverage import RequestCoverage

    target = registry.find("production")
    known = RequestCoverage(registry, serving.clock)._known(target)
    assert {"colour", "cohort", "article_id"} <= known


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each for each in caplog.messages if each.startswith("model news, field")]


def test_a_server_warns_once_about_a_learned_field_that_no_request_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    serving, pusher = complete()
    pusher.push(impressions_of({"article_id": "a", "user_id": "u"}, 10))
    serving.follow()
    with caplog.at_level(logging.WARNING):
        for _ in range(LEAST_REQUESTS - 1):
            asked(serving, {"candidates": [{"article": "a"}]})
        assert not warned(caplog)
        for _ in range(3 * LEAST_REQUESTS):
            asked(serving, {"candidates": [{"article": "a"}]})
    article, user = warned(caplog)
    assert article == (
        "model news, field article: expected 'article_id' in requests, as in 100 % of the learned "
        f"impressions, got none in the last {LEAST_REQUESTS} candidates. Requests have 'article': "
        "rename it"
    )
    assert user.startswith("model news, field user: expected 'user_id'")
    assert user.endswith("Send the field in the context or in each candidate")


def test_a_field_that_neither_events_nor_requests_have_is_no_reason_to_warn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    serving, pusher = complete()
    pusher.push(impressions_of({"article_id": "a"}, 10))
    serving.follow()
    with caplog.at_level(logging.WARNING):
        for _ in range(2 * LEAST_REQUESTS):
            asked(serving, {"candidates": [{"article_id": "a"}]})
    assert not warned(caplog)


def test_rows_without_counters_tell_nothing_about_the_learned_fields() -> None:
    serving, _ = complete()
    rows = serving.served.rows.reading()
    assert learned_shares(serving.spec.fields, rows, serving.clock()) == {}
