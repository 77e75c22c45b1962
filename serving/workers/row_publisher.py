"""The follower's side: what it tells workers of a model's rows, and when.

After each poll the follower puts on the model's board how the rows stand and which file they are
in. Rows themselves are not copied: workers have the file mapped in which the follower changes them.

A follower that was killed has left a table, which workers go on answering from, staler and staler.
The next one fills a new table, and until that is complete leaves on the board what was there, but
for what troubles it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from headrace.serving.replicas import (
    FreshnessSummary,
    ReplicaStatus,
)

if TYPE_CHECKING:
    from headrace.pserver.rows import RowTable
    from headrace.serving.replicas import LocalRows
    from headrace.serving.workers.mailbox import Mailbox
    from headrace.serving.workers.shared_memory import SharedFiles

_SUMMARY_S = 1.0
"""Percentiles are not free, and nobody looks at them more often."""
_LONGEST = 800
"""Of what an operator is told, in characters: a board has room for two of them in any language."""


class PublishedRows(msgspec.Struct, frozen=True, array_like=True):
    """What a board says of a model."""

    standing: ReplicaStatus
    freshness: FreshnessSummary
    failure: str
    """Why there is nothing to answer from; empty as long as there is, or will be."""
    file: str
    """The rows; empty as long as they are not complete."""
    capacity: int
    """How many rows the file has room for."""


_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(PublishedRows).decode
NOTHING = FreshnessSummary(None, None, 0)


class RowPublisher:
    """Tells of one model."""

    def __init__(self, board: Mailbox, files: SharedFiles, table: RowTable) -> None:
        """`table` has its memory of `files`."""
        self._board, self._files, self._table = board, files, table
        self._summary, self._summary_due_s = NOTHING, 0.0
        message = board.read()
        self._before = None if message is None else decode(message.content)
        files.keep(*self._kept())

    @property
    def complete(self) -> bool:
        """Whether workers have something to answer from."""
        return self._before is not None and bool(self._before.file)

    def stood(self, rows: LocalRows) -> None:
        """Tell how the rows stand; to be called by the thread that changes them, between."""
        now = replace(rows.standing, trouble=rows.standing.trouble[:_LONGEST])
        if self._before is not None and self.complete and not now.complete:
            standing = replace(self._before.standing, trouble=now.trouble)
            published = msgspec.structs.replace(self._before, standing=standing)
        else:
            published = PublishedRows(
                now,
                self._fresh(rows),
                "" if rows.failure is None else str(rows.failure)[:_LONGEST],
                self._files.newest if now.complete else "",
                self._table.columns.ids.shape[0],
            )
        if published == self._before:
            return
        self._board.write(_encode(published))
        moved = self._before is None or published.file != self._before.file
        self._before = published
        if moved:
            self._files.keep(*self._kept())

    def _kept(self) -> list[str]:
        return [] if self._before is None else [self._before.file]

    def _fresh(self, rows: LocalRows) -> FreshnessSummary:
        now_s = time.monotonic()
        if now_s >= self._summary_due_s:
            self._summary, self._summary_due_s = rows.freshness(), now_s + _SUMMARY_S
        return self._summary
