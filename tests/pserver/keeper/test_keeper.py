"""Keepers fold and trim without loss, though killed, doubled or deceived at any moment."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from prometheus_client import Counter

from headrace.pserver.errors import Unreachable
from headrace.pserver.keeper.bucket_lease import FoldPolicy, PendingEntry, entries_to_fold
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.keeper.metrics import KeeperMetrics
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import Replica
from headrace.pserver.store import PollResult, Push, Shape
from tests.pserver.rows.entries import WIDTH, Pusher
from tests.pserver.rows.truth import rows_of, truth

BUCKETS = 2
SHAPE = Shape("m", BUCKETS, WIDTH, "fingerprint", "spec")
EAGER = FoldPolicy(keep_ms=0, keep_bytes=0, rows_a_fold=2, lease_ms=1000)


def counted(metric: Counter) -> float:
    """The value of a metric."""
    [found] = metric.collect()
    return found.samples[0].value


class World:
    """A store in memory, a clock, and the pushes so far."""

    def __init__(self, seed: int = 0) -> None:
        self.now_ms = 0
        self.dice = random.Random(seed)
        self.store = MemoryStore(clock_ms=lambda: self.now_ms, nonces=self.nonce)
        self.store.create(SHAPE)
        self.pushers = [Pusher(bucket, BUCKETS, seed) for bucket in range(BUCKETS)]
        self.pushed: list[list[Push]] = [[] for _ in range(BUCKETS)]

    def nonce(self) -> bytes:
        return self.dice.randbytes(8)

    def push(self, count: int) -> None:
        for pusher in self.pushers:
            pushes = [pusher.next() for _ in range(count)]
            self.store.push(pushes)
            self.pushed[pusher.bucket] += pushes

    def keeper(self, store: Any = None, keeping: FoldPolicy = EAGER, name: str = "k") -> Keeper:
        self.metrics = KeeperMetrics("m")
        return Keeper(
            store or self.store,
            SHAPE,
            name=name,
            keeping=keeping,
            now_ms=lambda: self.now_ms,
            draw_nonce=self.nonce,
            metrics=self.metrics,
        )

    def claimed(self, keeping: FoldPolicy = EAGER, name: str = "k", store: Any = None) -> Keeper:
        keeper = self.keeper(store, keeping, name)
        for _ in range(BUCKETS):
            keeper.step()
            self.now_ms += keeping.lease_ms // 100
        assert keeper.leased == list(range(BUCKETS))
        return keeper

    def log_versions(self, bucket: int) -> list[int]:
        [polled] = self.store.poll({bucket: 0}, 1000)
        assert not isinstance(polled, Unreachable)
        return [entry.version for entry in polled.entries]

    def check(self) -> None:
        """Rows and log together equal the pushes."""
        replica = Replica(self.store, SHAPE)
        replica.poll()
        for bucket in range(BUCKETS):
            assert rows_of(replica, bucket) == truth(self.pushed[bucket])


def held(*ages_ms: int, size_bytes: int = 10) -> list[PendingEntry]:
    none = np.zeros(0, np.int64)
    return [PendingEntry(n, size_bytes, -age, none) for n, age in enumerate(ages_ms, 1)]


@pytest.mark.parametrize(
    ("ages_ms", "keep_ms", "keep_bytes", "expected"),
    [
        ((), 80, 1000, 0),
        ((79, 60, 5), 80, 1000, 0),
        ((80, 75, 71, 69, 5), 80, 1000, 3),  # down to 7/8 of the time
        ((9, 8, 7, 6), 80, 40, 0),
        ((9, 8, 7, 6, 5), 80, 40, 2),  # down to 7/8 of the bytes
        ((500,), 80, 0, 0),  # the last one stays
        ((500, 400), 80, 0, 1),
    ],
)
def test_entries_to_fold_are_the_old_or_excess_ones_and_never_the_last(
    ages_ms: tuple[int, ...], keep_ms: int, keep_bytes: int, expected: int
) -> None:
    entries = held(*ages_ms)
    keeping = FoldPolicy(keep_ms=keep_ms, keep_bytes=keep_bytes)
    assert entries_to_fold(entries, 10 * len(entries), 0, keeping) == expected


@pytest.mark.parametrize(("trim_bytes", "expected"), [(5, 1), (10, 1), (29, 2), (30, 3), (500, 7)])
def test_a_log_that_is_far_too_long_is_shortened_step_by_step(
    trim_bytes: int, expected: int
) -> None:
    entries, keeping = held(*[1] * 10), FoldPolicy(keep_ms=80, keep_bytes=40, trim_bytes=trim_bytes)
    assert entries_to_fold(entries, 100, 0, keeping) == expected


def test_a_hot_row_is_written_once_for_all_the_entries_that_touch_it() -> None:
    world = World()
    keeper = world.keeper(keeping=FoldPolicy(keep_ms=100, keep_bytes=1 << 20, lease_ms=10_000))
    while len(keeper.leased) < BUCKETS:
        keeper.step()
        world.now_ms += 100
    for _ in range(50):
        world.push(1)
        keeper.step()
    rows = len(truth(world.pushed[0])) + len(truth(world.pushed[1]))
    world.now_ms += 100
    keeper.step()
    assert counted(world.metrics.folded_rows) <= rows
    assert counted(world.metrics.trimmed_entries) == 49 * BUCKETS
    world.check()


class Believing:
    """A store whose answers let a keeper believe that it holds each bucket that it once got."""

    def __init__(self, store: MemoryStore) -> None:
        self._store, self._got = store, set[tuple[int, str]]()

    def claim(self, bucket: int, keeper: str, lease_ms: int) -> bool:
        if (bucket, keeper) in self._got:
            return True
        if taken := self._store.claim(bucket, keeper, lease_ms):
            self._got.add((bucket, keeper))
        return taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_two_keepers_that_both_think_they_hold_a_bucket_lose_nothing() -> None:
    world = World()
    believing = Believing(world.store)
    stalled = world.claimed(FoldPolicy(keep_ms=50, lease_ms=1000), "stalled", believing)
    lost = world.metrics.lost_leases
    world.push(5)
    stalled.step()
    world.now_ms += 2000  # stopped here for longer than its lease
    heir = world.claimed(name="heir")
    world.push(5)
    for _ in range(5):
        stalled.step()
        heir.step()
        world.push(1)
        world.check()
    assert stalled.leased == []
    assert heir.leased == [0, 1]
    assert counted(lost) == BUCKETS


class TrimmedMeanwhile(MemoryStore):
    """Before a keeper reads more of a log that it took over, another trims it; then a failover."""

    other: Callable[[], None] | None = None
    read = 0
    """Polls from entry 2 on: the first is that of the keeper's replica."""

    def poll(self, *arguments: Any) -> list[PollResult | Unreachable]:
        self.read += arguments[0] == {0: 2}
        if self.other is None or self.read < 2:
            return super().poll(*arguments)
        checkpoint, other, self.other = self.checkpoint(0), self.other, None
        other()
        found = super().poll(*arguments)
        self.revert(0, checkpoint)
        return found


def test_a_keeper_does_not_keep_a_log_that_another_trimmed_while_it_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.pserver.keeper.keeper.ENTRIES_A_POLL", 2)
    world = World()
    world.store = store = TrimmedMeanwhile(clock_ms=lambda: world.now_ms, nonces=world.nonce)
    store.create(SHAPE)
    world.push(8)
    slow = world.keeper(name="slow")

    def other() -> None:
        began_ms, world.now_ms = world.now_ms, world.now_ms + 2 * EAGER.lease_ms
        quick = world.keeper(name="quick")
        while world.log_versions(0) != [8]:
            quick.step()
            world.now_ms += 10
        world.now_ms = began_ms
        trimmed.append(True)

    trimmed: list[bool] = []
    store.other = other
    for _ in range(300):
        slow.step()
        world.now_ms += 10
    assert trimmed
    world.push(1)
    for _ in range(300):
        slow.step()
        world.check()
        world.now_ms += 10
    assert world.log_versions(0) == [9]


def test_keepers_that_start_together_share_the_buckets() -> None:
    shape = Shape("m", 64, WIDTH, "f", "s")
    dice = random.Random(3)
    store = MemoryStore(clock_ms=lambda: 0, nonces=lambda: dice.randbytes(8))
    store.create(shape)
    now = [0]
    both = [
        Keeper(
            store,
            shape,
            name=name,
            keeping=EAGER,
            now_ms=lambda: now[0],
            draw_nonce=lambda: dice.randbytes(8),
        )
        for name in ("one", "two")
    ]
    for _ in range(20):
        now[0] += 20
        for keeper in both:
            keeper.step()
    held_by = [keeper.leased for keeper in both]
    assert sorted(held_by[0] + held_by[1]) == list(range(64))
    assert min(map(len, held_by)) >= 16
    both[0].release()
    for _ in range(20):
        now[0] += 20
        both[1].step()
    assert both[1].leased == list(range(64))
