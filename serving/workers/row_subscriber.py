"""A worker's side: a model's rows as another process keeps them.

A request looks at the board, which costs less than a microsecond where nothing is new, and reads
the rows where they are; the follower changes them meanwhile. That needs no lock, for the reason
that holds between threads (see `models.predictor`): a table in a file never shrinks or moves, slots
never point beyond it, and half of them are free, so that a search ends whatever it reads. A row
that is half changed is less than one step away from the row before and after; so is the one that a
follower left when it was killed.

When the board names another file the next request has it mapped. The one before goes when the last
request that began with it is done: numpy's arrays hold on to what they lie in. So that a worker
that is asked nothing does not hold on to a table for ever, a thread looks, too.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from headrace.pserver import StoreError
from headrace.pserver.rows import RowTable, columns_in
from headrace.serving.replicas import Ages, ReplicaStatus, TableRowSource
from headrace.serving.workers.row_publisher import NOTHING, PublishedRows, decode
from headrace.serving.workers.shared_memory import read_file

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.serving.replicas import FreshnessSummary, RowSource
    from headrace.serving.workers.mailbox import Mailbox

log = logging.getLogger(__name__)

_LOOK_S = 0.5
_JOIN_S = 10.0
_TRIES = 10
"""Each is undone only by a follower that publishes two tables within its microseconds."""


class SharedRows:
    """A model's rows, which another process keeps."""

    def __init__(self, board: Mailbox, folder: Path, width: int, buckets: int) -> None:
        """`folder` has the files that `board` names."""
        self._board, self._folder, self._width = board, folder, width
        self._marks: tuple[bytes, bytes] | None = None
        self._published = PublishedRows(_nothing(buckets), NOTHING, "", "", 0)
        self._table = RowTable(width)
        self._looking = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_at_times, name="board", daemon=True)

    @property
    def standing(self) -> ReplicaStatus:
        """How the rows stood when they were last told of."""
        self._look()
        return self._published.standing

    @property
    def failure(self) -> StoreError | None:
        """Why there is nothing to answer from; None as long as there is, or will be."""
        self._look()
        failure = self._published.failure
        return StoreError(failure) if failure else None

    def reading(self, since_s: float | None = None) -> RowSource:  # noqa: ARG002 (nothing is waited for)
        """Return what a request reads from."""
        self._look()
        return TableRowSource(self._table)

    def freshness(self) -> FreshnessSummary:
        """Return the percentiles of freshness, at most a moment old."""
        self._look()
        return self._published.freshness

    def start(self) -> None:
        """Begin to look at times when nobody asks."""
        self._thread.start()

    def stop(self) -> None:
        """End that."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    def _look_at_times(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        """Take what is new on the board. Never waits: who finds another looking has what was."""
        if self._board.marks() == self._marks or not self._looking.acquire(blocking=False):
            return
        try:
            for _ in range(_TRIES):
                marks = self._board.marks()
                message = self._board.read()
                if message is None:
                    return
                try:
                    self._take(decode(message.content))
                except FileNotFoundError:
                    continue  # another has taken its place
                self._marks = marks
                return
            log.warning("the rows that the board names are not there; answering from those before")
        finally:
            self._looking.release()

    def _take(self, published: PublishedRows) -> None:
        if published.file and published.file != self._published.file:
            memory = read_file(self._folder / published.file)
            columns = columns_in(memory, published.capacity, self._width)
            self._table = RowTable(self._width, columns=columns)
        self._published = published


def _nothing(buckets: int) -> ReplicaStatus:
    return ReplicaStatus(
        complete=False,
        buckets=buckets,
        copied=0,
        unreachable=0,
        version=0,
        rows=0,
        ages=Ages(None, None),
        newest_event_ms=None,
        oldest_event_ms=None,
        behind=True,
        caught_up=False,
        polled_ms=0,
        copies=0,
    )
