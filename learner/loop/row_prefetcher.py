"""Prefetches the rows that a batch needs, and evicts the least recently used.

A learner that holds only some rows needs every row of a batch in its view before it learns the
batch. It pulls the missing ones in one round trip to each shard. The rows that statistics name
depend on the counters that earlier examples of the batch raise, so not all of them are known
beforehand. Those that the present counters name are pulled as well. If the kernel meets an example
with another one, it stops before that example, the row is pulled, and the kernel continues. So a
batch reads and writes what it would with all rows in memory, and the model is the same bit for bit.

While a push is awaited nothing is pulled: the push's own entry would return as if another learner
had sent it. A batch that needs a pull (or may, for its statistics) waits for the answer, and for
shards that do not answer. If a shard fails to answer within a batch, what was learned since the
last push is dropped and read again, as when a batch is quarantined. No mark has moved, so exactly
once holds.

Without room, the least recently used rows are evicted until a quarter is free. Three kinds stay:
rows with unacknowledged deltas, rows of the batch at hand, and rows that every example reads. If
these exceed the bound, the excess is counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples
from headrace.ingest.features.encoder import Encoded
from headrace.learner.errors import NotPulled
from headrace.learner.kernels.pending_deltas import PendingColumns, PendingDeltas
from headrace.learner.loop.cached_replica import CachedReplica
from headrace.learner.loop.pushes import Pushes
from headrace.pserver.replica.replica import Change
from headrace.pserver.rows.table import RowTable, find
from headrace.runtime.kernels.numba_kernels import kernel

Ids = npt.NDArray[np.uint64]

_FREED_SHARE = 0.25
"""Share of the room that an eviction frees: it must be worth moving the other rows."""
_WORTH_SHARE = 1 / 16
"""Share of the rows: if fewer can be evicted, none are."""
_AHEAD = 256
"""Examples whose statistics are pulled together with a missing one."""


_ROWS_AN_EXAMPLE = 128
"""Rows of the bound for each example of a window; most examples share rows."""


@kernel
def _use(slots, row_ids, ids, used, batch, missing):  # type: ignore[no-untyped-def]
    """Note that a batch uses these rows; write the ids of missing rows.

    Returns the number of rows present, each counted once, and of ids written, which may repeat.
    """
    here = lacking = 0
    for i in range(ids.shape[0]):
        place = find(slots, row_ids, ids[i])
        if place < 0:
            missing[lacking] = ids[i]
            lacking += 1
        elif used[place] != batch:
            used[place] = batch
            here += 1
    return here, lacking


def _ahead(examples: Examples, begin: int) -> tuple[Encoded, npt.NDArray[np.int64]]:
    """Return the features of some examples from `begin` on, and their times of display."""
    features, end = examples.features, min(begin + _AHEAD, len(examples))
    bags = (features.bag_offsets.shape[0] - 1) // len(examples)
    some = Encoded(
        features.ids[begin:end],
        features.bag_ids,
        features.bag_offsets[begin * bags : end * bags + 1],
        features.numbers[begin:end],
    )
    return some, examples.shown_ms[begin:end]


@dataclass(slots=True)
class PrefetchUsage:
    """Running totals, for metrics."""

    hits: int = 0
    pulled: int = 0
    dropped: int = 0
    stops: int = 0
    """Times that learning paused within a batch to pull rows of statistics."""
    passed: int = 0
    """Times that more rows were needed than the bound allows."""


class AllRows:
    """The rows of a learner that holds all of them: nothing to prefetch."""

    window_examples = 1 << 30
    """Examples whose rows are in memory together."""

    def prepare(self, examples: Examples, now_ms: int) -> bool:  # noqa: ARG002
        """Return True: every row is here."""
        return True


class RowPrefetcher:
    """Holds the rows that batches need in a view, and few others."""

    def __init__(
        self,
        rows: CachedReplica,
        view: RowTable,
        pending: PendingDeltas,
        pushes: Pushes,
        follow: Callable[[Sequence[Change]], None],
        retry_interval_ms: int,
    ) -> None:
        """`follow` receives the changes of entries that came with a pull."""
        self._rows, self._view, self._pending, self._pushes = rows, view, pending, pushes
        self._follow, self._retry_interval_ms = follow, retry_interval_ms
        self._retry_at_ms = 0
        self._used = np.zeros(0, np.uint32)  # (capacity,) by place: the last batch that used it
        self._batch = 0
        self._lacked = False  # whether the last batch missed rows
        self.usage = PrefetchUsage()
        rows.required.pull_with(self)

    @property
    def gaining(self) -> PendingColumns:
        """The columns of what is pending."""
        return self._pending.reserve()

    @property
    def window_examples(self) -> int:
        """Examples whose rows may be in memory together: few, because all of them stay."""
        return max(self._rows.most_rows // _ROWS_AN_EXAMPLE, 1)

    @property
    def tail_bytes(self) -> int:
        """Memory of what the logs still hold."""
        return self._rows.tail_bytes

    def prepare(self, examples: Examples, now_ms: int) -> bool:
        """Pull the rows that the batch is known to need; return False if it has to wait.

        Raises what the store raises beyond Unreachable.
        """
        assert len(self._view) == len(self._rows.table), "a row of the view was never pulled"
        required, features, hits = self._rows.required, examples.features, self.usage.hits
        if now_ms < self._retry_at_ms:
            return False
        if self._pushes.awaited and (required.statistics or self._lacked):
            return False
        self._batch = max((self._batch + 1) & 0xFFFFFFFF, 1)
        if required.rare or required.histories:
            ids = required.of_features(features, learning=True)
        else:
            ids = np.concatenate([features.ids.reshape(-1), features.bag_ids])
        had = self._have(ids)
        if had and required.statistics:
            had = self._have(required.of_statistics(self._view, features, examples.shown_ms))
        self._lacked = not had
        if not had:
            self.usage.hits = hits
            if not self._pushes.awaited:
                self._retry_at_ms = now_ms + self._retry_interval_ms
        return had

    def pull_statistics(self, ids: Ids, examples: Examples, begin: int) -> None:
        """Pull these rows, of the statistics of example `begin` and of what it already read, and
        those that the next examples may need.

        Raises NotPulled.
        """
        self.usage.stops += 1
        ahead, shown_ms = _ahead(examples, begin)
        more = self._rows.required.of_statistics(self._view, ahead, shown_ms)
        if not self._have(np.concatenate([ids, more])):
            raise NotPulled(f"expected rows of {ids.shape[0]} statistics, got no answer")

    def _have(self, ids: Ids) -> bool:
        """Pull missing rows; return whether all of these are present; ids may repeat."""
        view = self._view
        self._fit()
        missing = np.empty(ids.shape[0], np.uint64)
        columns = view.columns
        batch = np.uint32(self._batch)
        here, lacking = _use(columns.slots, columns.ids, ids, self._used, batch, missing)
        self.usage.hits += int(here)
        if not lacking:
            return True
        if self._pushes.awaited:
            return False
        wanted = np.unique(missing[:lacking])
        self._make_room(wanted.shape[0])
        self._rows.pull(wanted)
        pulled = wanted[self._rows.table.find(wanted) >= 0]
        self._pending.refresh(self._rows.table, pulled, None)
        self._fit()
        self._used[view.find(pulled)] = self._batch
        self._follow(self._rows.changes())
        self.usage.pulled += pulled.shape[0]
        return bool(pulled.shape[0] == wanted.shape[0])

    def _fit(self) -> None:
        more = self._view.capacity - self._used.shape[0]
        if more > 0:
            self._used = np.concatenate([self._used, np.zeros(more, np.uint32)])

    def _make_room(self, more: int) -> None:
        count, most = len(self._view), self._rows.most_rows
        if count + more <= most:
            return
        may_go = self._used[:count] != self._batch
        may_go &= ~self._pending.touched()
        for ids in (self._rows.required.always, self._pushes.flying_ids()):
            places = self._view.find(ids)
            may_go[places[places >= 0]] = False
        excess = count + more - int(most * (1 - _FREED_SHARE))
        going = np.flatnonzero(may_go)
        if going.shape[0] > excess:
            oldest = np.argpartition(self._used[going], excess)[:excess]
            going = going[oldest]
        if going.shape[0] >= max(count * _WORTH_SHARE, 1):
            self._drop(going)
        if len(self._view) + more > most:
            self.usage.passed += 1

    def _drop(self, places: npt.NDArray[np.int64]) -> None:
        view, count = self._view, len(self._view)
        self._rows.drop(self._rows.table.find(view.ids[places]))
        stays = np.ones(count, np.bool_)
        stays[places] = False
        view.clear(places)
        moved = self._pending.compact(stays)
        used = np.zeros(view.capacity, np.uint32)
        kept = np.flatnonzero(moved >= 0)
        used[moved[kept]] = self._used[kept]
        self._used = used
        self.usage.dropped += places.shape[0]
