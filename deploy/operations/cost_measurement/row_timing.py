"""Processor time of rows in pushes, logs and folds, with a real parameter server.

Two Valkey shards run on this machine for the measurement. A push has entries of many rows, or of
one row each: the first gives the cost of a row, the second that of an entry. The processor time of
the shards is that of their main threads, as they report it.
"""

from __future__ import annotations

import itertools
import secrets
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headrace.deploy.connections import open_store
from headrace.deploy.operations.cost_measurement.trial_model import START_MS
from headrace.ingest.runtime import steady_ms
from headrace.learner.kernels import PendingDeltas, view_of
from headrace.pserver import OffsetSpan, Push, Shape
from headrace.pserver.keeper import FoldPolicy, Keeper
from headrace.pserver.replica import Folded, Replica
from headrace.pserver.rows import EntryHeader, SourceReached, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from headrace.deploy.local.services import ValkeyCluster

    class InfoNode(Protocol):
        """A server that answers commands."""

        def call(self, *words: str) -> str: ...


BUCKETS = 64
_ROWS = 200_000
"""Rows of the model, changed again and again."""
_ENTRY_ROWS = 500
_ROUNDS = 7
_ASKED = 21


class RowTimes(NamedTuple):
    """Microseconds of processor time of a row, or of an entry of a log."""

    push: float
    """A learner takes out what a row gained, packs and sends it."""
    follow: float
    """A replica reads it from the log and adds it."""
    refresh: float
    """A learner computes its view of the row again."""
    store_push: float
    store_read: float


class FoldTimes(NamedTuple):
    """Microseconds of processor time of a row that a keeper writes, and the row's memory."""

    keep: float
    store: float
    stored_bytes: float


class ShardClock:
    """Processor time of the shards, less that of asking for it.

    A shard answers `INFO` in some 50 us, as long as reading several entries takes.
    """

    def __init__(self, nodes: Sequence[InfoNode]) -> None:
        self._nodes = nodes
        answers = [self.now_s() for _ in range(_ASKED)]
        self._asking_s = statistics.median(b - a for a, b in itertools.pairwise(answers))

    def now_s(self) -> float:
        """Return the processor seconds of all main threads since their start."""
        return sum(
            float(line.split(":")[1])
            for node in self._nodes
            for line in node.call("INFO", "cpu").splitlines()
            if line.startswith("used_cpu_") and "_main_thread" in line
        )

    def since_s(self, before_s: float) -> float:
        """Return the processor seconds since an answer of `now_s`; the answer itself is free."""
        return max(0.0, self.now_s() - before_s - self._asking_s)


class RowTrial:
    """A model in two shards, with a learner's pending deltas and a replica that follows."""

    def __init__(self, nodes: ValkeyCluster, width: int) -> None:
        self._nodes, self._offset = nodes, 0
        self._store = open_store(nodes.url, f"trial{width}")
        self._shape = Shape(f"trial{width}", BUCKETS, width, "trial", "")
        self._empty_bytes = self._memory()
        self._clock = ShardClock(nodes.nodes)
        self._store.create(self._shape)
        self._view, self._dice = view_of(width), np.random.default_rng(3)
        self._pending = PendingDeltas(self._view, self._shape)
        self._replica = Replica(self._store, self._shape)
        below = self._dice.integers(0, 1 << 58, (BUCKETS, _ROWS // BUCKETS), np.uint64)
        high = np.arange(BUCKETS, dtype=np.uint64)[:, None] << np.uint64(58)
        self._ids = below | high
        while not self._replica.complete:
            self._replica.poll()

    def close(self) -> None:
        """Drop the model."""
        self._store.drop()
        self._store.close()

    def rows(self) -> RowTimes:
        """Return the times of a row."""
        return self._times(_ENTRY_ROWS, BUCKETS * _ENTRY_ROWS)

    def entries(self) -> RowTimes:
        """Return the times of an entry of one row."""
        return self._times(1, BUCKETS)

    def _times(self, rows_an_entry: int, units: int) -> RowTimes:
        rounds = [self._round(rows_an_entry) for _ in range(_ROUNDS + 2)][2:]
        return RowTimes._make(
            1e6 / units * statistics.median(spent) for spent in zip(*rounds, strict=True)
        )

    def _round(self, rows_an_entry: int) -> RowTimes:
        ids = [np.sort(self._dice.choice(each, rows_an_entry, replace=False)) for each in self._ids]
        self._gain(np.concatenate(ids))
        push_s, store_push_s = self._timed(self._push)
        changes: list[Folded] = []

        def follow() -> None:
            while len(changes) < BUCKETS:
                changes.extend(each for each in self._replica.poll() if isinstance(each, Folded))

        follow_s, store_read_s = self._timed(follow)

        def refresh() -> None:
            for change in changes:
                self._pending.refresh(self._replica.table, change.deltas.ids, None)

        refresh_s, _ = self._timed(refresh)
        return RowTimes(push_s, follow_s, refresh_s, store_push_s, store_read_s)

    def _gain(self, ids: np.ndarray) -> None:
        """Let these rows of the view gain something, as an example does."""
        places = self._view.find_or_add(ids)
        gaining = self._pending.reserve()
        gaining.order[: ids.shape[0]] = places
        gaining.count[0] = ids.shape[0]
        gaining.shows[places] += 1
        gaining.since[places] = 1
        gaining.values[places] += 0.01

    def _push(self) -> None:
        start, self._offset = self._offset, self._offset + 1
        spans = (OffsetSpan("trial/0", start, self._offset),)
        reached = [SourceReached("trial/0", start, self._offset, START_MS)]
        pushes = []
        for bucket, deltas in self._pending.take(range(BUCKETS)).items():
            header = EntryHeader(
                self._shape.width, len(deltas.ids), START_MS, START_MS, list(reached)
            )
            by_id = deltas.chosen(np.argsort(deltas.ids))
            pushes.append(Push(bucket, spans, secrets.token_bytes(8), pack(header, by_id)))
        for answer in self._store.push(pushes):
            if isinstance(answer, Exception):
                raise answer

    def fold(self) -> FoldTimes:
        """Return the times of a keeper, which writes all rows; call it last."""
        for ids in np.split(self._ids, 8, axis=1) if self._ids.shape[1] % 8 == 0 else [self._ids]:
            self._gain(np.sort(ids.reshape(-1)))
            self._push()
        self._gain(self._ids[:, 0].copy())
        self._push()  # the last entry of a log is never folded
        keeper = self._keeper(FoldPolicy(keep_ms=1 << 40, keep_bytes=1 << 40))
        while len(keeper.held) < BUCKETS or not keeper.replica.complete or keeper.step():
            keeper.step()
        keeper.release()
        writing = self._keeper(FoldPolicy(keep_ms=0, keep_bytes=0))

        def write() -> None:
            quiet = 0
            while quiet < 3:
                quiet = 0 if writing.step() else quiet + 1

        keep_s, store_s = self._timed(write)
        writing.release()
        kept = self._memory() - self._empty_bytes
        return FoldTimes(1e6 * keep_s / _ROWS, 1e6 * store_s / _ROWS, kept / _ROWS)

    def _keeper(self, policy: FoldPolicy) -> Keeper:
        return Keeper(
            self._store,
            self._shape,
            name="trial",
            keeping=policy,
            now_ms=steady_ms,
            draw_nonce=lambda: secrets.token_bytes(8),
        )

    def _timed(self, step: Callable[[], None]) -> tuple[float, float]:
        """Return processor seconds of this process and of the shards."""
        before_s, began_s = self._clock.now_s(), time.process_time()
        step()
        spent_s = time.process_time() - began_s
        return spent_s, self._clock.since_s(before_s)

    def _memory(self) -> float:
        return sum(
            float(line.split(":")[1])
            for node in self._nodes.nodes
            for line in node.call("INFO", "memory").splitlines()
            if line.startswith("used_memory:")
        )
