"""A relay on a real Kafka and Valkey: a server answers from its topic; another relay takes over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import httpx

from headrace.ingest.errors import Fenced
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.learner.models.final_rows import FinalRows
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.errors import MissingBucket
from headrace.pserver.redis_backend.redis_store import RedisStore, open_store
from headrace.pserver.relay.relay_section import RelayForm
from headrace.pserver.replica.replica import Replica
from headrace.pserver.store import Shape
from headrace.serving.models.loading import StoreModel
from headrace.serving.process import ServerSettings
from headrace.serving.relaying.relay_loop import RelayPolicy
from headrace.serving.relaying.relay_process import RelaySettings, run_relay
from headrace.serving.relaying.relayed_rows import RelayedRows, topic_reader
from tests.serving.served_models import (
    BUCKETS,
    SPEC,
    Fallible,
    Pusher,
    deltas_of_article,
    eventually,
)
from tests.serving.server_in_thread import ready, running

SETTINGS = RelaySettings(RelayPolicy(interval_ms=20))


class RelayThread:
    """`run_relay` in a thread."""

    def __init__(self, kafka: str, store: RedisStore, form: RelayForm | None = None) -> None:
        self.stop, self.failure = threading.Event(), list[Exception]()
        self.thread = threading.Thread(target=self._run, args=(kafka, store, form))
        self.thread.start()

    def _run(self, kafka: str, store: RedisStore, form: RelayForm | None) -> None:
        try:
            run_relay(SETTINGS, KafkaSettings(kafka), store, self.stop, form)
        except Exception as error:  # noqa: BLE001  (the test looks at it)
            self.failure.append(error)

    def __enter__(self) -> RelayThread:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join(60)


def test_a_server_answers_from_a_relay_and_from_one_of_final_weights_that_takes_over(
    kafka: str, valkey: str, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("relayed")
    spec = parse_spec(SPEC.replace('"news"', f'"{name}"'), "news.toml")
    with closing(open_store(valkey, name)) as store, closing(open_store(valkey, name)) as other:
        store.create(Shape(name, BUCKETS, spec.width, spec.fingerprint, spec.text))
        pusher, direct = Pusher(store), Replica(store, store.shape())
        pusher.push(deltas_of_article(spec, 1, -1.0))
        rows = RelayedRows(store.shape(), topic_reader(KafkaSettings(kafka), name))

        def equal() -> bool:
            direct.poll()
            rows.poll(64)
            return direct.complete and rows.complete and _same(rows, direct)

        settings = ServerSettings(port=0, relayed_from=KafkaSettings(kafka))
        with RelayThread(kafka, store) as first:
            eventually(equal)
            without_logs: Any = Fallible(store)
            without_logs.failure = MissingBucket("the server reads the relay only")
            with running([StoreModel(spec, without_logs)], settings) as server:
                eventually(lambda: ready(server.url))
                pusher.push(deltas_of_article(spec, 2, -1.0))
                eventually(equal)
                before = _score(server.url, name)
                with RelayThread(kafka, other, FinalRows(spec, half=True).form) as second:
                    # a relay notices at its next write that another one has started
                    eventually(lambda: not _pushed(pusher, spec) or not first.thread.is_alive())
                    assert [type(error) for error in first.failure] == [Fenced]
                    pusher.push(deltas_of_article(spec, "article-2", -1.0))
                    eventually(lambda: _score(server.url, name) != before)
                assert second.failure == []
        rows.close()


def _score(url: str, model: str) -> float:
    asked = {"candidates": [{"article_id": "article-2"}]}
    answer = httpx.post(f"{url}/v1/models/{model}:predict", json=asked, timeout=60)
    assert answer.status_code == 200, answer.text
    score: float = answer.json()["predictions"][0]["score"]
    return score


def _pushed(pusher: Pusher, spec: ModelSpec) -> bool:
    pusher.push(deltas_of_article(spec, 3, -1.0))
    return True


def _same(rows: RelayedRows, direct: Replica) -> bool:
    buckets = direct.buckets
    return all(
        rows.position(bucket).version == direct.position(bucket).version
        and rows.checksum(bucket) == direct.checksum(bucket)
        for bucket in buckets
    )
