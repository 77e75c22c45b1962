"""Whether a model is in use: what a learner, a server and a keeper leave, and silence."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.deploy.errors import DeployError
from headrace.deploy.operations.removal import drop_model
from headrace.pserver.errors import MissingModel, Unreachable
from headrace.pserver.inspection.model_survey import survey
from headrace.pserver.inspection.usage import WATCH_S, signs_of_use
from headrace.pserver.redis_backend.cluster_client import ClusterClient
from headrace.pserver.redis_backend.node_connection import Call, Place
from headrace.pserver.redis_backend.redis_store import RedisStore, StoreSettings, open_store
from headrace.pserver.store import Shape
from tests.pserver.rows.entries import WIDTH, Pusher

BUCKETS = 4


@pytest.fixture
def model(fresh_name: Callable[[str], str]) -> str:
    return fresh_name("drop")


@pytest.fixture
def store(valkey_node: str, model: str) -> Iterator[RedisStore]:
    store = open_store(valkey_node, model, StoreSettings(sub_hashes=4))
    store.create(Shape(model, BUCKETS, WIDTH, "fingerprint", "spec"))
    yield store
    store.close()


def really_wait(seconds: float) -> None:
    """The servers' own clocks count here: there is no condition to wait for but theirs."""
    threading.Event().wait(seconds)


def test_signs_of_a_learner_a_server_and_a_keeper_are_found_before_a_drop(
    store: RedisStore, model: str
) -> None:
    def learn(_: float) -> None:
        store.push([Pusher(1, BUCKETS).next()])

    [sign] = [each for each in signs_of_use(store, survey(store, model), learn) if "from" in each]
    assert sign.startswith("bucket 1: went from version 0 to 1")

    def follow(seconds: float) -> None:
        really_wait(seconds)
        store.poll({2: 0}, 1)

    assert [each[:8] for each in signs_of_use(store, survey(store, model), follow)] == ["bucket 2"]
    store.claim(3, "keeper", 60_000)
    [sign] = signs_of_use(store, survey(store, model), lambda _: None)
    assert "bucket 3: keeper keeper holds the lease" in sign


def test_a_model_is_watched_long_enough_before_a_drop(store: RedisStore, model: str) -> None:
    waited: list[float] = []
    with pytest.raises(DeployError, match="was read less than 2 s ago"):  # by this very look
        drop_model(store, model, lambda _: True, wait=waited.append)
    assert waited == [WATCH_S]


def test_a_drop_that_loses_a_node_while_it_looks_for_leftovers_fails_and_can_be_repeated(
    store: RedisStore, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftover = store.key(1, "log").replace(b":1}", b":5.1}")
    store.nodes.run([Call(leftover, ("SET", leftover, "x"))])
    ask = ClusterClient.ask

    def dying(nodes: ClusterClient, place: Place, *words: bytes | str | int) -> Any:
        if words[0] == "SCAN":
            raise Unreachable("expected an answer of the node, got none")
        return ask(nodes, place, *words)

    with monkeypatch.context() as patched:
        patched.setattr(ClusterClient, "ask", dying)
        with pytest.raises(Unreachable):
            drop_model(store, model, lambda _: True, force=True)
    assert "is removed" in drop_model(store, model, lambda _: True, force=True)
    assert store.nodes.run([Call(leftover, ("EXISTS", leftover))]) == [0]
    with pytest.raises(MissingModel):
        store.shape()
