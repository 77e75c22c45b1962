"""Serving snapshots: by name, beside live models, and without a parameter server."""

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.deploy import model_sources
from headrace.learner.spec.model_spec import parse_spec
from headrace.pserver.snapshots.snapshot_errors import DamagedSnapshot, NoSnapshot
from headrace.serving.errors import ServingError
from headrace.serving.models.loading import StoreModel, find_frozen
from tests.deploy.in_process import Commands
from tests.serving.replicas.snapshots import LEARNED_MS, learned, snapshot_of
from tests.serving.served_models import (
    NOW_MS,
    SPEC,
    Pusher,
    deltas_of_article,
    eventually,
    memory_store,
    news,
)
from tests.serving.server_in_thread import ready, running

ASKED: dict[str, Any] = {"candidates": [{"article_id": "hot"}]}


def other_model() -> Any:
    return parse_spec(SPEC.replace('"news"', '"other"'), "other.toml")


def predict(client: httpx.Client, model: str, **more: object) -> httpx.Response:
    return client.post(f"/v1/models/{model}:predict", json={**ASKED, **more})


def _check_demands(client: httpx.Client, name: str) -> None:
    """Check that a request that demands another snapshot gets 412, which names the served one."""
    assert predict(client, "frozen", snapshot=name).status_code == 200
    assert (
        predict(client, name).json()["snapshot"] == name
    )  # a snapshot's name works like a model's
    refused = predict(client, "news", snapshot=name)
    assert refused.status_code == 412
    error = refused.json()["error"]
    assert (error["field"], error["expected"]) == ("snapshot", f"snapshot {name}")
    assert error["found"] == "a model that follows the logs, version 8"
    other = predict(client, "frozen", snapshot="20200101T000000.000Z-news-0000")
    assert other.status_code == 412 and other.json()["error"]["found"] == name
    assert predict(client, "20200101T000000.000Z-news-0000").status_code == 404
    old = predict(client, "frozen", max_age_ms=1_000)
    assert old.status_code == 412 and "(snapshot)" in old.json()["error"]["found"]
    wrong = predict(client, "frozen", snapshot=7)
    assert wrong.status_code == 422 and wrong.json()["error"]["field"] == "snapshot"


def test_a_snapshot_answers_unchanged_beside_the_live_model_and_by_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = learned(news())
    name = snapshot_of(store, tmp_path).name
    with caplog.at_level(logging.INFO):
        models: Any = [
            StoreModel(news(), store),
            *model_sources.snapshot_models([f"frozen={tmp_path}"]),
        ]
    assert "frozen is the name here of the model news, of which " in caplog.text
    with running(models) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        eventually(lambda: ready(server.url))
        before = predict(client, "news").json()
        frozen = predict(client, "frozen").json()
        assert frozen["predictions"][0]["score"] == before["predictions"][0]["score"]
        assert (frozen["state"], frozen["snapshot"]) == ("snapshot", name)
        assert frozen["version"] == before["version"]
        assert frozen["event_ms"] == {"newest": LEARNED_MS, "oldest": LEARNED_MS}
        assert "snapshot" not in before

        Pusher(store, "another/0").push(deltas_of_article(news(), "hot", -3.0))
        eventually(lambda: predict(client, "news").json()["version"] > before["version"])
        assert predict(client, "news").json()["predictions"] != frozen["predictions"]
        again = predict(client, "frozen").json()
        assert again["predictions"][0]["score"] == frozen["predictions"][0]["score"]
        _check_demands(client, name)
        status = client.get("/v1/models/frozen").json()
        assert (status["snapshot"], status["rows"], status["model"]) == (name, 1, "frozen")
        lines = client.get("/metrics").text.splitlines()
    assert 'headrace_server_state{model="frozen",state="snapshot"} 1.0' in lines
    assert 'headrace_server_buckets{model="news"} 4.0' in lines
    assert not [each for each in lines if each.startswith('headrace_server_buckets{model="frozen"')]


def test_a_snapshot_whose_spec_names_a_torch_module_imports_it_only_if_allowed(
    tmp_path: Path,
) -> None:
    name = "tests.serving.never_imported:Net"
    kind = f'architecture = "module"\nmodule = "{name}"\n'
    spec = parse_spec(SPEC.replace('architecture = "logistic_regression"\n', kind), "own.toml")
    snapshot_of(memory_store(spec), tmp_path)
    with pytest.raises(ServingError, match=f"expected --allow-module {name}, got no module"):
        find_frozen("news", str(tmp_path))
    with pytest.raises(ServingError, match="got other:Net"):
        find_frozen("news", str(tmp_path), ["other:Net"])
    assert find_frozen("news", str(tmp_path), [name]).spec.structure.module == name


def test_an_ambiguous_snapshot_is_refused(tmp_path: Path) -> None:
    store = learned(news())
    first = snapshot_of(store, tmp_path, NOW_MS)
    newest = snapshot_of(store, tmp_path, NOW_MS + 1_000)
    assert find_frozen("week", str(tmp_path)).manifest.name == newest.name
    assert find_frozen("week", f"{tmp_path}/{first.name}").manifest.name == first.name
    snapshot_of(learned(other_model()), tmp_path)
    assert find_frozen("other", str(tmp_path)).manifest.model == "other"
    with pytest.raises(ServingError, match="those of news, other: name the snapshot"):
        find_frozen("week", str(tmp_path))
    with pytest.raises(NoSnapshot):
        find_frozen("news", f"{tmp_path}/20200101T000000.000Z-news-0000")
    with pytest.raises(ServingError, match="got 'Week'"):
        find_frozen("Week", str(tmp_path))


def test_a_model_whose_copy_fails_gets_503_with_the_reason_while_others_answer(
    tmp_path: Path,
) -> None:
    folder, store = tmp_path / "snapshots", learned(other_model())
    manifest = snapshot_of(store, folder)
    broken = folder / manifest.name / manifest.files[2].file
    broken.write_bytes(broken.read_bytes()[:-1] + b"?")
    models: Any = [StoreModel(news(), learned(news())), find_frozen("frozen", str(folder))]
    with running(models) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        eventually(lambda: client.get("/v1/models/frozen").json()["trouble"])
        eventually(lambda: ready(server.url))
        assert predict(client, "news").status_code == 200
        refused = predict(client, "frozen")
        assert refused.status_code == 503
        assert "sha256" in refused.json()["error"]["found"]
        said = client.get("/health/ready").json()
        assert (said["incomplete"], said["failed"]) == (["frozen"], ["frozen"])
    with pytest.raises(DamagedSnapshot), running([models[1]]) as server:
        server.join()


def test_a_missing_snapshot_or_model_is_named_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Commands(monkeypatch, capsys)
    nothing = run("serving", "run", "--snapshot", f"frozen={tmp_path / 'none'}")
    assert nothing.code != 0 and "expected a snapshot of 'frozen'" in nothing.err
    neither = run("serving", "run")
    assert neither.code != 0 and "--snapshot" in neither.err
    for given in ("frozen", "frozen=", "=there"):
        bare = run("serving", "run", HEADRACE_SERVING_SNAPSHOT=given)
        assert bare.code != 0 and f"expected NAME=PLACE, got '{given}'" in bare.err
    spec = tmp_path / "news.toml"
    spec.write_text(SPEC)
    for both in ((), ("--model", str(spec), "--snapshot", "news=there")):
        unclear = run("serving", "score", *both)
        got = "both" if both else "neither"
        assert f"expected --model / HEADRACE_MODEL or --snapshot, got {got}" in unclear.err
