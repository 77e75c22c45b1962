"""Takes a snapshot: bucket by bucket, from a replica, while all processes work on.

Each bucket is of another moment (`bucket_copy`). That is enough, because each has its own marks,
and a learner that starts from them gives every bucket what it lacks.

Only a few buckets are in memory at a time. The snapshot is visible once all of it is written.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.pserver.rows.deltas import NEVER
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.snapshots import manifest as manifests
from headrace.pserver.snapshots.bucket_copy import Halted, copy_bucket
from headrace.pserver.snapshots.bucket_file import pack
from headrace.pserver.snapshots.manifest import BucketFile, Manifest
from headrace.pserver.snapshots.snapshot_errors import StorageFailed
from headrace.pserver.store import Shape, Store

if TYPE_CHECKING:
    from headrace.pserver.snapshots.storage import SnapshotStorage


class SnapshotProgress(NamedTuple):
    """The progress of an operation on a snapshot."""

    done: int
    """Finished buckets."""
    of: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """Settings of taking a snapshot."""

    parallel: int = 2
    """Buckets at a time, and in memory: while one waits for its node, another is packed."""
    patience_ms: int = 60_000
    """Longest time without an answer from a bucket's node; a failover needs less."""


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """Facts that are not in a store."""

    headrace: str
    """The version of headrace that writes the snapshot."""
    sub_hashes: int
    """Of each bucket."""
    as_of_ms: int | None = None
    """For a rebuilt model: see Manifest."""


def write_snapshot(
    store: Store,
    storage: SnapshotStorage,
    facts: SnapshotFacts,
    *,
    now_ms: Callable[[], int],
    token: str,
    stop: threading.Event,
    tell: Callable[[SnapshotProgress], None],
    writing: SnapshotSettings | None = None,
) -> Manifest | None:
    """Write a snapshot of the store's model; return its manifest, or None if `stop` was set before.

    `token`: four random hex digits, a part of its name. Raises MissingModel, MissingBucket,
    StorageFailed, Unreachable if the model's shape cannot be read, and StoreError if a bucket
    cannot be copied for too long. After an error there is no snapshot either.
    """
    writing = writing or SnapshotSettings()
    shape, begun_ms = store.shape(), now_ms()
    at_ms = begun_ms if facts.as_of_ms is None else facts.as_of_ms
    name = manifests.name_of(shape.model, at_ms, token)
    copying = _Copying(store, storage, shape, name, writing, now_ms, stop)
    storage.begin(name)
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
            storage.publish(name, manifests.encode(manifest))
            return manifest
    except Halted:
        pass
    except BaseException:
        with suppress(StorageFailed):  # the first error says more
            storage.abandon(name)
        raise
    storage.abandon(name)
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


class _Copying:
    """Copies buckets into files, from several threads."""

    def __init__(
        self,
        store: Store,
        storage: SnapshotStorage,
        shape: Shape,
        name: str,
        writing: SnapshotSettings,
        now_ms: Callable[[], int],
        stop: threading.Event,
    ) -> None:
        self._store, self._storage, self._shape, self._name = store, storage, shape, name
        self._writing, self._now_ms, self._stop = writing, now_ms, stop
        self._halted = threading.Event()

    def halt(self) -> None:
        """Make all calls of `write` end soon."""
        self._halted.set()

    def write(self, bucket: int) -> BucketFile:
        """Write the file of a bucket. Raises the kinds of StoreError."""
        replica, answer = copy_bucket(
            self._store,
            self._shape,
            bucket,
            now_ms=self._now_ms,
            patience_ms=self._writing.patience_ms,
            halted=lambda: self._halted.is_set() or self._stop.is_set(),
        )
        position = replica.position(bucket)
        rows = replica.table.everything().existing()
        del replica
        blob = pack(rows)
        file = f"rows-{bucket:05d}.parquet"
        self._storage.write(self._name, file, blob)
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


def _first_seen_s(rows: FoldedRows) -> int:
    seen = rows.first_seen[rows.first_seen != NEVER]
    return int(seen.min()) if seen.shape[0] else 0
