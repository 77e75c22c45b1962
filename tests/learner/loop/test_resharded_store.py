"""A learner goes on with the new buckets of its model, on a real Kafka and a real cluster."""

import threading
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from headrace.ingest.kafka.settings import KafkaSettings
from headrace.learner.process import LearnerSettings, run_learner
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.errors import Resharded
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.redis_backend.redis_store import RedisStore, open_store
from headrace.pserver.replica.replica import Replica
from headrace.pserver.snapshots.resharding import reshard
from headrace.pserver.store import Shape
from tests.ingest.joiner.joined import DEADLINE_S, Joined
from tests.ingest.keyed_events import FIELDS, MODEL, identities, send_by_key

pytestmark = pytest.mark.servers


class _Learning:
    """A learner in a thread, which another one follows when its model was resharded."""

    def __init__(self, url: str, joined: Joined, model: ModelSpec) -> None:
        self.stop, self.ended = threading.Event(), 0
        self._url, self._joined, self._model = url, joined, model
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self.stop.is_set():
            try:
                run_learner(
                    LearnerSettings(),
                    self._joined.settings,
                    lambda: open_store(self._url, self._model.name),
                    self._model,
                    self.stop,
                )
            except Resharded:
                self.ended += 1

    def end(self) -> None:
        self.stop.set()
        self._thread.join()


def _shows(store: RedisStore) -> int:
    """Return the impressions learned in the row of the one article that all events have."""
    replica = Replica(store, store.shape())
    while not replica.complete:
        replica.poll()
    return int(replica.table.everything().existing().shows.max(initial=0))


def test_a_learner_refuses_to_push_to_other_buckets_than_it_reads(kafka: str) -> None:
    model = parse_spec(MODEL.format(name="resharding") + FIELDS, "test")
    stores = []
    for buckets in (2, 4):  # the model is resharded between the two connections
        stores.append(MemoryStore(clock_ms=lambda: 0, nonces=lambda: b"8 bytes."))
        stores[-1].create(Shape(model.name, buckets, model.width, model.fingerprint, model.text))
    with pytest.raises(Resharded, match="expected 2 buckets of 'resharding', got 4"):
        run_learner(
            LearnerSettings(), KafkaSettings(kafka), iter(stores).__next__, model, threading.Event()
        )


def test_a_learner_learns_every_example_once_across_a_reshard(
    kafka: str, valkey: str, fresh_name: Callable[[str], str]
) -> None:
    joined = Joined.fresh(kafka, fresh_name, 2, FIELDS)
    model = parse_spec(MODEL.format(name=joined.name) + FIELDS, "test")
    with closing(open_store(valkey, model.name)) as store:
        store.create(Shape(model.name, 2, model.width, model.fingerprint, model.text))
    process, learning = joined.start(""), _Learning(valkey, joined, model)
    sent = 0

    def send(stem: str, count: int) -> None:
        nonlocal sent
        send_by_key(joined, shown=identities(stem, count))
        sent += count

    def wait_for_all() -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            with closing(open_store(valkey, model.name)) as now:
                found = _shows(now)
            if found == sent:
                return
            assert found < sent, "an example was learned twice"
            assert process.poll() is None
            assert time.monotonic() < deadline_s, (found, sent)
            time.sleep(0.2)

    try:
        send("first", 500)
        wait_for_all()
        with closing(open_store(valkey, model.name)) as store:
            assert store.shape().buckets == 2
            reshard(
                store,
                store.successor(16),
                now_ms=lambda: 0,
                stop=threading.Event(),
                # pushed to buckets that are copied already
                tell=lambda progress: send(f"during{progress.done}-", 200),
            )
        send("after", 500)
        wait_for_all()
        assert learning.ended == 1
        with closing(open_store(valkey, model.name)) as store:
            assert store.remove_old() == 2
            assert store.shape().buckets == 16
        send("last", 300)
        wait_for_all()
    finally:
        learning.end()
        process.kill()
        process.wait()
