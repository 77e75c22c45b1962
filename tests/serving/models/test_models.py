"""Several models in one server: aliases, shadows, and the prediction log."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.ingest.kafka.fakes import ListWriter
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.serving.errors import BadAlias
from headrace.serving.models.aliases import Aliases
from headrace.serving.models.loading import StoreModel
from headrace.serving.observers.prediction_log import PredictionLog, PredictionLogSettings
from tests.serving.api.app_client import ask
from tests.serving.models.two_models import ALIASES, LATER, Two, second
from tests.serving.served_models import NOW_MS, Clock, eventually, memory_store, news
from tests.serving.server_in_thread import SETTINGS, ready, running


def test_a_request_to_an_alias_is_answered_by_its_model_and_names_both() -> None:
    serving = Two()
    asked = {"candidates": [{"article_id": "hot"}]}
    by_alias = ask(serving, "POST", "/v1/models/production:predict", json=asked).json()
    assert (by_alias["model"], by_alias["alias"]) == ("news", "production")
    by_name = ask(serving, "POST", "/v1/models/news:predict", json=asked).json()
    assert by_name["model"] == "news" and "alias" not in by_name
    changed = ask(serving, "PUT", "/v1/aliases/production", json={"model": "news-2"})
    assert changed.json() == {"model": "news-2", "previous": "news", "switched_ms": LATER}
    after = ask(serving, "POST", "/v1/models/production:predict", json=asked).json()
    assert after["model"] == "news-2"
    assert after["predictions"][0]["score"] > by_alias["predictions"][0]["score"]
    back = ask(serving, "POST", "/v1/aliases/production:revert")
    assert (back.json()["model"], back.json()["previous"]) == ("news", "news-2")
    shown = ask(serving, "GET", "/v1/aliases").json()["aliases"]
    assert shown["production"]["model"] == "news"
    assert ask(serving, "DELETE", "/v1/aliases/production").status_code == 200
    gone = ask(serving, "POST", "/v1/models/production:predict", json=asked)
    assert gone.status_code == 404
    assert "shadow" in gone.json()["error"]["expected"]


@pytest.mark.parametrize(
    ("alias", "body", "status", "said"),
    [
        ("production", {"model": "old"}, 409, "expected one of the models news, news-2"),
        ("news", {"model": "news-2"}, 409, "got the name of a model"),
        ("Production", {"model": "news"}, 409, "expected an alias of a-z"),
        ("production", {"model": "news-2", "expected": "news-2"}, 409, "got news"),
        ("production", {"modle": "news-2"}, 422, "modle"),
    ],
)
def test_an_invalid_switch_of_an_alias_is_refused_and_changes_nothing(
    alias: str, body: Any, status: int, said: str
) -> None:
    serving = Two()
    before = serving.models.aliases.table
    answer = ask(serving, "PUT", f"/v1/aliases/{alias}", json=body)
    assert answer.status_code == status
    assert said in answer.json()["error"]["found"]
    assert serving.models.aliases.table == before


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://elsewhere.example"}, 403),
        ({"host": "rebound.example"}, 403),
        ({"origin": "http://localhost:8080", "host": "localhost:8080"}, 200),
    ],
)
def test_a_page_of_another_site_cannot_switch_an_alias(
    headers: dict[str, str], status: int
) -> None:
    serving = Two()
    path = "/v1/aliases/production"
    assert ask(serving, "DELETE", path, headers=headers).status_code == status


def test_a_file_of_aliases_in_a_missing_folder_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadAlias, match="expected a file in a folder that exists"):
        Aliases(["a"], {}, Clock(), tmp_path / "missing" / "aliases.json")


def test_switched_aliases_survive_a_restart_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "aliases.json"
    clock = Clock()
    first = Aliases(["a", "b"], {"production": "a"}, clock, file)
    first.switch("production", "b")
    again = Aliases(["a", "b"], {"production": "a"}, clock, file)
    assert again.table["production"].model == "b"
    assert again.revert("production").model == "a"
    without = Aliases(["a"], {"production": "a"}, clock, file)
    assert without.table["production"].model == "a"
    file.write_text("{")
    with pytest.raises(BadAlias, match=r"aliases\.json"):
        Aliases(["a"], {}, clock, file)
    gone = tmp_path / "gone"
    gone.mkdir()
    elsewhere = Aliases(["a", "b"], {"x": "a"}, clock, gone / "aliases.json")
    gone.rmdir()
    with pytest.raises(BadAlias, match="no alias was changed"):
        elsewhere.switch("x", "b")
    assert elsewhere.table["x"].model == "a"


@pytest.fixture
def writer() -> ListWriter:
    return ListWriter()


@pytest.fixture
def logging_two(writer: ListWriter) -> Iterator[Two]:
    counts: list[tuple[str, int]] = []
    log = PredictionLog(PredictionLogSettings(), lambda: writer, lambda *each: counts.append(each))
    serving = Two(log)
    log.start()
    serving.shadows.start()
    yield serving
    serving.shadows.stop()
    log.stop()
    assert writer.closed


def test_served_and_shadow_predictions_are_logged_under_the_same_impression_ids(
    writer: ListWriter, logging_two: Two
) -> None:
    asked = {
        "request_id": "r1",
        "context": {"user_id": "u", "colour": "red"},
        "candidates": [{"article_id": "hot", "impression_id": "i1"}, {"article_id": "cold"}],
    }
    answer = ask(logging_two, "POST", "/v1/models/production:predict", json=asked).json()
    eventually(lambda: writer.flushed == 4)
    messages = [json.loads(each.value) for each in writer.sent]
    names = [each["impression_id"] for each in answer["predictions"]]
    by_alias = {
        alias: [each for each in messages if each["alias"] == alias]
        for alias in ("production", "shadow")
    }
    for alias, model in (("production", "news"), ("shadow", "news-2")):
        made = by_alias[alias]
        assert [each["impression_id"] for each in made] == names
        assert {each["model"] for each in made} == {model}
        assert {(each["request_id"], each["time"]) for each in made} == {("r1", NOW_MS)}
    assert [each.key for each in writer.sent[:2]] == [name.encode() for name in names]
    assert {each.target.topic for each in writer.sent} == {"predictions"}
    assert [each["score"] for each in by_alias["production"]] == [
        each["score"] for each in answer["predictions"]
    ]
    assert by_alias["production"][0]["fields"] == {"user_id": "u", "article_id": "hot"}
    # the shadow reads a field that the answering model does not know
    assert by_alias["shadow"][0]["fields"]["colour"] == "red"
    outcome = {"model": "news-2", "outcome": "scored"}
    name = "headrace_server_shadow_requests_total"
    assert logging_two.registry.get_sample_value(name, outcome) == 1.0


def test_the_log_of_a_ranking_has_only_the_candidates_of_the_answer(
    writer: ListWriter, logging_two: Two
) -> None:
    asked = {"top_k": 1, "candidates": [{"article_id": "cold"}, {"article_id": "hot"}]}
    answer = ask(logging_two, "POST", "/v1/models/news-2:rank", json=asked).json()
    eventually(lambda: writer.flushed == 1)
    [message] = [json.loads(each.value) for each in writer.sent]
    [ranked] = answer["ranking"]
    assert ranked["index"] == 1
    assert message["impression_id"] == ranked["impression_id"]
    assert (message["fields"], message["alias"]) == ({"article_id": "hot"}, "")


def test_a_sampled_prediction_log_has_all_candidates_of_the_sampled_requests() -> None:
    writer, counts = ListWriter(), dict[str, int]()
    draws = iter([0.1, 0.9, 0.3])

    def counted(outcome: str, candidates: int) -> None:
        counts[outcome] = counts.get(outcome, 0) + candidates

    log = PredictionLog(
        PredictionLogSettings(share=0.3), lambda: writer, counted, lambda: next(draws)
    )
    serving = Two(log)
    log.start()
    for _ in range(3):
        ask(serving, "POST", "/v1/models/news:predict", json={"candidates": [{}, {}]})
    log.stop()
    assert counts == {"logged": 2, "sampled_out": 4}
    assert len(writer.sent) == 2


def test_a_server_of_two_models_logs_to_a_real_kafka_across_an_alias_switch(
    kafka: str, tmp_path: Path
) -> None:
    settings = replace(
        SETTINGS,
        aliases=ALIASES,
        aliases_file=tmp_path / "aliases.json",
        predictions_to=KafkaSettings(kafka),
        predictions_partitions=1,
    )
    models = [
        StoreModel(news(), memory_store(news())),
        StoreModel(second(), memory_store(second())),
    ]
    request = f"of-{tmp_path.name}"
    asked = {"request_id": request, "candidates": [{"article_id": "a"}]}
    with (
        running(models, settings) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        eventually(lambda: ready(server.url))
        answer = client.post("/v1/models/production:predict", json=asked).json()
        client.put("/v1/aliases/production", json={"model": "news-2"}).raise_for_status()
        again = client.post("/v1/models/production:predict", json=asked).json()
    assert (answer["model"], again["model"]) == ("news", "news-2")
    logged = [json.loads(each.value) for each in read_all(KafkaSettings(kafka), "predictions")]
    mine = [each for each in logged if each["request_id"] == request]
    assert {(each["model"], each["alias"]) for each in mine} >= {
        ("news", "production"),
        ("news-2", "production"),
    }
