"""A server over two real shards, one of which freezes and recovers."""

import contextlib
import os
import signal
from collections.abc import Callable

import httpx

from headrace.learner.spec.model_spec import parse_spec
from headrace.pserver.redis_backend.node_connection import WaitLimits
from headrace.pserver.redis_backend.redis_store import StoreSettings, open_store
from headrace.pserver.store import Shape
from headrace.runtime.clock import wall_ms
from headrace.serving.models.loading import StoreModel
from headrace.serving.process import ServerSettings
from headrace.serving.replicas.follower import Following
from tests.serving.served_models import BUCKETS, SPEC, Pusher, deltas_of_article, eventually
from tests.serving.server_in_thread import ready, running
from tests.valkey_cluster import ValkeyCluster

WAITING = StoreSettings(WaitLimits(connect_timeout_ms=500, answer_timeout_ms=300))


def test_a_frozen_shard_makes_answers_stale_until_it_recovers(
    valkey_cluster: ValkeyCluster, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("served")
    spec = parse_spec(SPEC.replace('"news"', f'"{name}"'), "news.toml")
    store = open_store(valkey_cluster.url, name, WAITING)
    store.create(Shape(name, BUCKETS, spec.width, spec.fingerprint, spec.text))
    nodes = {store.node_of(bucket) for bucket in range(BUCKETS)}
    assert len(nodes) == 2
    settings = ServerSettings(port=0, following=Following(poll_interval_ms=5))
    with (
        contextlib.closing(store),
        running([StoreModel(spec, store)], settings) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        eventually(lambda: ready(server.url))
        _freeze_and_thaw(client, name, Pusher(store), valkey_cluster.nodes[0].pid)


def _freeze_and_thaw(client: httpx.Client, name: str, pusher: Pusher, pid: int) -> None:
    deltas = deltas_of_article(parse_spec(SPEC, "news.toml"), "hot", -1.0)

    def version() -> int:
        answer = client.post(f"/v1/models/{name}:predict", json={"candidates": [{}]})
        assert answer.status_code == 200
        return int(answer.json()["version"])

    def unreachable() -> int:
        return int(client.get(f"/v1/models/{name}").json()["buckets"]["unreachable"])

    pusher.push(deltas, append_ms=wall_ms(), clicks=[wall_ms()])
    eventually(lambda: version() == BUCKETS)
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: 0 < unreachable() < BUCKETS)
        for _ in range(20):
            assert version() == BUCKETS  # the HTTP client's timeout shows that no request waits
        assert client.get("/health/ready").status_code == 200
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: unreachable() == 0)
    pusher.push(deltas, append_ms=wall_ms(), clicks=[wall_ms()])
    eventually(lambda: version() == 2 * BUCKETS)
    assert client.get(f"/v1/models/{name}").json()["freshness"]["count"] == 2
