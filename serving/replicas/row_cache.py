"""Some of a model's rows: those that were asked for lately, kept up with the logs like all of them.

It follows the logs' tails (pserver.replica.partial_replica), and adds to the rows that are here
what each entry says of them, in the log's order: a row that is here is, bit for bit, what a full
replica has at the same version. A row that is not is looked up. That a row does not exist is worth
keeping as well: it is here as the row that never gained anything.

When there is no more room, the rows that nobody has read since the last time go, the longest here
first, until a quarter is free (a clock with one hand that sweeps at once). The others move to a new
table, which takes the old one's place: who reads the old one meanwhile sees one moment. What every
forward pass reads (`always`) never goes.

Where a bucket's history broke, its rows stay visible until its tail is begun anew, and go then.

One thread follows and fetches; others may read the table, and mark what they have read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headrace.pserver.replica import Copied, Folded, HistoryReset, PartialReplica, Stale
from headrace.pserver.rows import Deletions, RowTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from headrace.pserver import Shape, Store, StoreError
    from headrace.pserver.replica import Change, EntryApplied, LogPosition
    from headrace.pserver.rows import FoldedRows

    Ids = npt.NDArray[np.uint64]

_FREED_SHARE = 0.25
"""Of the room, when rows have to go: moving the others is worth it."""
_ROWS_A_MOVE = 1 << 14
"""Moved in one go: numpy holds the interpreter meanwhile, and requests wait for it."""
LEAST_ROWS = 1_000
"""A request may name as many; with less room they would push each other out."""


class CachedRows(NamedTuple):
    """The rows that are here."""

    table: RowTable
    read: npt.NDArray[np.bool_]
    """(most,) by place: whether the row was read since rows had to go. Anybody may set it."""


class RowCache:
    """At most so many rows, and what every forward pass reads; one thread's but for reading."""

    def __init__(self, store: Store, shape: Shape, always: Ids, most_rows: int) -> None:
        """always: (n,) ids of rows that never go, each once."""
        self.shape = shape
        self._most = max(most_rows, LEAST_ROWS) + always.shape[0]
        self._always = always
        self._lookup = PartialReplica(store, shape, self._watch)
        self._anew = set(range(shape.buckets))  # whose tail is not begun (again) yet
        self._lacking = always
        self._was_complete = False
        self._changes: list[Change] = []
        self.held = self._empty()
        self.failed: Mapping[int, StoreError] = {}
        """Buckets that did not answer when last asked."""

    @property
    def table(self) -> RowTable:
        """The rows that are here, to be read only."""
        return self.held.table

    @property
    def complete(self) -> bool:
        """Whether rows of every bucket could once be asked for, and what is always read was here.

        From then on there is something to answer from, whatever happens.
        """
        self._was_complete |= not self._anew and not self._lacking.shape[0]
        return self._was_complete

    @property
    def buckets(self) -> list[int]:
        """All of them."""
        return list(range(self.shape.buckets))

    @property
    def tail_bytes(self) -> int:
        """Memory of what the logs still hold."""
        return self._lookup.tail_bytes

    def copied(self, bucket: int) -> bool:
        """Whether rows of a bucket can be asked for."""
        return bucket not in self._anew

    def position(self, bucket: int) -> LogPosition:
        """Return how far a bucket was followed. Raises KeyError before its tail was begun."""
        return self._lookup.position(bucket)

    def poll(self, limit: int) -> list[Change]:
        """Take in up to `limit` new entries a bucket; return what changed, in order.

        Raises what the store raises beyond Unreachable.
        """
        stale = [each for each in self._lookup.poll(limit) if isinstance(each, Stale)]
        self.failed = {each.bucket: each.error for each in stale}
        self._settle()
        if self._lacking.shape[0] and not self._anew:
            self.fetch(self._lacking)
        changes, self._changes = self._changes, []
        return [*changes, *stale]

    def fetch(self, ids: Ids) -> None:
        """Look up the rows that are not here, each id once: as many as there is room for.

        What does not answer is named in `failed`. Raises what the store raises beyond Unreachable.
        """
        wanted = ids[self.table.find(ids) < 0][: self._most // 2]
        found = self._lookup.rows(wanted)
        self.failed = {**self.failed, **found.failed}
        self._settle()
        if found.failed:
            there = ~np.isin(self.shape.bucket_of(wanted), list(found.failed))
            rows = found.rows.chosen(there)
        else:
            rows = found.rows
        if len(self.table) + rows.ids.shape[0] > self._most:
            self._make_room(rows.ids.shape[0])
        self._add(rows)
        if self._lacking.shape[0]:
            self._lacking = self._lacking[self.table.find(self._lacking) < 0]

    def compact(self) -> None:
        """Nothing: rows go when there is no more room."""

    def _watch(self, news: EntryApplied | HistoryReset) -> None:
        if isinstance(news, HistoryReset):
            self._anew.add(news.bucket)
            return
        bucket, version, header, content = news
        if bucket in self._anew:
            return  # its rows are of another history, and go when all of this one was read
        here = self.table.find(content.ids) >= 0
        if isinstance(content, Deletions):
            self.table.remove(content.chosen(here))
        else:
            self.table.add(content if here.all() else content.chosen(here))
            self._changes.append(Folded(bucket, version, header, content, 0))

    def _add(self, rows: FoldedRows) -> None:
        """Add rows that are not here; who finds one finds all of it."""
        columns, first = self.table.columns, len(self.table)
        for name, column in rows._asdict().items():
            getattr(columns, name)[first : first + rows.ids.shape[0]] = column
        self.table.find_or_add(rows.ids)  # they are found where they were written: the next places

    def _settle(self) -> None:
        """Let the rows go of buckets whose tails were begun anew."""
        begun = [bucket for bucket in self._anew if self._begun(bucket)]
        if not begun:
            return
        self._anew.difference_update(begun)
        self._changes += [Copied(bucket) for bucket in begun]
        gone = np.isin(self.shape.bucket_of(self.table.ids), begun)
        if gone.any():
            ids = self.table.ids[gone]
            self._move(np.flatnonzero(~gone))
            self._lacking = np.union1d(self._lacking, ids[np.isin(ids, self._always)])

    def _begun(self, bucket: int) -> bool:
        try:
            self._lookup.position(bucket)
        except KeyError:
            return False
        return True

    def _make_room(self, more: int) -> None:
        count = len(self.table)
        read = self.held.read[:count].copy()
        stays = np.zeros(count, np.bool_)
        always = self.table.find(self._always)
        stays[always[always >= 0]] = True
        left = max(int(self._most * (1 - _FREED_SHARE)) - more, 0)
        # the newest last: in the order they came, as `ids` has them
        for some in (read & ~stays, ~read & ~stays):
            room = left - int(np.count_nonzero(stays))
            newest = np.flatnonzero(some)
            stays[newest[max(newest.shape[0] - max(room, 0), 0) :]] = True
        self._move(np.flatnonzero(stays))

    def _move(self, places: npt.NDArray[np.int64]) -> None:
        """Let the rows at these places be all there are, in a new table."""
        new = self._empty()
        for start in range(0, places.shape[0], _ROWS_A_MOVE):
            new.table.put(self.table.take(places[start : start + _ROWS_A_MOVE]))
        self.held = new

    def _empty(self) -> CachedRows:
        table = RowTable(self.shape.width)
        table.reserve(self._most)
        return CachedRows(table, np.zeros(self._most, np.bool_))
