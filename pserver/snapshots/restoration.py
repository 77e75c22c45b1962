"""Filling the buckets that a store lacks from a snapshot; what Kafka still has supplies the rest.

Just the missing buckets are filled: one that a shard lost, or all of them where the store is empty.
The others are ahead, and stay. Each bucket brings its own marks, so a learner that starts at the
lowest gives every bucket what it lacks, and nothing twice.

A model may get several times the buckets, a power of two, and another name. A bucket's rows are
then split by the high bits of their ids, and its marks go to every part: each part has learned from
just what the whole had learned from.

A larger model may begin with a snapshot too (`ShapeChange`): with some rows, and marks of its own.

Resumable at any line: a bucket is there when all of it is, and the next restore fills those that
are still missing, from whichever snapshot it is given.
"""

from __future__ import annotations

import itertools
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headrace.pserver.errors import MissingModel
from headrace.pserver.snapshots.snapshot_errors import DoesNotFit
from headrace.pserver.snapshots.verification import read_bucket
from headrace.pserver.snapshots.writer import SnapshotProgress

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from headrace.pserver.rows import FoldedRows
    from headrace.pserver.snapshots.manifest import Manifest
    from headrace.pserver.snapshots.storage import SnapshotStorage
    from headrace.pserver.store import Shape, Store

MOST_BUCKETS = 1 << 16
_PARALLEL = 2
"""Files at a time: while one is unpacked another is sent. So many are in memory."""
_ROWS_A_CHUNK = 16_384
"""Sent in one go: a few MB, so that neither side holds its breath for long."""


class RestoreResult(NamedTuple):
    """What a restore has done."""

    buckets: tuple[int, ...]
    """That were missing and are there now."""
    rows: int
    complete: bool
    """Whether nothing is missing; False if it was told to stop before."""


class ShapeChange(NamedTuple):
    """What of a snapshot is not taken as it is, for a model that only begins with it."""

    kept: Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.bool_]]
    """Which rows are, of these ids; shape (n,)."""
    marks: Mapping[str, int]
    """Of all buckets, in place of those that the snapshot has."""


def check_buckets(snapshot: int, wanted: int) -> None:
    """Return if a snapshot of so many buckets can become a model of `wanted`. Raises DoesNotFit."""
    if wanted & (wanted - 1) or not snapshot <= wanted <= MOST_BUCKETS:
        raise DoesNotFit(
            f"expected a power of two of buckets, at least the snapshot's {snapshot} and at most "
            f"{MOST_BUCKETS}, found {wanted}: rows can be split, but marks of different buckets "
            "cannot be joined"
        )


def restore(
    store: Store,
    shelf: SnapshotStorage,
    manifest: Manifest,
    shape: Shape,
    *,
    trusting: bool = False,
    change: ShapeChange | None = None,
    stop: threading.Event,
    tell: Callable[[SnapshotProgress], None],
) -> RestoreResult:
    """Fill the buckets of `shape` that are missing in the store, and make the model whole.

    `trusting`: do not compare the bytes of a file with their digest. `change`: None where the model
    goes on as the snapshot has it. Raises ModelExists if the
    store has the model with another shape, DoesNotFit, DamagedSnapshot, BucketExists if somebody
    else fills the same bucket, StorageFailed, Unreachable.
    """
    check_buckets(manifest.buckets, shape.buckets)
    if shape.width != manifest.width:
        raise DoesNotFit(f"expected rows of {shape.width} floats, found {manifest.width}")
    store.begin(shape)
    missing = store.missing()
    factor = shape.buckets // manifest.buckets
    wanted = {
        source: list(parts)
        for source, parts in itertools.groupby(missing, lambda bucket: bucket // factor)
    }
    filling = _Filling(store, shelf, manifest, shape, trusting, change)
    filled: list[int] = []
    rows = size_bytes = 0
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="restore") as pool:
        waiting = iter(wanted.items())
        under_way = {pool.submit(filling.fill, *each): each for each in _some(waiting)}
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
                    under_way[pool.submit(filling.fill, *each)] = each
    complete = len(filled) == len(missing) and not stop.is_set()
    if complete:
        store.finish()
    return RestoreResult(tuple(sorted(filled)), rows, complete)


def fill_with_nothing(store: Store, shape: Shape | None) -> list[int]:
    """Fill the missing buckets with no rows and no marks; return them.

    For who has no snapshot: learners begin at offset 0 for these buckets, and stop, naming the gap,
    if Kafka no longer holds all examples. `shape`: as the model was made, where the store has lost
    that too. Raises MissingModel without it then, ModelExists, Unreachable.
    """
    if shape is not None:
        store.begin(shape)
    missing = store.missing()
    for bucket in missing:
        store.load(bucket, 0, {}, ())
    store.finish()
    return missing


def whole_shape(store: Store) -> Shape | None:
    """Return the shape of the store's model, None if it is not there or half made."""
    try:
        return store.shape()
    except MissingModel:
        return None


def _some(waiting: Iterator[tuple[int, list[int]]]) -> list[tuple[int, list[int]]]:
    return list(itertools.islice(waiting, _PARALLEL))


class _Filling:
    """Loads the parts of a snapshot's buckets; from several threads."""

    def __init__(
        self,
        store: Store,
        shelf: SnapshotStorage,
        manifest: Manifest,
        shape: Shape,
        trusting: bool,
        change: ShapeChange | None,
    ) -> None:
        self._store, self._shelf, self._manifest, self._shape = store, shelf, manifest, shape
        self._trusting, self._change = trusting, change

    def fill(self, source: int, parts: Sequence[int]) -> int:
        """Load these buckets from the snapshot's bucket `source`; return how many rows."""
        file = self._manifest.files[source]
        chunks = read_bucket(self._shelf, self._manifest, file, trusting=self._trusting)
        marks = file.marks if self._change is None else self._change.marks
        rows = 0
        for bucket in parts:
            own = [part for chunk in chunks if (part := self._part(chunk, bucket)).ids.shape[0]]
            self._store.load(bucket, file.version, marks, _in_pieces(own))
            rows += sum(part.ids.shape[0] for part in own)
        return rows

    def _part(self, chunk: FoldedRows, bucket: int) -> FoldedRows:
        """Return the rows of one bucket; ids ascend, so they are neighbours."""
        buckets = self._shape.bucket_of(chunk.ids)
        first, end = np.searchsorted(buckets, [bucket, bucket + 1])
        own = chunk.chosen(slice(int(first), int(end)))
        return own if self._change is None else own.chosen(self._change.kept(own.ids))


def _in_pieces(chunks: Sequence[FoldedRows]) -> Iterator[FoldedRows]:
    for chunk in chunks:
        for start in range(0, chunk.ids.shape[0], _ROWS_A_CHUNK):
            yield chunk.chosen(slice(start, start + _ROWS_A_CHUNK))
