"""Expiry: rows too old or too many leave store and replicas, and so does their memory."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pserver.errors import Unreachable
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.expiry import ROWS_AN_ENTRY, Expiry, expired, expired_rows
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.keeper.metrics import KeeperMetrics
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.deltas import RowDeltas
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.rows.table import RowTable
from headrace.pserver.store import OffsetSpan, Push, Shape
from tests.pserver.rows.entries import SOURCE, WIDTH, blob_of

TIMES = st.lists(st.integers(0, 60), max_size=40)


@given(times=TIMES, after_s=st.integers(0, 50), most_rows=st.integers(0, 30))
def test_expiry_deletes_the_oldest_rows_until_age_and_cap_are_kept(
    times: list[int], after_s: int, most_rows: int
) -> None:
    last_seen = np.array(times, np.uint32)
    going = set(expired(last_seen, after_s, most_rows).tolist())
    seen = {i for i, second in enumerate(times) if second}
    left = seen - going
    assert going <= seen, "a row that was never seen has no age"
    if left and after_s:
        assert min(times[i] for i in left) >= max(times) - after_s
    if most_rows:
        assert len(left) <= most_rows
    if left and going:
        assert max(times[i] for i in going) <= min(times[i] for i in left)
    if not after_s and len(seen) <= most_rows:
        assert not going
    if most_rows and not after_s and going:
        assert len(left) == most_rows - most_rows // 16


def test_expiry_has_a_present_and_a_share_of_the_cap_for_each_bucket() -> None:
    shape = Shape("m", 2, WIDTH, "f", "s")
    high = np.uint64(1 << 63)
    ids = np.array([5, 1, 3, high | 9, high | 2, high | 4], np.uint64)
    zeros = np.zeros(6, np.uint64)
    times = np.array([100, 50, 99, 20, 10, 19], np.uint32)
    rows = FoldedRows(ids, zeros, zeros, times, times, np.zeros((6, WIDTH), np.float32))
    found = [(b, ids[i].tolist(), n) for b, i, n in expired_rows(rows, shape, Expiry(after_s=5))]
    assert found == [(0, [1], 0), (1, [high | 2], 0)]
    found = [(b, ids[i].tolist(), n) for b, i, n in expired_rows(rows, shape, Expiry(most_rows=4))]
    assert found == [(0, [1], 1), (1, [high | 2], 1)]
    assert not list(expired_rows(rows, shape, Expiry(most_rows=6, after_s=60)))
    both = expired_rows(rows, shape, Expiry(most_rows=2, after_s=5))
    assert [(b, sorted(ids[i].tolist()), n) for b, i, n in both] == [
        (0, [1, 3], 1),
        (1, [high | 2, high | 4], 1),
    ], "one row is too old, another one too many"


def test_expiry_deletes_at_most_one_entry_of_rows_at_a_time() -> None:
    count = ROWS_AN_ENTRY + 10
    ids, zeros = np.arange(1, count + 1, dtype=np.uint64), np.zeros(count, np.uint64)
    times = np.arange(1, count + 1, dtype=np.uint32)
    rows = FoldedRows(ids, zeros, zeros, times, times, np.zeros((count, 0), np.float32))
    [(_, going, beyond)] = expired_rows(rows, Shape("m", 1, 0, "f", "s"), Expiry(most_rows=1))
    assert going.shape[0] == beyond == ROWS_AN_ENTRY


@pytest.mark.parametrize(
    ("own", "limit", "most"), [(0, 0, 0), (0, 7, 7), (7, 0, 7), (5, 7, 5), (7, 5, 5)]
)
def test_the_lower_of_the_specs_cap_and_the_operators_limit_counts(
    own: int, limit: int, most: int
) -> None:
    expiry = Expiry(after_s=3, most_rows=own, interval_ms=500).within(limit)
    assert expiry == Expiry(after_s=3, most_rows=most, interval_ms=500)


class Town:
    """A store in memory with a stream of rows seen once, and one row that is always seen."""

    def __init__(self, expiry: Expiry, seed: int = 0) -> None:
        self.now_ms, self.second, self.next_id = 0, 1000, 1
        self.dice = random.Random(seed)
        self.shape = Shape("m", 1, WIDTH, "f", "s")
        self.store = MemoryStore(clock_ms=lambda: self.now_ms, nonces=lambda: b"bucket00")
        self.store.create(self.shape)
        self.offset = 0
        self.metrics = KeeperMetrics("m")
        self.keeping = FoldPolicy(
            keep_ms=300, keep_bytes=1 << 20, rows_a_fold=50, lease_ms=10_000, expiry=expiry
        )
        self.keeper = self.new_keeper()

    def new_keeper(self) -> Keeper:
        return Keeper(
            self.store,
            self.shape,
            name="k",
            keeping=self.keeping,
            now_ms=lambda: self.now_ms,
            draw_nonce=lambda: self.dice.randbytes(8),
            metrics=self.metrics,
        )

    def show(self, ids: list[int]) -> None:
        """A second passes, and these rows are seen in it."""
        self.second += 1
        ones = np.ones(len(ids), np.uint32)
        values = np.ones((len(ids), WIDTH), np.float32)
        column = np.array(sorted(ids), np.uint64)
        deltas = RowDeltas(column, ones, 0 * ones, ones * self.second, ones * self.second, values)
        blob = blob_of(deltas, self.offset, self.offset + 1)
        span = OffsetSpan(SOURCE, self.offset, self.offset + 1)
        self.offset += 1
        [answer] = self.store.push([Push(0, (span,), self.dice.randbytes(8), blob)])
        assert not isinstance(answer, Unreachable)

    def live(self, rounds: int, new: int) -> None:
        """`new` rows come in each second; row 1 is seen in each."""
        for _ in range(rounds):
            ids = [self.next_id + 1 + i for i in range(new)]
            self.next_id += new
            self.show([1, *ids])
            self.now_ms += 100
            self.keeper.step()

    def counted(self, name: str) -> float:
        """The value of a metric of the keepers."""
        [found] = getattr(self.metrics, name).collect()
        return float(found.samples[0].value)

    def stored(self) -> set[int]:
        return {int(i) for chunk in self.store.rows(0) for i in chunk.rows.ids}

    def fresh(self) -> Replica:
        replica = Replica(self.store, self.shape)
        replica.poll()
        assert replica.complete
        return replica


def existing(replica: Replica) -> set[int]:
    rows = replica.table.everything()
    return set(rows.ids[rows.exist()].tolist())


@pytest.mark.parametrize(
    ("expiry", "most"),
    [
        (Expiry(after_s=20, interval_ms=500), 20 * 10 + 150),
        (Expiry(most_rows=300, interval_ms=500), 300 + 50),
    ],
)
def test_a_stream_of_new_rows_does_not_make_the_model_grow(expiry: Expiry, most: int) -> None:
    town = Town(expiry)
    server = town.fresh()
    for _ in range(30):
        town.live(10, new=10)
        server.poll()
        server.compact()
        assert len(existing(server)) <= most
        assert len(town.stored()) <= most + 100  # entries in the log are not yet folded
    assert town.counted("deleted_rows") > 2000
    assert 1 in existing(server)
    row = server.table.take(server.table.find(np.array([1], np.uint64)))
    assert row.shows.tolist() == [300], "a row seen all the time lost nothing"
    town.keeper.step()  # reads its own last entry
    server.poll()
    assert server.checksum(0) == town.fresh().checksum(0) == town.keeper.replica.checksum(0)
    for table in (server.table, town.keeper.replica.table):
        assert len(table) < most + 1500, "the memory of removed rows was not given back"


def test_rows_deleted_by_a_dead_keeper_are_removed_by_the_next_one() -> None:
    town = Town(Expiry(after_s=20, interval_ms=500))
    town.live(60, new=10)
    town.keeper = town.new_keeper()  # the other keeper dies, and its lease has to end
    town.now_ms += 20_000
    town.live(60, new=10)
    assert town.stored() - existing(town.fresh()) == set()
    assert len(town.stored()) < 400
    assert town.keeper.replica.checksum(0) == town.fresh().checksum(0)


def test_a_model_without_limits_deletes_nothing() -> None:
    town = Town(Expiry())
    town.live(50, new=10)
    assert town.counted("deleted_rows") == 0
    assert len(existing(town.fresh())) == 501


@given(seed=st.integers(0, 2**32 - 1))
def test_a_compacted_table_finds_the_same_rows(seed: int) -> None:
    dice = np.random.default_rng(seed)
    table = RowTable(1)
    ids = np.unique(dice.integers(1, 5000, 2000).astype(np.uint64))
    count = ids.shape[0]
    ones = np.ones(count, np.uint32)
    table.add(RowDeltas(ids, ones, ones, ones, ones, np.ones((count, 1), np.float32)))
    gone = dice.random(count) < 0.7
    table.clear(table.find(ids[gone]))
    keep = np.zeros(table.columns.ids.shape[0], np.bool_)
    spared = table.find(ids[gone])[:5]
    keep[spared] = True
    before = table.columns
    moved = table.compact(keep)
    assert before is not table.columns, "who reads the old columns reads on"
    assert not table.sparse
    places = table.find(ids)
    assert (places[~gone] >= 0).all()
    assert np.count_nonzero(places >= 0) == np.count_nonzero(~gone) + 5
    for row_id, old in zip(ids.tolist(), range(count), strict=True):
        assert moved[old] == places[old]
        if moved[old] >= 0:
            assert int(table.columns.ids[moved[old]]) == row_id
    assert np.count_nonzero(table.everything().exist()) == np.count_nonzero(~gone)


def test_a_running_model_keeps_to_a_limit_that_an_operator_sets_raises_and_removes() -> None:
    town = Town(Expiry(interval_ms=500))
    server = town.fresh()
    town.live(50, new=10)
    assert town.counted("limited_rows") == 0
    sizes = []
    for limit in (300, 600, 0):
        town.store.limit_rows(limit)
        town.live(100, new=10)
        server.poll(1000)
        sizes.append(len(existing(server)))
        assert 1 in existing(server), "the row that is always seen stays"
        assert existing(server) == existing(town.fresh())
        assert town.counted("row_limit") == limit
    assert 250 <= sizes[0] <= 300 + 50
    assert 500 <= sizes[1] <= 600 + 50
    assert sizes[2] >= sizes[1] + 900
    assert town.counted("limited_rows") == town.counted("deleted_rows") > 0
    [head] = town.store.marks([0])
    assert not isinstance(head, Unreachable)
    assert head.marks == {SOURCE: town.offset}, "every example is learned"


def test_a_keeper_keeps_to_the_last_known_limit_while_the_store_does_not_answer() -> None:
    town = Town(Expiry(interval_ms=500))
    town.store.limit_rows(300)
    town.live(20, new=10)

    def away() -> int:
        raise Unreachable("the shape's server is down")

    town.store.row_limit = away  # type: ignore[method-assign]
    town.live(100, new=10)
    assert len(existing(town.fresh())) <= 300 + 50


def test_rows_deleted_by_the_specs_own_cap_do_not_count_as_limited() -> None:
    town = Town(Expiry(most_rows=300, interval_ms=500))
    town.store.limit_rows(400)
    town.live(100, new=10)
    assert town.counted("deleted_rows") > 0
    assert town.counted("limited_rows") == 0
