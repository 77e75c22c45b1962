"""Looked-up rows equal those of a full replica, through every event in the life of a store."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from headrace.pserver.errors import MissingBucket, StoreError
from headrace.pserver.replica import log_tail as tail
from headrace.pserver.replica.partial_replica import PartialReplica
from headrace.pserver.replica.replica import Replica, Stale
from headrace.pserver.rows.deltas import RowDeltas
from headrace.pserver.store import OffsetSpan, Push
from tests.effort import seeds
from tests.pserver.laws.store_world import BUCKETS, LONG_MS, World, answered, fold_all, trim_through
from tests.pserver.laws.store_worlds import MemoryWorld, RedisWorld
from tests.pserver.replica.looked_up_rows import (
    SEEDS,
    STEPS,
    History,
    Watched,
    all_ids,
    by_id,
    expected,
)
from tests.pserver.rows.entries import SOURCE, WIDTH, Pusher, blob_of, unpacked


@pytest.fixture(
    params=[
        "memory",
        pytest.param("server", marks=pytest.mark.servers),
        pytest.param("cluster", marks=pytest.mark.servers),
    ]
)
def world(request: pytest.FixtureRequest, fresh_name: Callable[[str], str]) -> Iterator[World]:
    """One store of each kind."""
    if request.param == "memory":
        yield MemoryWorld()
        return
    fixture = "valkey_node" if request.param == "server" else "valkey"
    real = RedisWorld(request.getfixturevalue(fixture), fresh_name("lookup"))
    yield real
    real.store.close()


@pytest.mark.parametrize("seed", seeds(SEEDS))
def test_looked_up_rows_equal_a_replica_through_any_history_in_memory(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "_SMALLEST", 4)  # the arena then moves all the time
    History(MemoryWorld(), seed, lease_ms=1000).run(STEPS)


@pytest.mark.parametrize("seed", seeds(2))
def test_looked_up_rows_equal_a_replica_through_any_history_on_real_servers(
    world: World, seed: int
) -> None:
    History(world, seed, lease_ms=100).run(25)


def filled(world: World, bucket: int, pushes: int = 6) -> Pusher:
    pusher = Pusher(bucket, BUCKETS)
    answered(world.store, *(pusher.next() for _ in range(pushes)))
    return pusher


def test_a_lookup_of_no_ids_finds_no_rows(world: World) -> None:
    found = PartialReplica(world.store, world.shape).rows(np.zeros(0, np.uint64))
    assert found.rows.values.shape == (0, WIDTH)
    assert found.present.shape == found.versions.shape == (0,)


def test_thousands_of_rows_of_one_bucket_are_looked_up(world: World) -> None:
    dice = np.random.default_rng(3)
    ids = np.unique(dice.integers(0, 1 << 62, 3500).astype(np.uint64))
    count = ids.shape[0]
    ones, values = np.ones(count, np.uint32), dice.standard_normal((count, WIDTH), np.float32)
    blob = blob_of(RowDeltas(ids, ones, ones, ones, ones, values))
    answered(world.store, Push(0, (OffsetSpan(SOURCE, 0, 1),), b"nonce", blob))
    world.store.claim(0, "k", LONG_MS)
    fold_all(world, 0, "k")
    answered(world.store, Push(0, (OffsetSpan(SOURCE, 1, 2),), b"again", blob))
    world.empty(2)  # no test asks for it
    order = dice.permutation(count)
    found = PartialReplica(world.store, world.shape).rows(ids[order])
    assert found.present.all()
    assert np.array_equal(found.rows.ids, ids[order])
    assert (found.rows.shows == 2).all()
    assert found.rows.values.tobytes() == (values + values)[order].tobytes()


def test_a_lookup_returns_other_rows_when_a_bucket_does_not_answer() -> None:
    world = MemoryWorld()
    for bucket in range(BUCKETS):
        filled(world, bucket)
    watched = Watched(world.store)
    lookup = PartialReplica(watched, world.shape)  # type: ignore[arg-type]
    watched.silent = {2}
    found = lookup.rows(all_ids())
    of_two = lookup.shape.bucket_of(all_ids()) == 2
    assert list(found.failed) == [2]
    assert not found.present[of_two].any()
    assert not found.rows.exist()[of_two].any()
    assert by_id(found) == {i: row for i, row in expected(world).items() if i >> 62 != 2}
    assert [type(change) for change in lookup.poll()] == [Stale]
    with pytest.raises(KeyError, match="not begun"):
        lookup.position(2)
    watched.silent = set()
    assert lookup.poll() == []
    assert lookup.complete
    assert by_id(lookup.rows(all_ids())) == expected(world)


def test_a_bucket_that_came_back_empty_stops_every_call(world: World) -> None:
    lookup = PartialReplica(world.store, world.shape)
    lookup.poll()
    world.empty(1)
    with pytest.raises(MissingBucket, match="restore"):
        lookup.poll()
    with pytest.raises(MissingBucket, match="restore"):
        lookup.rows(all_ids())


def test_the_tail_of_a_partial_replica_holds_the_untrimmed_entries() -> None:
    world = MemoryWorld()
    pusher = Pusher(0, BUCKETS)
    lookup = PartialReplica(world.store, world.shape)
    world.store.claim(0, "k", LONG_MS)
    most_bytes = 0
    for number in range(1, 40):
        pushes = [pusher.next() for _ in range(50)]
        answered(world.store, *pushes)
        lookup.poll(limit=64)
        assert lookup.tail_rows >= sum(unpacked(push.blob)[0].rows for push in pushes)
        fold = fold_all(world, 0, "k", number)
        world.store.trim([trim_through(fold, fold.version - 1)])
        lookup.poll()
        assert lookup.tail_rows == unpacked(pushes[-1].blob)[0].rows
        if number == 10:
            most_bytes = lookup.tail_bytes
    assert lookup.tail_bytes <= most_bytes
    assert by_id(lookup.rows(all_ids())) == expected(world)


def test_a_log_entry_of_another_row_width_is_refused() -> None:
    world = MemoryWorld()
    world.store.push(
        [Push(0, (OffsetSpan(SOURCE, 0, 1),), b"nonce", blob_of(RowDeltas.empty(WIDTH + 1)))]
    )
    with pytest.raises(StoreError, match="rows of 2 floats, got 3"):
        PartialReplica(world.store, world.shape).poll()


def test_a_log_entry_with_ids_of_another_bucket_is_refused() -> None:
    world = MemoryWorld()
    foreign = all_ids()[world.shape.bucket_of(all_ids()) == 1][:1]
    blob = blob_of(RowDeltas.empty(WIDTH)._replace(ids=foreign, **_one_row()))
    world.store.push([Push(0, (OffsetSpan(SOURCE, 0, 1),), b"nonce", blob)])
    for replica in (PartialReplica(world.store, world.shape), Replica(world.store, world.shape)):
        with pytest.raises(StoreError, match="ids of this bucket, got one of bucket 1"):
            replica.poll()


def _one_row() -> dict[str, Any]:
    count = np.ones(1, np.uint32)
    columns = dict.fromkeys(("shows", "clicks", "first_seen", "last_seen"), count)
    return {**columns, "values": np.zeros((1, WIDTH), np.float32)}
