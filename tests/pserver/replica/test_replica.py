"""A replica equals the pushes, through every fault of the store."""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from headrace.pserver.errors import Unreachable
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import Replica, Stale
from headrace.pserver.rows.deltas import DELETING_FORMAT, Deletions, EntryHeader, pack
from headrace.pserver.rows.row_codec import StoredRows
from headrace.pserver.store import Delete, Fold, Trim
from tests.effort import examples
from tests.pserver.laws.new_stores import BUCKETS, SHAPE, new_store
from tests.pserver.replica.followed_logs import ChangingStore, fold_and_trim, following, pushed
from tests.pserver.rows.entries import Pusher, unpacked
from tests.pserver.rows.truth import rows_of, truth


class Following(ChangingStore):
    """A replica that polls at any time; others are new."""

    def __init__(self) -> None:
        super().__init__()
        self.replica = Replica(self.store, SHAPE)

    @rule(bucket=st.integers(0, 1))
    def push_and_fold_own(self, bucket: int) -> None:
        push = self.pushers[bucket].next()
        [answer] = self.store.push([push])
        assert not isinstance(answer, Unreachable)
        self.pushed[bucket].append(push)
        header, deltas = unpacked(push.blob)
        before = self.replica.position(bucket) if self.replica.copied(bucket) else None
        if self.replica.fold_own(answer, header, deltas):
            assert before is not None
            assert before.version == answer.version - 1

    @rule(limit=st.integers(1, 4))
    def poll(self, limit: int) -> None:
        self.replica.poll(limit)

    @rule()
    def another_keeper(self) -> None:
        self.keeper.release()
        self.keeper = self.new_keeper()

    @rule()
    def another_replica(self) -> None:
        fresh = following(self.store)
        for bucket in range(BUCKETS):
            assert rows_of(fresh, bucket) == truth(self.pushed[bucket])

    def teardown(self) -> None:
        while any(not isinstance(change, Stale) for change in self.replica.poll()):
            pass
        fresh = following(self.store)
        for bucket in range(BUCKETS):
            assert rows_of(self.replica, bucket) == truth(self.pushed[bucket])
            assert self.replica.checksum(bucket) == fresh.checksum(bucket)
            assert self.replica.position(bucket).version == len(self.pushed[bucket])


TestFollowing = Following.TestCase
TestFollowing.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


class SmallChunks(MemoryStore):
    """Reads rows one by one, and runs a callback after each."""

    def __init__(self) -> None:
        dice = random.Random(0)
        super().__init__(clock_ms=lambda: 0, nonces=lambda: dice.randbytes(8))
        self.after_each: Callable[[], object] = lambda: None
        self.create(SHAPE)

    def rows(self, bucket: int) -> Iterator[StoredRows]:
        for chunk in super().rows(bucket):
            for place in range(chunk.rows.ids.shape[0]):
                one = np.array([place])
                yield chunk._replace(rows=chunk.rows.chosen(one), versions=chunk.versions[one])
                self.after_each()


@pytest.mark.parametrize("limit", [1, 64])
def test_a_copy_is_complete_though_all_of_the_log_is_trimmed_while_rows_are_read(
    limit: int,
) -> None:
    store = SmallChunks()
    pusher = Pusher(0, BUCKETS)
    pushes = [pusher.next() for _ in range(6)]
    store.push(pushes)
    fold_and_trim(store, 0, 6)
    trimmed = [6]

    def learn_and_keep() -> None:
        pushes.append(pusher.next())
        store.push(pushes[-1:])
        store.after_each = lambda: None
        keep_one()
        store.after_each = learn_and_keep

    def keep_one() -> None:
        """Fold all rows, and leave only the last entry in the log."""
        replica = Replica(store, SHAPE, buckets=[0])
        replica.poll()
        position = replica.position(0)
        head = position.version, position.nonce
        store.claim(0, f"k{trimmed[0]}", 1000)
        fold = Fold(0, f"k{trimmed[0]}", 1, *head, replica.table.everything())
        assert store.fold([fold]) == [None]
        trim = Trim(0, f"k{trimmed[0]}", 1, *head, position.version - 1, trimmed[0])
        assert store.trim([trim]) == [None]
        store.release(0, f"k{trimmed[0]}")
        trimmed[0] = position.version - 1

    store.after_each = learn_and_keep
    replica = Replica(store, SHAPE, buckets=[0])
    replica.poll(limit)
    assert replica.copied(0)
    assert trimmed[0] > len(pushes) // 2 > 3  # the log that the copy began with is gone
    store.after_each = lambda: None
    replica.poll()
    assert rows_of(replica, 0) == truth(pushes)


def test_a_copy_begins_anew_if_the_log_goes_back_to_the_entries_read() -> None:
    store = new_store()
    pushes = pushed(store, 1)
    checkpoint = store.checkpoint(0)
    pushed_later = Pusher(0, BUCKETS)
    pushed_later.offset = pushes[-1].spans[0].stop
    store.push([pushed_later.next()])
    polls = itertools.count()
    honest = store.poll

    def poll(after: Any, limit: int) -> Any:
        answers = honest(after, limit)
        if next(polls) == 0:
            store.revert(0, checkpoint)
        return answers

    store.poll = poll  # type: ignore[method-assign]
    replica = Replica(store, SHAPE, buckets=[0])
    while not replica.complete:
        replica.poll(limit=1)
    assert rows_of(replica, 0) == truth(pushes)


def test_a_copy_of_a_bucket_that_has_no_row_and_deletes_one_is_empty() -> None:
    store = new_store()
    deletions = Deletions(np.array([7], np.uint64), np.array([5], np.uint32))
    store.claim(0, "k", 1000)
    nonce = store.checkpoint(0).nonce
    blob = pack(EntryHeader(0, 1, 0, 0, [], DELETING_FORMAT), deletions)
    assert store.delete([Delete(0, "k", 0, 0, nonce, b"deletion", blob)]) == [None]
    assert rows_of(following(store), 0) == {}
