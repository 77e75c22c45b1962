"""Laws of deletions: entries of the log that remove rows, and folds that remove them for good."""

import numpy as np
import pytest

from headrace.pserver.errors import MissingBucket
from headrace.pserver.replica.replica import Deleted, Replica
from headrace.pserver.rows.deltas import (
    DELETING_FORMAT,
    Deletions,
    EntryHeader,
    RowDeltas,
    pack,
    unpack_entry,
)
from headrace.pserver.store import Delete, Fold, OffsetSpan, Push
from tests.pserver.laws.store_world import (
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
from tests.pserver.rows.entries import SOURCE, WIDTH, blob_of


def push_of(bucket_ids: list[int], second: int, offset: int) -> Push:
    """A push to bucket 0 in which each row is shown once at this second."""
    count = len(bucket_ids)
    ones, seconds = np.ones(count, np.uint32), np.full(count, second, np.uint32)
    values = np.full((count, WIDTH), 0.5, np.float32)
    deltas = RowDeltas(np.array(bucket_ids, np.uint64), ones, 0 * ones, seconds, seconds, values)
    blob = blob_of(deltas, offset, offset + 1)
    return Push(0, (OffsetSpan(SOURCE, offset, offset + 1),), b"push%04d" % offset, blob)


def deletion(world: World, ids: list[int], second: int, folds: int = 0) -> Delete:
    """A deletion of rows of bucket 0 not seen after this second, decided at the head."""
    head = standing(world.store, 0)
    rows = Deletions(np.array(ids, np.uint64), np.full(len(ids), second, np.uint32))
    blob = pack(EntryHeader(0, len(ids), 0, 0, [], DELETING_FORMAT), rows)
    return Delete(0, "k", folds, head.version, head.nonce, b"deleting", blob)


def shows(replica: Replica) -> dict[int, int]:
    """The shows of the rows that exist."""
    rows = replica.table.everything()
    there = rows.exist()
    return dict(zip(rows.ids[there].tolist(), rows.shows[there].tolist(), strict=True))


class DeletionLaws:
    """The laws of deletions, a part of the laws of a store."""

    def test_a_deletion_is_an_entry_that_moves_no_mark(self, world: World) -> None:
        answered(world.store, push_of([1, 2], 50, 0))
        world.store.claim(0, "k", LONG_MS)
        before = standing(world.store, 0)
        delete = deletion(world, [2], 50)
        assert world.store.delete([delete]) == [None]
        after = standing(world.store, 0)
        assert (after.version, after.nonce, after.previous) == (2, b"deleting", before.nonce)
        assert after.marks == before.marks
        assert after.log_bytes == before.log_bytes + len(delete.blob)
        [entry] = polled(world.store, 0, 1).entries
        assert (entry.version, entry.previous, entry.blob) == (2, before.nonce, delete.blob)
        assert isinstance(unpack_entry(entry.blob)[1], Deletions)

    def test_followers_and_new_copies_delete_the_same_rows(self, world: World) -> None:
        answered(world.store, push_of([1, 2, 3], 50, 0))
        follower, _ = rows_at(world, 0)
        world.store.claim(0, "k", LONG_MS)
        world.store.delete([deletion(world, [1, 3, 9], 50)])
        answered(world.store, push_of([3], 60, 1))
        changes = follower.poll()
        assert [(c.version, c.ids.tolist()) for c in changes if isinstance(c, Deleted)] == [
            (2, [1, 3, 9])
        ]
        fresh, _ = rows_at(world, 0)
        assert shows(follower) == shows(fresh) == {2: 1, 3: 1}
        assert follower.checksum(0) == fresh.checksum(0)

    def test_a_deletion_leaves_a_row_that_was_seen_since(self, world: World) -> None:
        answered(world.store, push_of([1, 2], 50, 0))
        world.store.claim(0, "k", LONG_MS)
        delete = deletion(world, [1, 2], 50)
        answered(world.store, push_of([2], 51, 1))  # between the decision and its entry
        assert world.store.delete([delete]) == [None]
        assert shows(rows_at(world, 0)[0]) == {2: 2}

    def test_a_fold_removes_the_rows_that_are_gone(self, world: World) -> None:
        answered(world.store, push_of([1, 2], 50, 0))
        world.store.claim(0, "k", LONG_MS)
        fold_all(world, 0, "k", 1)
        world.store.delete([deletion(world, [1], 50, folds=1)])
        replica, rows = rows_at(world, 0)
        position = replica.position(0)
        there = rows.exist()
        gone = rows.ids[~there]
        fold = Fold(0, "k", 2, position.version, position.nonce, rows.chosen(there), gone)
        assert gone.tolist() == [1]
        assert world.store.fold([fold]) == [None]
        assert world.store.trim([trim_through(fold, position.version)]) == [None]
        stored = [row_id for chunk in world.store.rows(0) for row_id in chunk.rows.ids.tolist()]
        assert stored == [2]
        answered(
            world.store, push_of([1], 10, 1)
        )  # a new row, although its time is older than the deletion
        assert shows(rows_at(world, 0)[0]) == {1: 1, 2: 1}

    def test_a_new_copy_lacks_a_row_whose_entries_are_still_in_the_log_after_its_removal(
        self, world: World
    ) -> None:
        answered(world.store, push_of([1, 2], 50, 0))
        world.store.claim(0, "k", LONG_MS)
        fold = fold_all(world, 0, "k", 1)
        world.store.trim(
            [trim_through(fold, 1)]
        )  # only the folded rows have the first sight of both rows
        answered(world.store, push_of([1], 40, 1))
        follower, _ = rows_at(world, 0)
        world.store.delete([deletion(world, [1], 50, folds=1)])
        follower.poll()
        position = follower.position(0)
        none = follower.table.take(np.zeros(0, np.int64))
        gone = np.array([1], np.uint64)
        folded = Fold(0, "k", 2, position.version, position.nonce, none, gone)
        assert world.store.fold([folded]) == [None]
        fresh, _ = rows_at(world, 0)  # the log still has entries 2 and 3, the rows lack row 1
        assert shows(fresh) == shows(follower) == {2: 1}

    def test_a_deletion_needs_lease_entry_and_count_of_folds(self, world: World) -> None:
        answered(world.store, push_of([1], 50, 0))
        delete = deletion(world, [1], 50)
        assert refused(world.store.delete([delete]))
        world.store.claim(0, "k", LONG_MS)
        for fence in ((0, "j", 0, 1, delete.nonce), (0, "k", 1, 1, delete.nonce)):
            assert refused(world.store.delete([Delete(*fence, b"n", delete.blob)]))
        for fence in ((0, "k", 0, 1, b"another!"), (0, "k", 0, 2, delete.nonce)):
            assert refused(world.store.delete([Delete(*fence, b"n", delete.blob)]))
        assert standing(world.store, 0).version == 1
        assert world.store.delete([delete]) == [None]
        world.empty(0)
        with pytest.raises(MissingBucket):
            world.store.delete([delete])
