"""Fills missing buckets from a snapshot; learners supply the rest from Kafka.

`learner/recovery/restore.py` decides what is restored, and under which name.

Only missing buckets are filled: those that a shard lost, or all of them in an empty store. The
other buckets are ahead, and stay. Each bucket brings its own marks. A learner that starts at the
lowest mark therefore gives every bucket what it lacks, and nothing twice.

A model may get several times the buckets, a power of two, and another name. The rows of a bucket
are then split by the high bits of their ids, and its marks go to every part, because each part has
learned from the same offsets as the bucket.

A larger model may begin with a snapshot too (`ShapeChange`): with some rows, and marks of its own.

A restore can be interrupted anywhere. A bucket exists once all of it is loaded, and the next
restore fills the missing ones from the snapshot that it gets.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.pserver.errors import MissingModel
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.snapshots.manifest import Manifest
from headrace.pserver.snapshots.snapshot_errors import DoesNotFit
from headrace.pserver.snapshots.verification import read_bucket
from headrace.pserver.snapshots.writer import SnapshotProgress
from headrace.pserver.store import Shape, Store

if TYPE_CHECKING:
    from headrace.pserver.snapshots.storage import SnapshotStorage

MOST_BUCKETS = 1 << 16
_PARALLEL = 2
"""Files at a time, and in memory: while one is unpacked, another is sent."""
_ROWS_A_CHUNK = 16_384
"""Rows sent at a time: a few MB, so that neither side is busy for long."""


class RestoreResult(NamedTuple):
    """The result of a restore."""

    buckets: tuple[int, ...]
    """Buckets that were missing and exist now."""
    rows: int
    complete: bool
    """Whether no bucket is missing; False if the restore was stopped before."""


class ShapeChange(NamedTuple):
    """The parts of a snapshot that change, for a model that only begins with it."""

    kept: Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.bool_]]
    """Selects the ids to keep; shape (n,)."""
    marks: Mapping[str, int]
    """Marks of all buckets, in place of those in the snapshot."""


def check_buckets(snapshot: int, wanted: int) -> None:
    """Raise DoesNotFit unless a snapshot of these buckets can become a model of `wanted`."""
    if wanted & (wanted - 1) or not snapshot <= wanted <= MOST_BUCKETS:
        raise DoesNotFit(
            f"expected a power of two of buckets, at least the snapshot's {snapshot} and at most "
            f"{MOST_BUCKETS}, got {wanted}: rows can be split, but marks of different buckets "
            "cannot be joined"
        )


def restore(
    store: Store,
    storage: SnapshotStorage,
    manifest: Manifest,
    shape: Shape,
    *,
    trusting: bool = False,
    change: ShapeChange | None = None,
    stop: threading.Event,
    tell: Callable[[SnapshotProgress], None],
) -> RestoreResult:
    """Fill the missing buckets of `shape`, and mark the model as finished.

    `trusting`: do not compare the bytes of a file with their digest. `change`: None for a model
    that continues as in the snapshot. Raises ModelExists if the store's model has another shape,
    DoesNotFit, DamagedSnapshot, BucketExists if another process fills the same bucket,
    StorageFailed, Unreachable.
    """
    check_buckets(manifest.buckets, shape.buckets)
    if shape.width != manifest.width:
        raise DoesNotFit(f"expected rows of {shape.width} floats, got {manifest.width}")
    store.begin(shape)
    missing = store.missing()
    factor = shape.buckets // manifest.buckets
    wanted = {
        source: list(parts)
        for source, parts in itertools.groupby(missing, lambda bucket: bucket // factor)
    }

    def fill(source: int, parts: Sequence[int]) -> int:
        file = manifest.files[source]
        chunks = read_bucket(storage, manifest, file, trusting=trusting)
        marks = file.marks if change is None else change.marks
        loaded = 0
        for bucket in parts:
            own = [rows_of(chunk, shape, bucket) for chunk in chunks]
            if change is not None:
                own = [part.chosen(change.kept(part.ids)) for part in own]
            store.load(bucket, file.version, marks, in_pieces(own))
            loaded += sum(part.ids.shape[0] for part in own)
        return loaded

    filled: list[int] = []
    rows = size_bytes = 0
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="restore") as pool:
        waiting = iter(wanted.items())
        under_way = {
            pool.submit(fill, *each): each for each in itertools.islice(waiting, _PARALLEL)
        }
        while under_way:
            done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                source, parts = under_way.pop(future)
                rows += future.result()
                size_bytes += manifest.files[source].size_bytes
                filled += parts
                tell(SnapshotProgress(len(filled), len(missing), rows, size_bytes))
            if not stop.is_set():
                for each in itertools.islice(waiting, len(done)):
                    under_way[pool.submit(fill, *each)] = each
    complete = len(filled) == len(missing) and not stop.is_set()
    if complete:
        store.finish()
    return RestoreResult(tuple(sorted(filled)), rows, complete)


def fill_with_nothing(store: Store, shape: Shape | None) -> list[int]:
    """Fill the missing buckets with no rows and no marks; return them.

    For stores without a snapshot. Learners begin at offset 0 for these buckets. If Kafka no longer
    holds all examples, they stop with an error that names the gap. `shape`: that of the model's
    creation, if the store has lost it, too. Raises MissingModel if it is lost and not given,
    ModelExists, Unreachable.
    """
    if shape is not None:
        store.begin(shape)
    missing = store.missing()
    for bucket in missing:
        store.load(bucket, 0, {}, ())
    store.finish()
    return missing


def whole_shape(store: Store) -> Shape | None:
    """Return the shape of the store's model; None if it is missing or unfinished."""
    try:
        return store.shape()
    except MissingModel:
        return None


def rows_of(chunk: FoldedRows, shape: Shape, bucket: int) -> FoldedRows:
    """Return the rows of one bucket; ids ascend, so they are contiguous."""
    first, end = np.searchsorted(shape.bucket_of(chunk.ids), [bucket, bucket + 1])
    return chunk.chosen(slice(int(first), int(end)))


def in_pieces(chunks: Sequence[FoldedRows]) -> Iterator[FoldedRows]:
    """Yield the rows of chunks in pieces that a store takes at once."""
    for chunk in chunks:
        for start in range(0, chunk.ids.shape[0], _ROWS_A_CHUNK):
            yield chunk.chosen(slice(start, start + _ROWS_A_CHUNK))
