"""Publishes the status and the file of a model's rows to the workers.

After each poll the follower writes both to the model's mailbox. The rows are not copied: workers
map the file in which the follower changes them.

If the follower is killed, workers go on answering from its table, which grows stale. The next
follower fills a new table. Until that is complete it leaves the published status and file as they
were, except for its own error.
"""

import time
from dataclasses import replace

import msgspec

from headrace.pserver.rows.table import RowTable
from headrace.serving.replicas.freshness import NO_FRESHNESS, FreshnessSummary
from headrace.serving.replicas.status import LocalRows, ReplicaStatus
from headrace.serving.workers.mailbox import Mailbox
from headrace.serving.workers.shared_memory import SharedFiles

_SUMMARY_S = 1.0
"""Interval of the percentiles, which cost processor time."""
_LONGEST = 800
"""Characters of an error message. A mailbox has room for two messages in any language."""


class PublishedRows(msgspec.Struct, frozen=True, array_like=True):
    """Content of a model's mailbox."""

    status: ReplicaStatus
    freshness: FreshnessSummary
    failure: str
    """The error that prevents answers; empty if the rows can answer, or still load."""
    file: str
    """File of the rows; empty until they are complete."""
    capacity: int
    """Rows that fit into the file."""


_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(PublishedRows).decode


class RowPublisher:
    """Publishes one model."""

    def __init__(self, board: Mailbox, files: SharedFiles, table: RowTable) -> None:
        """`table` allocates its memory with `files`."""
        self._board, self._files, self._table = board, files, table
        self._summary, self._summary_due_s = NO_FRESHNESS, 0.0
        message = board.read()
        self._before = None if message is None else decode(message.content)
        files.keep(*self._kept())

    @property
    def complete(self) -> bool:
        """Whether workers can answer."""
        return self._before is not None and bool(self._before.file)

    def publish(self, rows: LocalRows) -> None:
        """Publish the status of the rows. Call it between polls, on the polling thread."""
        now = replace(rows.status, trouble=rows.status.trouble[:_LONGEST])
        if self._before is not None and self.complete and not now.complete:
            status = replace(self._before.status, trouble=now.trouble)
            published = msgspec.structs.replace(self._before, status=status)
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
