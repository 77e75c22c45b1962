"""Taking a snapshot: bucket by bucket, from a replica, while everybody works on.

Marks and version of a bucket are read in one call. Then its copy follows the log to exactly that
version, whatever comes after: the rows are those that learned just what lies before the marks. Each
bucket has its own moment; that is enough, since each has its own marks, and a learner that starts
from them gives every bucket what it lacks.

No more is held than a few buckets at a time. Nothing is visible until all of it is written.
"""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.pserver.errors import StoreError, Unreachable
from headrace.pserver.replica import Copied, Replica, Stale
from headrace.pserver.rows import NEVER
from headrace.pserver.snapshots import manifest as manifests
from headrace.pserver.snapshots.bucket_file import pack
from headrace.pserver.snapshots.manifest import BucketFile, Manifest
from headrace.pserver.snapshots.snapshot_errors import StorageFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.pserver.rows import FoldedRows
    from headrace.pserver.snapshots.storage import SnapshotStorage
    from headrace.pserver.store import BucketAnswer, Shape, Store

_ENTRIES_A_POLL = 64
_PAUSE_S = 0.05
"""Before a node that did not answer is asked again."""


class SnapshotProgress(NamedTuple):
    """How far a long piece of work has come."""

    done: int
    """Buckets."""
    of: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """How a snapshot is taken."""

    parallel: int = 2
    """Buckets at a time: while one waits for its node another is packed. So many are in memory."""
    patience_ms: int = 60_000
    """Without an answer from a bucket's node: a replica that takes over needs less."""


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """What a store does not say of itself."""

    headrace: str
    """The version that writes."""
    sub_hashes: int
    """Of each bucket."""
    as_of_ms: int | None = None
    """For a model that was rebuilt: see Manifest."""


def write_snapshot(
    store: Store,
    shelf: SnapshotStorage,
    facts: SnapshotFacts,
    *,
    now_ms: Callable[[], int],
    token: str,
    stop: threading.Event,
    tell: Callable[[SnapshotProgress], None],
    writing: SnapshotSettings | None = None,
) -> Manifest | None:
    """Write a snapshot of the store's model; return its manifest, or None if told to stop before.

    `token`: four hex digits drawn by chance, part of its name. Raises MissingModel, MissingBucket,
    StorageFailed, Unreachable if the model's shape cannot be read, StoreError if a bucket cannot
    be copied for too long; then, too, there is no snapshot.
    """
    writing = writing or SnapshotSettings()
    shape, begun_ms = store.shape(), now_ms()
    at_ms = begun_ms if facts.as_of_ms is None else facts.as_of_ms
    name = manifests.name_of(shape.model, at_ms, token)
    copying = _Copying(store, shelf, shape, name, writing, now_ms, stop)
    shelf.begin(name)
    try:
        files = _write_all(copying, shape.buckets, writing.parallel, tell)
        manifest = Manifest(
            name=name,
            model=shape.model,
            spec=shape.spec,
            fingerprint=shape.fingerprint,
            width=shape.width,
            buckets=shape.buckets,
            sub_hashes=facts.sub_hashes,
            begun_ms=begun_ms,
            ended_ms=now_ms(),
            headrace=facts.headrace,
            files=files,
            as_of_ms=facts.as_of_ms,
        )
        if not stop.is_set():
            shelf.publish(name, manifests.encode(manifest))
            return manifest
    except _Halted:
        pass
    except BaseException:
        with suppress(StorageFailed):  # the first failure says more
            shelf.abandon(name)
        raise
    shelf.abandon(name)
    return None


def _write_all(
    copying: _Copying, buckets: int, parallel: int, tell: Callable[[SnapshotProgress], None]
) -> list[BucketFile]:
    files: list[BucketFile] = []
    with ThreadPoolExecutor(parallel, thread_name_prefix="snapshot") as pool:
        futures = [pool.submit(copying.write, bucket) for bucket in range(buckets)]
        try:
            for future in as_completed(futures):
                files.append(future.result())
                rows = sum(each.rows for each in files)
                tell(
                    SnapshotProgress(
                        len(files), buckets, rows, sum(each.size_bytes for each in files)
                    )
                )
        except BaseException:
            copying.halt()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return sorted(files, key=lambda each: each.bucket)


class _Halted(Exception):
    """Told to stop."""


class _Copying:
    """Copies buckets into files; from several threads."""

    def __init__(
        self,
        store: Store,
        shelf: SnapshotStorage,
        shape: Shape,
        name: str,
        writing: SnapshotSettings,
        now_ms: Callable[[], int],
        stop: threading.Event,
    ) -> None:
        self._store, self._shelf, self._shape, self._name = store, shelf, shape, name
        self._writing, self._now_ms, self._stop = writing, now_ms, stop
        self._halted = threading.Event()

    def halt(self) -> None:
        """Make all `write` end soon."""
        self._halted.set()

    def write(self, bucket: int) -> BucketFile:
        """Write the file of a bucket. Raises StoreError's kinds."""
        replica, answer = self._reach(bucket)
        position = replica.position(bucket)
        rows = replica.table.everything().existing()
        del replica
        blob = pack(rows)
        file = f"rows-{bucket:05d}.parquet"
        self._shelf.write(self._name, file, blob)
        return BucketFile(
            bucket=bucket,
            version=answer.version,
            nonce=answer.nonce.hex(),
            marks=dict(answer.marks),
            rows=rows.ids.shape[0],
            event_ms=position.event_ms,
            append_ms=position.append_ms,
            first_seen_s=_first_seen_s(rows),
            last_seen_s=int(rows.last_seen.max(initial=0)),
            file=file,
            size_bytes=len(blob),
            sha256=hashlib.sha256(blob).hexdigest(),
            checksum=rows.checksum(),
        )

    def _reach(self, bucket: int) -> tuple[Replica, BucketAnswer]:
        """Return a copy of a bucket and its marks as of the same version."""
        replica = Replica(self._store, self._shape, buckets=[bucket])
        goal: BucketAnswer | None = None
        moved_ms = self._now_ms()
        while True:
            if self._halted.is_set() or self._stop.is_set():
                raise _Halted
            limit = _ENTRIES_A_POLL
            if goal is not None:
                limit = min(limit, goal.version - replica.position(bucket).version)
            changes = replica.poll(limit)
            error = next((each.error for each in changes if isinstance(each, Stale)), None)
            if error is None and replica.complete:
                if goal is None or not changes or any(isinstance(e, Copied) for e in changes):
                    # a goal that is not approached is of a history that is no more
                    [asked] = self._store.marks([bucket])
                    goal, error = (None, asked) if isinstance(asked, Unreachable) else (asked, None)
                if goal is not None:
                    position = replica.position(bucket)
                    if (position.version, position.nonce) == (goal.version, goal.nonce):
                        return replica, goal
                    if position.version >= goal.version:
                        goal = None
            if error is None:
                moved_ms = self._now_ms()
            elif self._now_ms() - moved_ms > self._writing.patience_ms:
                raise StoreError(
                    f"bucket {bucket} could not be copied for {self._writing.patience_ms / 1000:g} "
                    f"s: {error}"
                ) from error
            else:
                self._halted.wait(_PAUSE_S)


def _first_seen_s(rows: FoldedRows) -> int:
    seen = rows.first_seen[rows.first_seen != NEVER]
    return int(seen.min()) if seen.shape[0] else 0
