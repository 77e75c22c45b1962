"""Verifies that a snapshot is, byte for byte and row for row, as it was written.

Every file is read once, and everything is checked: its size, its digest, whether Parquet can read
it, the number of rows, whether their ids ascend and belong to the bucket, and whether the rows have
the checksum of the replica that they were taken from. `read_bucket` returns the rows of one bucket
after checking the bytes.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.pserver.errors import CorruptEntry
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.snapshots.bucket_file import unpack
from headrace.pserver.snapshots.manifest import BucketFile, Manifest
from headrace.pserver.snapshots.snapshot_errors import DamagedSnapshot
from headrace.pserver.snapshots.writer import SnapshotProgress
from headrace.runtime.counted_nouns import counted

if TYPE_CHECKING:
    from headrace.pserver.snapshots.storage import SnapshotStorage

_PARALLEL = 2
"""Files at a time: while one is fetched, another is checked."""


def verify(
    storage: SnapshotStorage,
    manifest: Manifest,
    *,
    stop: threading.Event,
    tell: Callable[[SnapshotProgress], None],
) -> list[str]:
    """Return a line for every problem, in the order of buckets; an empty list without problems.

    Ends early, with the problems so far, when `stop` is set. Raises StorageFailed.
    """

    def check(each: BucketFile) -> list[str]:
        if stop.is_set():
            return []
        blob = storage.read(manifest.name, each.file)
        return [f"{each.file}: {text}" for text in problems_of(blob, each, manifest)]

    problems: list[str] = []
    rows = size_bytes = 0
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="verify") as pool:
        for done, (each, found) in enumerate(
            zip(manifest.files, pool.map(check, manifest.files), strict=True), 1
        ):
            problems += found
            rows += each.rows
            size_bytes += each.size_bytes
            tell(SnapshotProgress(done, manifest.buckets, rows, size_bytes))
    return problems


def problems_of(blob: bytes | None, expected: BucketFile, manifest: Manifest) -> list[str]:
    """Return the problems of a bucket's file; `blob` is None if there is no file."""
    if blob is None:
        return ["missing"]
    if wrong := wrong_bytes(blob, expected):
        return [wrong]
    try:
        chunks = list(unpack(blob, manifest.width))
    except CorruptEntry as error:
        return [str(error)]
    problems = []
    count = sum(chunk.ids.shape[0] for chunk in chunks)
    if count != expected.rows:
        problems.append(f"expected {counted(expected.rows, 'row')}, got {count}")
    if not chunks:
        return problems
    rows = FoldedRows._make(np.concatenate(column) for column in zip(*chunks, strict=True))
    problems += _wrong_ids(rows.ids, expected, manifest)
    checksum = rows.checksum()
    if checksum != expected.checksum:
        problems.append(f"expected rows with the checksum {expected.checksum}, got {checksum}")
    return problems


def _wrong_ids(
    ids: npt.NDArray[np.uint64], expected: BucketFile, manifest: Manifest
) -> Iterator[str]:
    if (ids[1:] <= ids[:-1]).any():
        yield "expected ids in ascending order, each once"
    strays = ids[manifest.shape.bucket_of(ids) != expected.bucket]
    if strays.shape[0]:
        yield (
            f"expected ids of bucket {expected.bucket}, got {strays.shape[0]} others, such as "
            f"{int(strays[0])}"
        )


def wrong_bytes(blob: bytes, expected: BucketFile) -> str:
    """Return the difference between the bytes and those written; empty without one."""
    if len(blob) != expected.size_bytes:
        return f"expected {expected.size_bytes} bytes, got {len(blob)}"
    digest = hashlib.sha256(blob).hexdigest()
    if digest != expected.sha256:
        return f"expected sha256 {expected.sha256}, got {digest}"
    return ""


def read_bucket(
    storage: SnapshotStorage, manifest: Manifest, file: BucketFile, *, trusting: bool = False
) -> list[FoldedRows]:
    """Return the rows of a bucket's file in chunks, ids ascending; the arrays are read-only.

    `trusting`: do not compare its bytes with their digest. Raises DamagedSnapshot, StorageFailed.
    """
    blob = storage.read(manifest.name, file.file)
    wrong = "missing" if blob is None else "" if trusting else wrong_bytes(blob, file)
    if blob is None or wrong:
        raise DamagedSnapshot(manifest.name, [f"{file.file}: {wrong}"])
    try:
        chunks = list(unpack(blob, manifest.width))
    except CorruptEntry as error:
        raise DamagedSnapshot(manifest.name, [f"{file.file}: {error}"]) from error
    # a file that was made by hand may have the right digest: its strays would be lost silently
    ids = np.concatenate([chunk.ids for chunk in chunks]) if chunks else np.zeros(0, np.uint64)
    if problems := [f"{file.file}: {each}" for each in _wrong_ids(ids, file, manifest)]:
        raise DamagedSnapshot(manifest.name, problems)
    return chunks
