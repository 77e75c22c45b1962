"""Looked-up rows equal those of a full replica, through every event in the life of a store."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headrace.pserver.errors import MissingBucket, StoreError, Unreachable
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.expiry import Expiry
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.replica import log_tail as tail
from headrace.pserver.replica.partial_replica import FoundRows, HistoryReset, PartialReplica
from headrace.pserver.replica.replica import Replica, Stale
from headrace.pserver.rows.deltas import NEVER, RowDeltas, unpack
from headrace.pserver.store import OffsetSpan, Push
from tests.effort import seeds
from tests.pserver.laws.store_world import (
    BUCKETS,
    LONG_MS,
    World,
    answered,
    fold_all,
    standing,
    trim_through,
)
from tests.pserver.laws.store_worlds import MemoryWorld, RedisWorld
from tests.pserver.rows.entries import SOURCE, WIDTH, Pusher, blob_of
from tests.pserver.rows.truth import Row, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from headrace.pserver.rows.row_codec import FoldedRows
    from headrace.pserver.store import LookResult, PollResult

SEEDS = 40
STEPS = 60


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


def all_ids() -> npt.NDArray[np.uint64]:
    """Every id that a Pusher uses, and one of each bucket that none uses."""
    numbers = [number * 0x0123456789AB for number in range(9)] + [5]
    return np.array([n | b << 62 for b in range(BUCKETS) for n in numbers], np.uint64)


def row_at(rows: FoldedRows, index: int) -> Row:
    return (
        int(rows.shows[index]),
        int(rows.clicks[index]),
        int(rows.first_seen[index]),
        int(rows.last_seen[index]),
        rows.values[index].tobytes(),
    )


def by_id(found: FoundRows) -> dict[int, Row]:
    """The rows that are present."""
    present = np.flatnonzero(found.present).tolist()
    return {int(found.rows.ids[i]): row_at(found.rows, i) for i in present}


def replicated(world: World, bucket: int) -> Replica:
    replica = Replica(world.store, world.shape, buckets=[bucket])
    while not replica.complete:
        replica.poll()
    return replica


def expected(world: World) -> dict[int, Row]:
    """All rows of the model, from a new replica."""
    rows: dict[int, Row] = {}
    for bucket in range(BUCKETS):
        rows |= rows_of(replicated(world, bucket), bucket)
    return rows


class Watched:
    """A store that runs a callback right before and after the calls of a lookup."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.happen: Callable[[], None] = lambda: None
        self.silent: set[int] = set()

    def poll(self, after: dict[int, int], limit: int) -> list[PollResult | Unreachable]:
        self.happen()
        answers = self._store.poll(after, limit)
        self.happen()
        return [self._said(b, answer) for b, answer in zip(after, answers, strict=True)]

    def look(
        self, wanted: Any, after: dict[int, int], limit: int
    ) -> list[LookResult | Unreachable]:
        self.happen()
        answers = self._store.look(wanted, after, limit)
        self.happen()
        return [self._said(b, answer) for b, answer in zip(wanted, answers, strict=True)]

    def _said(self, bucket: int, answer: Any) -> Any:
        return Unreachable("no answer") if bucket in self.silent else answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class History:
    """Every event in the life of a model, in random order, and its rows after each."""

    def __init__(self, world: World, seed: int, lease_ms: int) -> None:
        self.world, self.dice, self.lease_ms = world, random.Random(seed), lease_ms
        self.watched = Watched(world.store)
        self.pushers = [Pusher(bucket, BUCKETS, seed) for bucket in range(BUCKETS)]
        self.remembered: dict[int, tuple[Any, int]] = {}
        self.now_ms = 0
        self.keeper = self.new_keeper()
        self.states: dict[tuple[int, int, bytes], dict[int, Row]] = {}
        for bucket in range(BUCKETS):
            self.note(bucket)

    def new_keeper(self) -> Keeper:
        keeping = FoldPolicy(
            keep_ms=50,
            keep_bytes=self.dice.choice([400, 1600]),
            rows_a_fold=3,
            lease_ms=self.lease_ms,
            expiry=Expiry(most_rows=self.dice.choice([0, 4 * BUCKETS]), interval_ms=1),
        )
        return Keeper(
            self.world.store,
            self.world.shape,
            name="k",
            keeping=keeping,
            now_ms=lambda: self.now_ms,
            draw_nonce=lambda: self.dice.randbytes(8),
        )

    def note(self, bucket: int) -> None:
        """Record a bucket's rows at its head."""
        head = standing(self.world.store, bucket)
        if (bucket, head.version, head.nonce) not in self.states:
            rows = rows_of(replicated(self.world, bucket), bucket)
            self.states[bucket, head.version, head.nonce] = rows

    def happen(self) -> None:
        """One random event."""
        bucket = self.dice.randrange(BUCKETS)
        kinds = [self.push, self.push, self.push, self.keep, self.keep, self.keep_anew]
        self.dice.choice([*kinds, self.remember, self.revert, self.load])(bucket)

    def push(self, bucket: int) -> None:
        answered(self.world.store, self.pushers[bucket].next(self.dice.randrange(6)))
        self.note(bucket)

    def keep(self, _: int) -> None:
        self.now_ms += self.dice.choice([0, 10, 60, 400])
        self.keeper.step()
        for bucket in range(BUCKETS):
            self.note(bucket)

    def keep_anew(self, bucket: int) -> None:
        self.keeper.release()
        self.keeper = self.new_keeper()
        self.keep(bucket)

    def remember(self, bucket: int) -> None:
        self.remembered[bucket] = self.world.checkpoint(bucket), self.pushers[bucket].offset

    def revert(self, bucket: int) -> None:
        if bucket in self.remembered:
            checkpoint, offset = self.remembered[bucket]
            self.world.revert(bucket, checkpoint)
            self.pushers[bucket].offset = offset
            self.keeper = self.new_keeper()  # keepers are not tested here
            self.note(bucket)

    def load(self, bucket: int) -> None:
        """The bucket is lost, and loaded with its rows at another version."""
        if self.dice.random() < 0.7:
            return
        rows = replicated(self.world, bucket).table.everything()
        rows = rows.chosen(rows.exist())
        marks = standing(self.world.store, bucket).marks
        self.world.empty(bucket)
        self.world.store.load(bucket, self.dice.randrange(40), marks, [rows])
        self.note(bucket)

    def check(self, lookup: PartialReplica, ids: npt.NDArray[np.uint64], limit: int) -> None:
        """Rows are of one version of each bucket, and not older than before."""
        buckets = world_buckets(lookup, ids)
        found = lookup.rows(ids, limit)
        assert not found.failed
        for index, (row_id, bucket) in enumerate(zip(ids.tolist(), buckets, strict=True)):
            position = lookup.position(bucket)
            assert found.versions[index] == position.version
            state = self.states[bucket, position.version, position.nonce]
            assert found.rows.ids[index] == row_id
            assert found.present[index] == (row_id in state)
            nothing = (0, 0, NEVER, 0, bytes(4 * WIDTH))
            assert row_at(found.rows, index) == state.get(row_id, nothing)

    def run(self, steps: int) -> None:
        """Look rows up, with events before, after and in the middle."""
        every = all_ids()
        long_lived = PartialReplica(self.watched, self.world.shape)  # type: ignore[arg-type]
        for _ in range(steps):
            self.happen()
            limit = self.dice.choice([1, 3, 64])
            self.watched.happen = self.happen if self.dice.random() < 0.3 else lambda: None
            if self.dice.random() < 0.5:
                long_lived.poll(limit)
            some = np.array(self.dice.choices(every, k=self.dice.randrange(1, 50)), np.uint64)
            self.check(long_lived, some, limit)
            if self.dice.random() < 0.2:
                fresh = PartialReplica(self.watched, self.world.shape)  # type: ignore[arg-type]
                self.check(fresh, some, limit)
        self.watched.happen = lambda: None
        assert by_id(long_lived.rows(every)) == expected(self.world)
        self.keeper.release()


def world_buckets(lookup: PartialReplica, ids: npt.NDArray[np.uint64]) -> list[int]:
    buckets: list[int] = lookup.shape.bucket_of(ids).tolist()
    return buckets


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


def test_looked_up_rows_equal_a_replica_without_a_poll_before(world: World) -> None:
    for bucket in (1, 3):
        filled(world, bucket)
    world.store.claim(1, "k", LONG_MS)
    world.store.trim([trim_through(fold_all(world, 1, "k"), 4)])
    lookup = PartialReplica(world.store, world.shape)
    found = lookup.rows(all_ids(), limit=2)
    assert by_id(found) == expected(world)
    assert not found.failed
    assert found.versions[lookup.shape.bucket_of(all_ids()) == 1].tolist() == [6] * 10
    assert lookup.complete


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


def test_a_failover_that_loses_folds_and_a_trim_but_no_entry_is_noticed(world: World) -> None:
    filled(world, 0)
    world.store.claim(0, "k", LONG_MS)
    before = world.checkpoint(0)
    world.store.trim([trim_through(fold_all(world, 0, "k"), 5)])
    lookup = PartialReplica(world.store, world.shape)
    assert by_id(lookup.rows(all_ids())) == expected(world)
    world.revert(0, before)
    assert by_id(lookup.rows(all_ids())) == expected(world)
    assert lookup.poll() == [HistoryReset(0)]


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
        assert lookup.tail_rows >= sum(unpack(push.blob)[0].rows for push in pushes)
        fold = fold_all(world, 0, "k", number)
        world.store.trim([trim_through(fold, fold.version - 1)])
        lookup.poll()
        assert lookup.tail_rows == unpack(pushes[-1].blob)[0].rows
        if number == 10:
            most_bytes = lookup.tail_bytes
    assert lookup.tail_bytes <= most_bytes
    assert by_id(lookup.rows(all_ids())) == expected(world)


def test_rows_looked_up_before_are_brought_up_to_date(world: World) -> None:
    """As in a cache of hot rows, which does not ask the store for them again."""
    pusher = filled(world, 0, 3)
    lookup = PartialReplica(world.store, world.shape)
    cached = lookup.rows(all_ids())
    quiet = all_ids()[lookup.newest(all_ids()) <= cached.versions]
    assert np.array_equal(quiet, all_ids())
    answered(world.store, pusher.next(), pusher.next())
    lookup.poll()
    changed = lookup.newest(all_ids()) > cached.versions
    assert changed.any()
    assert not changed.all()
    versions, known = lookup.advance(cached.rows, cached.versions)
    assert known.all()
    assert set(versions.tolist()) == {0, 5}
    now = FoundRows(cached.rows, cached.rows.exist(), versions, {})
    assert by_id(now) == expected(world)

    world.store.claim(0, "k", LONG_MS)
    answered(world.store, pusher.next(), pusher.next())
    world.store.trim([trim_through(fold_all(world, 0, "k"), 6)])
    lookup.poll()
    lookup.poll()
    _, known = lookup.advance(cached.rows, versions)
    assert np.array_equal(known, lookup.shape.bucket_of(all_ids()) != 0)


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
