"""Aliases that split their traffic among models, on a running application."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.serving.errors import BadAlias
from headrace.serving.models.aliases import Aliases
from headrace.serving.models.traffic_split import split_of
from headrace.serving.requests.splitting_key import split_key
from tests.serving.api.app_client import ask
from tests.serving.models.two_models import Two
from tests.serving.served_models import NOW_MS, Clock

HALVES = "news=1 news-2=1"
BY_USER = f"{HALVES} by user_id"
IDS = [f"r{each}" for each in range(20)]


def put(serving: Two, target: str) -> None:
    answer = ask(serving, "PUT", "/v1/aliases/production", json={"model": target})
    assert answer.json()["model"] == target


def chosen(target: str, key: str) -> str:
    split = split_of(target)
    assert split is not None
    return split.choose(key.encode())


@pytest.mark.parametrize("verb", ["predict", "rank"])
def test_a_split_alias_answers_each_request_id_by_its_model(verb: str) -> None:
    serving = Two()
    put(serving, HALVES)
    found = {}
    for name in IDS:
        body = {"request_id": name, "candidates": [{"article_id": "hot"}]}
        for _ in range(2):
            said = ask(serving, "POST", f"/v1/models/production:{verb}", json=body).json()
            assert (said["model"], said["alias"]) == (chosen(HALVES, name), "production")
        found[said["model"]] = name
    assert set(found) == {"news", "news-2"}


def test_a_split_by_user_answers_all_requests_of_a_user_by_one_model() -> None:
    serving = Two()
    put(serving, BY_USER)
    for user in range(20):
        bodies: list[dict[str, Any]] = [
            {"context": {"user_id": user}, "candidates": [{"article_id": "hot"}]},
            {"request_id": "x", "instances": [{"user_id": str(user)}, {"user_id": "other"}]},
        ]
        for body in bodies:
            said = ask(serving, "POST", "/v1/models/production:predict", json=body).json()
            assert said["model"] == chosen(BY_USER, str(user))


def test_requests_without_the_key_are_split_by_their_bodies() -> None:
    serving = Two()
    put(serving, HALVES)
    found = set()
    for each in range(20):
        body = {"candidates": [{"article_id": f"a{each}"}]}
        said = [ask(serving, "POST", "/v1/models/production:predict", json=body) for _ in range(2)]
        models = {answer.json()["model"] for answer in said}
        assert len(models) == 1
        found |= models
    assert found == {"news", "news-2"}


@pytest.mark.parametrize(
    ("body", "name", "key"),
    [
        ('{"request_id": "r1", "candidates": []}', "request_id", b"r1"),
        ('{"request_id": "", "candidates": []}', "request_id", None),
        ('{"request_id": ["r1"]}', "request_id", None),
        ('{"context": {"user": 7}}', "user", b"7"),
        ('{"context": {"user": null}, "candidates": [{"user": "u"}]}', "user", b"u"),
        ('{"candidates": [{}, {"user": "u"}]}', "user", None),
        ('{"context": [], "candidates": 3}', "user", None),
        ('{"context": {"user": "u"}', "user", None),
        ("\xff", "request_id", None),
    ],
)
def test_the_key_of_a_split_is_a_scalar_of_the_request(
    body: str, name: str, key: bytes | None
) -> None:
    assert split_key(body.encode("latin-1"), name) == key


def test_an_incomplete_model_of_a_split_leaves_its_requests_to_the_others() -> None:
    serving = Two()
    put(serving, HALVES)
    rows = serving.second.rows
    rows.status = replace(rows.status, complete=False)  # type: ignore[misc]
    for name in IDS:
        body = {"request_id": name, "candidates": [{"article_id": "hot"}]}
        said = ask(serving, "POST", "/v1/models/production:predict", json=body)
        assert said.json()["model"] == "news"


def test_a_split_is_switched_expected_reverted_and_kept_as_a_model_is(tmp_path: Path) -> None:
    file, clock = tmp_path / "aliases.json", Clock()
    models = ["a", "b", "c"]
    first = Aliases(models, {"production": "a"}, clock, file)
    made = first.switch("production", "b=5,a=95", expected="a")
    assert (made.model, made.previous, made.switched_ms) == ("a=95 b=5", "a", NOW_MS)
    assert first.switch("production", "a=95 b=5") == made
    first.switch("production", "a=80 b=20", expected="b=5 a=95")
    with pytest.raises(BadAlias, match="expected a=95 b=5, got a=80 b=20"):
        first.switch("production", "c", expected="a=95 b=5")
    again = Aliases(models, {"production": "a"}, clock, file)
    assert again.table == first.table
    assert again.revert("production").model == "a=95 b=5"
    with pytest.raises(BadAlias, match="expected one of the models a, b, c, got d"):
        again.switch("production", "a=1 d=1")
    with pytest.raises(BadAlias, match="one model for a shadow"):
        again.switch("shadow", "a=1 b=1")


def test_tables_of_aliases_are_read_across_versions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "aliases.json"
    file.write_text('{"production": {"model": "b", "previous": "a", "switched_ms": 5}}')
    old = Aliases(["a", "b"], {"production": "a"}, Clock(), file)
    assert old.table["production"].model == "b"
    # a server that lacks a model of a kept split begins with its own alias, and says so
    file.write_text('{"production": {"model": "a=95 b=5"}, "x": {"model": "a=1=2 b=1"}}')
    assert Aliases(["a"], {"production": "a"}, Clock(), file).table["production"].model == "a"
    assert "got b" in caplog.text and "weight of a" in caplog.text
