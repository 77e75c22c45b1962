"""Laws of keepers: leases, folds in their order, and trims of what was folded."""

import time

import numpy as np
import pytest

from headrace.pserver.errors import LostLease
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import Fold, Trim
from tests.pserver.laws.store_world import (
    BUCKETS,
    LONG_MS,
    World,
    answered,
    fold_all,
    polled,
    refused,
    rows_at,
    standing,
    trim_through,
)
from tests.pserver.rows.entries import Pusher


class KeeperLaws:
    """Laws about leases, folds and trims."""

    def test_only_one_keeper_holds_a_bucket(self, world: World) -> None:
        assert world.store.claim(0, "one", LONG_MS)
        assert not world.store.claim(0, "two", LONG_MS)
        assert world.store.claim(0, "one", LONG_MS)
        assert world.store.claim(1, "two", LONG_MS)
        world.store.release(0, "two")
        assert not world.store.claim(0, "two", LONG_MS)
        world.store.release(0, "one")
        assert world.store.claim(0, "two", LONG_MS)

    def test_a_lease_ends_by_itself(self, world: World) -> None:
        answered(world.store, Pusher(0, BUCKETS).next())
        assert world.store.claim(0, "one", 20)
        deadline = time.monotonic() + 10
        while not world.store.claim(0, "two", LONG_MS):
            assert time.monotonic() < deadline
        with pytest.raises(LostLease):
            fold_all(world, 0, "one")

    def test_an_ended_lease_folds_nothing_though_no_other_keeper_took_it(
        self, world: World
    ) -> None:
        answered(world.store, Pusher(0, BUCKETS).next())
        assert world.store.claim(0, "one", 1)
        assert world.store.claim(1, "one", 20)
        deadline = time.monotonic() + 10
        while not world.store.claim(1, "two", LONG_MS):  # the shorter lease has then ended, too
            assert time.monotonic() < deadline
        with pytest.raises(LostLease):
            fold_all(world, 0, "one")

    def test_stored_rows_equal_the_folded_ones(self, world: World) -> None:
        assert world.store.claim(2, "k", LONG_MS)
        pusher = Pusher(2, BUCKETS)
        for _ in range(5):
            answered(world.store, pusher.next())
        fold = fold_all(world, 2, "k")
        [*chunks] = world.store.rows(2)
        ids = np.concatenate([chunk.rows.ids for chunk in chunks])
        order, expected = np.argsort(ids), np.argsort(fold.rows.ids)
        for name in FoldedRows._fields:
            column = np.concatenate([getattr(chunk.rows, name) for chunk in chunks])
            assert column[order].tobytes() == getattr(fold.rows, name)[expected].tobytes(), name
        assert {int(v) for chunk in chunks for v in chunk.versions} == {5}
        assert not any(chunk.rows.ids.shape[0] for chunk in world.store.rows(1))

    def test_a_fold_needs_the_lease(self, world: World) -> None:
        answered(world.store, Pusher(0, BUCKETS).next())
        with pytest.raises(LostLease):
            fold_all(world, 0, "nobody")
        world.store.claim(0, "one", LONG_MS)
        with pytest.raises(LostLease):
            fold_all(world, 0, "two")

    def test_a_fold_needs_the_entry_it_names(self, world: World) -> None:
        answered(world.store, Pusher(0, BUCKETS).next())
        world.store.claim(0, "k", LONG_MS)
        _, rows = rows_at(world, 0)
        for version, nonce in ((1, b"another!"), (2, standing(world.store, 0).nonce)):
            assert refused(world.store.fold([Fold(0, "k", 1, version, nonce, rows)]))
        assert not any(chunk.rows.ids.shape[0] for chunk in world.store.rows(0))

    def test_a_fold_may_name_an_entry_behind_the_head(self, world: World) -> None:
        pusher = Pusher(0, BUCKETS)
        answered(world.store, pusher.next())
        world.store.claim(0, "k", LONG_MS)
        replica, rows = rows_at(world, 0)
        answered(world.store, pusher.next())
        position = replica.position(0)
        assert world.store.fold([Fold(0, "k", 1, position.version, position.nonce, rows)]) == [None]
        fresh, _ = rows_at(world, 0)
        follower = Replica(world.store, world.shape, buckets=[0])
        follower.poll()
        assert fresh.checksum(0) == follower.checksum(0)

    def test_folds_are_accepted_in_order_and_once(self, world: World) -> None:
        pusher = Pusher(0, BUCKETS)
        answered(world.store, pusher.next())
        world.store.claim(0, "k", LONG_MS)
        with pytest.raises(LostLease):
            fold_all(world, 0, "k", number=2)
        early = fold_all(world, 0, "k", number=1)
        answered(world.store, pusher.next())
        fold_all(world, 0, "k", number=2)
        assert refused(world.store.fold([early]))  # delayed in the network
        world.store.release(0, "k")
        world.store.claim(0, "another", LONG_MS)
        fold_all(world, 0, "another", number=1)

    def test_renewing_a_lease_keeps_the_count_of_folds(self, world: World) -> None:
        answered(world.store, Pusher(0, BUCKETS).next())
        world.store.claim(0, "k", LONG_MS)
        fold_all(world, 0, "k", number=1)
        world.store.claim(0, "k", LONG_MS)
        fold_all(world, 0, "k", number=2)

    def test_a_trim_removes_the_entries_it_names_and_no_others(self, world: World) -> None:
        pusher = Pusher(0, BUCKETS)
        pushes = [pusher.next() for _ in range(6)]
        answered(world.store, *pushes)
        world.store.claim(0, "k", LONG_MS)
        fold = fold_all(world, 0, "k")
        assert world.store.trim([trim_through(fold, 4)]) == [None]
        found = polled(world.store, 0, 0)
        assert [entry.version for entry in found.entries] == [5, 6]
        assert (found.version, found.trimmed) == (6, 4)
        assert standing(world.store, 0).log_bytes == sum(len(p.blob) for p in pushes[4:])
        assert world.store.trim([trim_through(fold, 2)]) == [
            None
        ]  # a late repetition has no effect
        assert polled(world.store, 0, 0).trimmed == 4
        assert {chunk.trimmed for chunk in world.store.rows(0)} == {4}
        assert world.store.trim([trim_through(fold, 6)]) == [None]
        assert standing(world.store, 0).log_bytes == 0
        found = polled(world.store, 0, 5)
        assert (found.version, found.trimmed, found.entries) == (6, 6, ())
        answered(world.store, pusher.next())
        assert [entry.version for entry in polled(world.store, 0, 6).entries] == [7]

    def test_a_trim_needs_lease_entry_and_count_of_folds(self, world: World) -> None:
        answered(world.store, Pusher(0, BUCKETS).next())
        world.store.claim(0, "k", LONG_MS)
        fold = fold_all(world, 0, "k")
        for keeper, folds, nonce in (
            ("j", 1, fold.nonce),
            ("k", 0, fold.nonce),
            ("k", 2, fold.nonce),
            ("k", 1, b"another!"),
        ):
            assert refused(world.store.trim([Trim(0, keeper, folds, 1, nonce, 1, 0)]))
        assert len(polled(world.store, 0, 0).entries) == 1

    def test_a_failover_that_brings_trimmed_entries_back_stops_the_trim(self, world: World) -> None:
        pusher = Pusher(0, BUCKETS)
        answered(world.store, pusher.next(), pusher.next())
        before = world.checkpoint(0)
        world.store.claim(0, "k", LONG_MS)
        world.store.trim([trim_through(fold_all(world, 0, "k"), 1)])
        world.store.release(0, "k")
        world.store.claim(0, "heir", LONG_MS)  # reads entry 2 alone: 1 is in the rows
        nonce = standing(world.store, 0).nonce
        world.revert(0, before)
        world.store.claim(0, "heir", LONG_MS)  # renews; it has no folds that could be lost
        assert refused(world.store.trim([Trim(0, "heir", 0, 2, nonce, 2, 1)]))
        assert len(polled(world.store, 0, 0).entries) == 2
