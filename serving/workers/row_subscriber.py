"""Reads the rows of a model that another process keeps up to date.

A request checks the mailbox, which takes less than a microsecond if nothing changed, and reads the
rows in place while the follower changes them. No lock is needed, for the same reason as between
threads (see `models.predictor`). A table in a file never shrinks or moves, and slots never point
beyond it. Half of the slots are free, so every search ends. A half-updated row is less than one
step away from the row before and after. So is a row that a killed follower left.

If the mailbox names a new file, the next request maps it. The old file is unmapped when its last
request is done, because numpy arrays keep a reference to their memory. A thread checks the mailbox
as well, so that an idle worker does not keep an old table forever.
"""

import logging
import threading
from pathlib import Path

from headrace.pserver.errors import StoreError
from headrace.pserver.rows.columns import columns_in
from headrace.pserver.rows.table import RowTable
from headrace.runtime.background_thread import BackgroundThread
from headrace.serving.replicas.freshness import NO_FRESHNESS, FreshnessSummary
from headrace.serving.replicas.status import ReplicaStatus, RowSource, TableRowSource
from headrace.serving.workers.mailbox import Mailbox
from headrace.serving.workers.row_publisher import PublishedRows, decode
from headrace.serving.workers.shared_memory import read_file

log = logging.getLogger(__name__)

_LOOK_S = 0.5
_JOIN_S = 10.0
_TRIES = 10
"""Attempts of a read. One fails only if the follower publishes two tables within microseconds."""


class SharedRows(BackgroundThread):
    """The rows of a model that another process keeps up to date."""

    def __init__(self, board: Mailbox, folder: Path, width: int, buckets: int) -> None:
        """folder: has the files that `board` names."""
        super().__init__(self._look_at_times, "board", _JOIN_S)
        self._board, self._folder, self._width = board, folder, width
        self._marks: tuple[bytes, bytes] | None = None
        self._published = PublishedRows(ReplicaStatus(buckets), NO_FRESHNESS, "", "", 0)
        self._table = RowTable(width)
        self._looking = threading.Lock()

    @property
    def status(self) -> ReplicaStatus:
        """The last published status."""
        self._look()
        return self._published.status

    @property
    def failure(self) -> StoreError | None:
        """The error that prevents answers; None if the rows can answer, or still load."""
        self._look()
        failure = self._published.failure
        return StoreError(failure) if failure else None

    def reading(self, since_s: float | None = None) -> RowSource:  # noqa: ARG002 (never waits)
        """Return the rows for one request."""
        self._look()
        return TableRowSource(self._table)

    def freshness(self) -> FreshnessSummary:
        """Return the last published percentiles of freshness."""
        self._look()
        return self._published.freshness

    def _look_at_times(self) -> None:
        """Check the mailbox without requests."""
        while not self._ended.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        """Take a new message. Never waits: while another thread looks, the old one stays valid."""
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
                    continue  # a newer file has replaced it
                self._marks = marks
                return
            log.warning("expected the published file of rows, got none; using the previous one")
        finally:
            self._looking.release()

    def _take(self, published: PublishedRows) -> None:
        if published.file and published.file != self._published.file:
            memory = read_file(self._folder / published.file)
            columns = columns_in(memory, published.capacity, self._width)
            self._table = RowTable(self._width, columns=columns)
        self._published = published
