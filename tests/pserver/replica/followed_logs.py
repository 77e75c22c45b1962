"""Logs that are pushed to, folded and trimmed, and replicas that follow them."""

import random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.expiry import Expiry
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.memory_store import BucketState, MemoryStore
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.table import RowTable
from headrace.pserver.store import Fold, Push, Trim
from tests.pserver.laws.new_stores import BUCKETS, SHAPE, new_store
from tests.pserver.rows.entries import Pusher


def following(store: Any, table: RowTable | None = None) -> Replica:
    replica = Replica(store, SHAPE, table)
    while not replica.complete:
        replica.poll()
    return replica


def pushed(store: MemoryStore, count: int, bucket: int = 0) -> list[Push]:
    pusher = Pusher(bucket, BUCKETS)
    pushes = [pusher.next() for _ in range(count)]
    store.push(pushes)
    return pushes


def fold_and_trim(store: MemoryStore, bucket: int, through: int | None) -> None:
    """Fold and trim as a keeper that starts now and ends at once."""
    store.claim(bucket, "k", 1000)
    replica = Replica(store, SHAPE, buckets=[bucket])
    replica.poll()
    position = replica.position(bucket)
    head = position.version, position.nonce
    rows = replica.table.everything()
    assert store.fold([Fold(bucket, "k", 1, *head, rows)]) == [None]
    if through is not None:
        assert store.trim([Trim(bucket, "k", 1, *head, through, 0)]) == [None]
    store.release(bucket, "k")


class ChangingStore(RuleBasedStateMachine):
    """Pushes, folds, deletions, trims and failovers of two buckets, in any order."""

    expiry = Expiry()

    def __init__(self) -> None:
        super().__init__()
        self.store, self.dice, self.now_ms = new_store(), random.Random(1), 0
        self.pushers = [Pusher(bucket, BUCKETS) for bucket in range(BUCKETS)]
        self.pushed: list[list[Push]] = [[], []]
        self.remembered: dict[int, tuple[BucketState, int, list[Push]]] = {}
        self.keeper = self.new_keeper()

    def new_keeper(self) -> Keeper:
        return Keeper(
            self.store,
            SHAPE,
            name="k",
            keeping=FoldPolicy(
                keep_ms=50, keep_bytes=800, rows_a_fold=3, lease_ms=1000, expiry=self.expiry
            ),
            now_ms=lambda: self.now_ms,
            draw_nonce=lambda: self.dice.randbytes(8),
        )

    def changed(self) -> None:
        """Take note of a change."""

    @rule(bucket=st.integers(0, 1), rows=st.integers(0, 6))
    def push(self, bucket: int, rows: int) -> None:
        push = self.pushers[bucket].next(rows)
        self.store.push([push])
        self.pushed[bucket].append(push)
        self.changed()

    @rule(passing_ms=st.integers(0, 400))
    def keep(self, passing_ms: int) -> None:
        self.now_ms += passing_ms
        self.keeper.step()
        self.changed()

    @rule(bucket=st.integers(0, 1))
    def remember(self, bucket: int) -> None:
        state = self.store.checkpoint(bucket)
        self.remembered[bucket] = state, self.pushers[bucket].offset, list(self.pushed[bucket])

    @rule(bucket=st.integers(0, 1))
    def fail_over(self, bucket: int) -> None:
        if bucket in self.remembered:
            state, self.pushers[bucket].offset, pushed = self.remembered[bucket]
            self.store.revert(bucket, state)
            self.pushed[bucket] = list(pushed)
            self.changed()
