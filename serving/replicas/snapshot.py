"""The rows of a snapshot, served as they are: no parameter server is asked, and nothing follows.

They are read in a thread, bucket by bucket, each compared with what was written: other models
answer meanwhile, and this one when all of it is here. What it has learned, and when, is said by the
manifest. A snapshot that is damaged stays unanswered; one that cannot be reached is tried again.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.pserver import StoreError
from headrace.pserver.rows import RowTable
from headrace.pserver.snapshots import StorageFailed, read_bucket
from headrace.serving.replicas.freshness import Ages, FreshnessSummary
from headrace.serving.replicas.status import ReplicaStatus, TableRowSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.pserver.snapshots import Manifest, SnapshotStorage
    from headrace.serving.replicas.status import LocalRows

log = logging.getLogger(__name__)

_RETRY_S = 5.0
"""After the storage did not answer: loading is tried for as long as the server runs."""
_JOIN_S = 10.0


class SnapshotRows:
    """A snapshot's rows, read in a thread between `start` and `stop`."""

    def __init__(
        self,
        shelf: SnapshotStorage,
        manifest: Manifest,
        now_ms: Callable[[], int],
        table: RowTable | None = None,
        stood: Callable[[LocalRows], None] | None = None,
    ) -> None:
        """Serve the snapshot that `manifest` says, in `table` (a new one, if None).

        `stood` is called with this, by the thread that loads, when loading ended or failed.
        """
        self._shelf, self._manifest, self._now_ms = shelf, manifest, now_ms
        self._table = RowTable(manifest.width) if table is None else table
        self._stood = stood
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapshot", daemon=True)
        self.failure: StoreError | None = None
        """Why it cannot be loaded."""
        self.standing = _standing(manifest)

    def reading(self, since_s: float | None = None) -> TableRowSource:  # noqa: ARG002 (nothing is waited for)
        """Return what a request reads from: all rows are here."""
        return TableRowSource(self._table)

    def freshness(self) -> FreshnessSummary:
        """Return that nothing arrives here."""
        return FreshnessSummary(None, None, 0)

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, if it is still at it."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    def load(self) -> None:
        """Load what is not here yet. Raises DamagedSnapshot, StorageFailed."""
        manifest = self._manifest
        self._table.reserve(manifest.rows - len(self._table))
        for each in manifest.files[self.standing.copied :]:
            if self._ended.is_set():
                return
            for chunk in read_bucket(self._shelf, manifest, each):
                self._table.put(chunk)
            copied = self.standing.copied + 1
            self.standing = replace(
                self.standing,
                copied=copied,
                copies=copied,
                rows=len(self._table),
                complete=copied == manifest.buckets,
                caught_up=copied == manifest.buckets,
                polled_ms=self._now_ms(),
                trouble="",
            )
        log.info("snapshot %s is here: %d rows", manifest.name, len(self._table))

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.load()
            except StoreError as error:
                log.error("snapshot %s is not served: %s", self._manifest.name, error)
                self.standing = replace(self.standing, trouble=str(error))
                self.failure = error
                self._tell_stood()
                if not isinstance(error, StorageFailed):
                    return
                self._ended.wait(_RETRY_S)
            else:
                self.failure = None
                self._tell_stood()
                return

    def _tell_stood(self) -> None:
        if self._stood is not None:
            self._stood(self)


def _standing(manifest: Manifest) -> ReplicaStatus:
    """Return how a snapshot stands of which nothing was loaded yet."""
    appended = [each.append_ms for each in manifest.files]
    events = list(_event_times(manifest))
    return ReplicaStatus(
        complete=False,
        buckets=manifest.buckets,
        copied=0,
        unreachable=0,
        version=sum(each.version for each in manifest.files),
        rows=0,
        ages=Ages(max(appended) or None, min(appended) or None),
        newest_event_ms=max(events, default=0) or None,
        oldest_event_ms=min(events, default=0) or None,
        behind=False,
        caught_up=False,
        polled_ms=0,
        copies=0,
        snapshot=manifest.name,
    )


def _event_times(manifest: Manifest) -> Iterator[int]:
    """Yield the greatest event time that each bucket has learned from, 0 if none is known."""
    for each in manifest.files:
        # the log says it exactly, the rows to the second; but the log may have been trimmed
        yield each.event_ms or (1000 * each.last_seen_s if each.rows else 0)
