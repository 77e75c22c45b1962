"""Requests that ask the server to refuse fields that no model reads."""

from typing import Any

import pytest

from tests.serving.api.app_client import PREDICT, RANK, ask, complete
from tests.serving.models.two_models import Two
from tests.serving.served_models import eventually

TYPO = {"context": {"user": "u1"}, "candidates": [{"article_id": 1, "colour": "red"}]}


@pytest.mark.parametrize("path", [PREDICT, RANK])
def test_a_strict_request_with_an_unknown_field_is_refused_with_the_known_ones(path: str) -> None:
    serving, _ = complete()
    assert ask(serving, "POST", path, json=TYPO).status_code == 200
    answer = ask(serving, "POST", path, json={**TYPO, "strict": True})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["field"] == "context.user"
    assert error["expected"].startswith("a field of the model, one of article_id, impression_id,")
    assert error["expected"].endswith('(did you mean "user_id"?)')
    assert error["found"] == "an unknown field; also unknown: colour"


def test_a_strict_request_may_have_every_field_that_the_spec_names() -> None:
    serving, _ = complete()
    own = {"article_id": 1, "impression_id": "i", "timestamp_ms": 1_767_225_600_000}
    asked: dict[str, Any] = {"context": {"user_id": "u"}, "candidates": [own], "strict": True}
    assert ask(serving, "POST", PREDICT, json=asked).status_code == 200
    whole = {"instances": [{**own, "user_id": "u", "request_id": "r"}], "strict": True}
    assert ask(serving, "POST", PREDICT, json=whole).status_code == 200


def test_a_refusal_lists_a_few_unknown_fields_and_no_more() -> None:
    serving, _ = complete()
    many = {"candidates": [{f"no{each}": each for each in range(100)}] * 100, "strict": True}
    found = ask(serving, "POST", PREDICT, json=many).json()["error"]["found"]
    assert found == "an unknown field; also unknown: no1, no2, no3, no4, no5, and more"


def test_a_strict_request_to_an_alias_may_have_the_fields_of_all_its_models() -> None:
    serving = Two()
    path = "/v1/models/production:predict"
    asked = {"candidates": [{"colour": "red"}], "strict": True}
    assert ask(serving, "POST", path, json=asked).status_code == 422  # `news` does not read it
    split = {"model": "news=1 news-2=1 by cohort"}
    assert ask(serving, "PUT", "/v1/aliases/production", json=split).status_code == 200
    for cohort in range(8):
        body = {**asked, "context": {"cohort": cohort}}
        assert ask(serving, "POST", path, json=body).status_code == 200


def test_a_shadow_scores_a_strict_request_with_fields_that_it_does_not_read() -> None:
    serving = Two()
    assert ask(serving, "PUT", "/v1/aliases/production", json={"model": "news-2"}).is_success
    assert ask(serving, "PUT", "/v1/aliases/shadow", json={"model": "news"}).is_success
    asked = {"candidates": [{"colour": "red"}], "strict": True}
    path = "/v1/models/production:predict"
    assert ask(serving, "POST", path, json=asked).status_code == 200
    name, labels = "headrace_server_shadow_requests_total", {"model": "news", "outcome": "scored"}
    serving.shadows.start()
    try:
        eventually(lambda: serving.registry.get_sample_value(name, labels) == 1)
    finally:
        serving.shadows.stop()


@pytest.mark.parametrize("path", [PREDICT, RANK])
@pytest.mark.parametrize(
    "unread", [b'"colour":1e400', b'"col\xffour":1', b'"colour":' + b"1" * 5000, b'"colour":"\xff"']
)
def test_a_strict_request_with_an_invalid_value_in_an_unread_field_is_refused(
    path: str, unread: bytes
) -> None:
    serving, _ = complete()
    body = b'{"strict":true,"candidates":[{%s}]}' % unread
    answer = ask(serving, "POST", path, content=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["expected"] == "JSON in UTF-8 in every field"
