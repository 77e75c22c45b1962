"""Rows that a partial replica finds, beside those of replicas, through random histories."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.pserver.errors import Unreachable
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.expiry import Expiry
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.replica.partial_replica import FoundRows, PartialReplica
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.deltas import NEVER
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import LookResult, PollResult
from tests.pserver.laws.store_world import BUCKETS, World, answered, standing
from tests.pserver.rows.entries import WIDTH, Pusher, row_ids
from tests.pserver.rows.truth import Row, rows_of

SEEDS = 40
STEPS = 60


def all_ids() -> npt.NDArray[np.uint64]:
    """Every id that a Pusher uses, and one of each bucket that none uses."""
    return np.concatenate([row_ids(bucket, BUCKETS, range(10)) for bucket in range(BUCKETS)])


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
