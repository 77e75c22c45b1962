"""A replica that follows logs: changes, silent buckets, rewritten and trimmed histories."""

from typing import Any

import numpy as np
import pytest

from headrace.pserver.errors import MissingBucket, Unreachable
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import BucketRecopied, Folded, Replica, Stale
from headrace.pserver.rows.deltas import SourceReached
from headrace.pserver.rows.table import RowTable
from headrace.pserver.store import PollResult
from tests.pserver.laws.new_stores import BUCKETS, SHAPE, new_store
from tests.pserver.replica.followed_logs import fold_and_trim, following, pushed
from tests.pserver.rows.entries import WIDTH, Pusher, unpacked
from tests.pserver.rows.truth import rows_of, truth


def test_old_rows_stay_visible_until_the_new_copy_is_complete() -> None:
    store = new_store()
    pushed(store, 3)
    checkpoint = store.checkpoint(0)
    replica = following(store)
    before = rows_of(replica, 0)
    pusher = Pusher(0, BUCKETS, seed=4)
    store.revert(0, checkpoint)
    store.empty(0)
    with pytest.raises(MissingBucket):
        replica.poll()
    assert rows_of(replica, 0) == before
    fresh = new_store()
    fresh.push([pusher.next()])
    store.revert(0, fresh.checkpoint(0))
    assert BucketRecopied(0) in replica.poll()
    assert rows_of(replica, 0) == rows_of(following(store), 0) != before


def test_changes_of_a_replica_contain_the_added_deltas() -> None:
    store = new_store()
    replica = following(store)
    pushes = pushed(store, 3)
    changes = replica.poll(limit=2)
    assert [(c.bucket, c.version) for c in changes if isinstance(c, Folded)] == [(0, 1), (0, 2)]
    [change] = replica.poll()
    assert isinstance(change, Folded)
    header, deltas = unpacked(pushes[2].blob)
    assert change.header == header
    assert change.size_bytes == len(pushes[2].blob)
    assert np.array_equal(change.deltas.ids, deltas.ids)
    span = pushes[2].spans[0]
    assert replica.position(0).reached == {
        span.source: SourceReached(span.source, span.start, span.stop, span.stop)
    }
    assert replica.poll() == []


class Silent:
    """A store in which some buckets do not answer."""

    def __init__(self, store: MemoryStore, silent: set[int]) -> None:
        self._store, self.silent = store, silent

    def poll(self, after: dict[int, int], limit: int) -> list[PollResult | Unreachable]:
        answers = self._store.poll(after, limit)
        return [
            Unreachable("no answer") if bucket in self.silent else answer
            for bucket, answer in zip(after, answers, strict=True)
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_bucket_that_does_not_answer_delays_no_other() -> None:
    store = new_store()
    silent = Silent(store, {1})
    replica = Replica(silent, SHAPE)  # type: ignore[arg-type]
    pushes = pushed(store, 2)
    changes = replica.poll()
    assert BucketRecopied(0) in changes
    assert [type(c) for c in changes if c.bucket == 1] == [Stale]
    assert not replica.complete
    assert rows_of(replica, 0) == truth(pushes)
    silent.silent = set()
    assert BucketRecopied(1) in replica.poll()
    silent.silent = {0}
    pushed(store, 1, bucket=1)
    assert [type(c) for c in replica.poll()] == [Stale, Folded]


def test_a_bucket_that_is_no_longer_followed_leaves_no_rows() -> None:
    store = new_store()
    pushed(store, 3)
    replica = following(store)
    replica.follow([1])
    assert rows_of(replica, 0) == {}
    assert replica.buckets == [1]
    replica.follow([0, 1])
    assert not replica.complete
    replica.poll()
    assert rows_of(replica, 0) == rows_of(following(store), 0)


def test_a_checksum_ignores_the_order_of_rows_and_rows_that_gained_nothing() -> None:
    store = new_store()
    pushed(store, 3)
    table = RowTable(WIDTH)
    table.find_or_add(np.arange(5, dtype=np.uint64))
    ordered, other = following(store), following(store, table)
    assert ordered.checksum(0) == other.checksum(0)
    pushed(store, 1, bucket=1)
    ordered.poll()
    assert ordered.checksum(1) != other.checksum(1)


@pytest.mark.parametrize("through", [3, 4, 5, 8])
def test_a_replica_that_lags_behind_the_trim_copies_again(through: int) -> None:
    store = new_store()
    pusher = Pusher(0, BUCKETS)
    pushes = [pusher.next() for _ in range(8)]
    store.push(pushes[:4])
    replica = following(store)
    store.push(pushes[4:])
    fold_and_trim(store, 0, through)
    changes = replica.poll()
    assert (BucketRecopied(0) in changes) == (through > 4)
    assert rows_of(replica, 0) == truth(pushes)


class Delayed:
    """A store in which a log is trimmed between the reading of its head and of its entries."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.trim: Any = None

    def poll(self, after: dict[int, int], limit: int) -> list[PollResult | Unreachable]:
        [before] = self._store.poll(after, limit)
        if self.trim is not None:
            self.trim, trim = None, self.trim
            trim()
        [polled] = self._store.poll(after, limit)
        assert not isinstance(before, Unreachable)
        assert not isinstance(polled, Unreachable)
        head = before.version, before.nonce, before.trimmed
        return [PollResult(polled.bucket, *head, polled.entries)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("through", [1, 3, 5])
def test_a_log_trimmed_while_it_is_read_is_not_taken_as_complete(through: int) -> None:
    store = new_store()
    pushes = pushed(store, 5)
    delayed = Delayed(store)
    replica = Replica(delayed, SHAPE, buckets=[0])  # type: ignore[arg-type]
    delayed.trim = lambda: fold_and_trim(store, 0, through)
    [change] = replica.poll()
    assert isinstance(change, Stale)
    assert replica.poll() == [BucketRecopied(0)]
    assert rows_of(replica, 0) == truth(pushes)
