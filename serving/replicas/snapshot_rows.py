"""Serves the rows of a snapshot, without a parameter server and without updates.

A thread loads the buckets one by one and verifies their checksums. Other models answer meanwhile;
this one answers once all buckets are loaded. The manifest gives the version and the event times. A
damaged snapshot is never served. An unreachable one is retried.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from headrace.pserver.errors import StoreError
from headrace.pserver.rows.table import RowTable
from headrace.pserver.snapshots.manifest import Manifest
from headrace.pserver.snapshots.snapshot_errors import StorageFailed
from headrace.pserver.snapshots.storage import SnapshotStorage
from headrace.pserver.snapshots.verification import read_bucket
from headrace.runtime.background_thread import BackgroundThread
from headrace.serving.replicas.freshness import NO_FRESHNESS, Ages, FreshnessSummary
from headrace.serving.replicas.status import LocalRows, ReplicaStatus, TableRowSource

log = logging.getLogger(__name__)

_RETRY_S = 5.0
"""Pause after a failure of the storage. Loading is retried for as long as the server runs."""
_JOIN_S = 10.0


class SnapshotRows(BackgroundThread):
    """The rows of a snapshot, loaded by a thread between `start` and `stop`."""

    def __init__(
        self,
        storage: SnapshotStorage,
        manifest: Manifest,
        now_ms: Callable[[], int],
        table: RowTable | None = None,
        publish: Callable[[LocalRows], None] | None = None,
    ) -> None:
        """Serve the snapshot of `manifest`.

        table: where to load the rows; None: a new table. publish: called on the loading thread when
        loading has ended or failed.
        """
        super().__init__(self._run, "snapshot", _JOIN_S)
        self._storage, self._manifest, self._now_ms = storage, manifest, now_ms
        self._table = RowTable(manifest.width) if table is None else table
        self._publish = publish
        self.failure: StoreError | None = None
        """The error that prevents loading."""
        self.status = _status(manifest)

    def reading(self, since_s: float | None = None) -> TableRowSource:  # noqa: ARG002 (never waits)
        """Return the rows for a request: the whole table."""
        return TableRowSource(self._table)

    def freshness(self) -> FreshnessSummary:
        """Return an empty summary: nothing arrives in a snapshot."""
        return NO_FRESHNESS

    def load(self) -> None:
        """Load the missing buckets. Raises DamagedSnapshot, StorageFailed."""
        manifest = self._manifest
        self._table.reserve(manifest.rows - len(self._table))
        for each in manifest.files[self.status.copied :]:
            if self._ended.is_set():
                return
            for chunk in read_bucket(self._storage, manifest, each):
                self._table.put(chunk)
            copied = self.status.copied + 1
            self.status = replace(
                self.status,
                copied=copied,
                rows=len(self._table),
                complete=copied == manifest.buckets,
                caught_up=copied == manifest.buckets,
                polled_ms=self._now_ms(),
                trouble="",
            )
        log.info("loaded snapshot %s: %d rows", manifest.name, len(self._table))

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.load()
            except StoreError as error:
                log.error("cannot serve snapshot %s: %s", self._manifest.name, error)
                self.status = replace(self.status, trouble=str(error))
                self.failure = error
                self._publish_status()
                if not isinstance(error, StorageFailed):
                    return
                self._ended.wait(_RETRY_S)
            else:
                self.failure = None
                self._publish_status()
                return

    def _publish_status(self) -> None:
        if self._publish is not None:
            self._publish(self)


def _status(manifest: Manifest) -> ReplicaStatus:
    """Return the status of a snapshot before its first bucket is loaded."""
    appended = [each.append_ms for each in manifest.files]
    events = list(_event_times(manifest))
    return ReplicaStatus(
        buckets=manifest.buckets,
        version=sum(each.version for each in manifest.files),
        ages=Ages(max(appended) or None, min(appended) or None),
        newest_event_ms=max(events, default=0) or None,
        oldest_event_ms=min(events, default=0) or None,
        behind=False,
        snapshot=manifest.name,
    )


def _event_times(manifest: Manifest) -> Iterator[int]:
    """Yield the largest event time that each bucket learned, 0 if unknown."""
    for each in manifest.files:
        # exact from the log, or to the second from the rows if the log was trimmed
        yield each.event_ms or (1000 * each.last_seen_s if each.rows else 0)
