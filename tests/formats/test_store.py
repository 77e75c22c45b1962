"""Today's code serves and continues a store, a snapshot and a relay of version 1."""

from collections.abc import Callable, Iterator

import httpx
import pytest

from headrace.deploy import model_sources
from headrace.learner.loop.marks.parked_marks import ParkedCause, parked_messages
from headrace.pserver.errors import StoreError
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.redis_backend.redis_store import RedisStore, StoreSettings, open_store
from headrace.pserver.relay.relayed_replica import Relayed, RelayedReplica
from headrace.pserver.rows.deltas import Deletions, RowDeltas, unpack_entry
from headrace.pserver.snapshots.catalog import list_snapshots
from headrace.pserver.snapshots.storage import SnapshotStorage
from headrace.pserver.store import PollResult, Shape
from tests.formats import golden
from tests.formats.small_model import BUCKETS, example_records, learn, predictions, spec_of
from tests.learner.in_memory import InMemoryModel
from tests.serving.served_models import eventually
from tests.serving.server_in_thread import ready, running

SPEC = spec_of("immediate")
PREDICTIONS = golden.read("predictions.json")


def near(scores: list[float]) -> object:
    """The same scores, up to the rounding of another processor."""
    return pytest.approx(scores, rel=1e-5)


@pytest.fixture
def store(valkey_node: str, fresh_name: Callable[[str], str]) -> Iterator[RedisStore]:
    """The recorded keys in a real server, below a prefix of their own."""
    prefix = fresh_name("formats") + "."
    opened = open_store(valkey_node, SPEC.name, StoreSettings(key_prefix=prefix))
    replies = opened.nodes.run(golden.calls_to_load(golden.read("store.json"), prefix))
    assert not [each for each in replies if isinstance(each, StoreError)]
    yield opened
    opened.close()


def test_a_replica_of_a_recorded_store_gives_the_recorded_predictions(store: RedisStore) -> None:
    model = InMemoryModel(SPEC, BUCKETS, store)
    assert store.shape() == Shape(SPEC.name, BUCKETS, SPEC.width, SPEC.fingerprint, SPEC.text)
    assert store.row_limit() == 24
    replica = model.replica()
    assert predictions(SPEC, replica) == near(PREDICTIONS["scores"])
    [listed] = list_snapshots(SnapshotStorage(str(golden.V1 / "snapshots")))
    snapshot = listed.manifest
    assert snapshot is not None
    for copied in snapshot.files:  # of the same rows and log
        assert replica.checksum(copied.bucket) == copied.checksum
    [parked] = parked_messages(each.marks for each in model.answers())
    assert (parked.offset, parked.examples, parked.buckets) == (6, 3, BUCKETS)
    assert parked.cause is ParkedCause.REPEATS
    kinds = set()
    for polled in store.poll({0: 0, 1: 0}, 100):
        assert isinstance(polled, PollResult)
        entries = [unpack_entry(entry.blob) for entry in polled.entries]
        kinds |= {type(content) for _, content in entries}
        marks = snapshot.files[polled.bucket].marks
        for each in entries[-1][0].reached:
            assert each.stop == marks[each.source] >= each.start
    assert kinds == {RowDeltas, Deletions}


def test_a_learner_and_a_keeper_continue_a_recorded_store(store: RedisStore) -> None:
    model = InMemoryModel(SPEC, BUCKETS, store)
    messages = golden.read("joined_immediate.json")["messages"]
    messages += golden.read("examples_following.json")
    scores = learn(model, example_records({"messages": messages}))
    recorded = golden.read("scores.json")["scores"]
    assert [row[:2] for row in scores] == [row[:2] for row in recorded]
    assert [row[2] for row in scores] == near([row[2] for row in recorded])
    later = golden.read("relay.json")["scores"]
    assert predictions(SPEC, model.replica()) == near(later)
    keeper = model.keeper(FoldPolicy(keep_ms=0, keep_bytes=0))
    for _ in range(20):
        model.now_ms += 100
        keeper.step()
    assert predictions(SPEC, model.replica()) == near(later)
    keeper.release()


def test_a_recorded_relay_gives_the_recorded_predictions() -> None:
    recorded = golden.read("relay.json")
    replica = RelayedReplica(Shape(SPEC.name, BUCKETS, SPEC.width, SPEC.fingerprint, SPEC.text))
    for blocks, scores in (
        (recorded["bases"], PREDICTIONS["scores"]),
        (recorded["changes"], recorded["scores"]),
    ):
        assert all(isinstance(replica.take(golden.bytes_of(each)), Relayed) for each in blocks)
        assert predictions(SPEC, replica.table) == near(scores)


def test_a_recorded_snapshot_is_served_with_the_recorded_predictions() -> None:
    models = model_sources.snapshot_models([f"test={golden.V1 / 'snapshots'}"])
    request = {"candidates": PREDICTIONS["candidates"]}
    with running(models) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        eventually(lambda: ready(server.url))
        answer = client.post("/v1/models/test:predict", json=request).json()
    assert [each["score"] for each in answer["predictions"]] == near(PREDICTIONS["scores"])
    assert answer["snapshot"].endswith("-test-0a1b")
