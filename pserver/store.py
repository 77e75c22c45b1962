"""The protocol between processes and the parameter server, which every store implements.

A model is split into buckets by the high bits of its ids. Everything of a bucket is on one node and
changes in one atomic call. A bucket has

    version   the number of entries its log ever got
    nonce     drawn by the process that pushed the entry `version`; another nonce is another history
    marks     for every source, the first offset not yet applied: the fence
    log       the entries after those that a keeper trimmed: row deltas, or ids of deleted rows
    rows      each with the version up to which the log is folded into it
    lease     of the keeper that folds and trims, and its count of folds

A push names for every source the offsets it covers. It is applied if and only if every mark equals
the start of its span (`push_fence`); then marks, version, nonce and log change together. An example
is therefore applied to a bucket once, however often and by whichever process its push is sent.

A keeper numbers its folds. The store counts them beside the lease and accepts only the next one,
and it accepts a trim only with the right count. The version alone is not enough. A failover may
lose folds and keep the entries that they came from, and a delayed fold may arrive after a later
one. In both cases rows would lack entries that the log then loses. The count alone is not enough
either. A failover may lose the folds of the keeper before, and bring back entries that the present
keeper never read. A trim therefore also names the version from which its keeper knows the log.

A limit on the rows of a model belongs to its name, not to the model: an operator may set it before
the model exists, and it outlives `drop`. Keepers keep to it by deletions, like all entries of the
log, so it changes nothing in the protocol.

A bucket that its shard lost is filled by `load`, with rows and marks of a snapshot or with none. It
gets a new nonce, so processes that had the old history copy the bucket again.

All calls take many buckets at once, because a store sends one pipeline a node. A missing answer is
a value (`Unreachable`) in the list, since the answers of other buckets arrived. The same laws run
on every implementation: tests/pserver/laws/store_laws.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from headrace.pserver.errors import LostLease, Unreachable

if TYPE_CHECKING:
    from headrace.pserver.rows.row_codec import FoldedRows, StoredRows

OWN_FIELDS = frozenset(
    (
        *("version", "nonce", "previous", "trimmed", "appended_bytes", "trimmed_bytes"),
        *("keeper", "lease_ms", "folds", "loading"),
    )
)
"""The fields of a bucket's marks that are not sources: no source may have such a name."""


ENTRIES_A_POLL = 64
"""Entries of one bucket that a reader of its log usually asks for at a time."""
_MOST_BUCKETS = 1 << 16


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of a model that are fixed at its creation."""

    model: str
    buckets: int
    """A power of two, at most 2^16. The high bits of an id are its bucket."""
    width: int
    """Floats a row."""
    fingerprint: str
    """Of the model spec. A process whose spec has another fingerprint refuses to start."""
    spec: str
    """The model spec itself, opaque here: for servers without the file, and to name differences."""

    def __post_init__(self) -> None:
        count = self.buckets
        if not 1 <= count <= _MOST_BUCKETS or count & (count - 1):
            # kernels index by the high bits of an id, and would write outside their arrays
            raise ValueError(
                f"model {self.model!r}: expected a power of two up to {_MOST_BUCKETS} of buckets, "
                f"got {count}"
            )

    def bucket_of(self, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the bucket of each id; shape (n,)."""
        if self.buckets == 1:
            return (ids >> 63 >> 1).astype("int64")
        return (ids >> (64 - (self.buckets.bit_length() - 1))).astype("int64")


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """Offsets [start, stop) of one source; or the end of a mark, from `start` back to 0."""

    source: str
    start: int
    stop: int

    def __post_init__(self) -> None:
        forward = 0 <= self.start <= self.stop or 0 == self.stop < self.start
        if self.source in OWN_FIELDS or not forward:
            raise ValueError(f"expected offsets of a source, start <= stop or stop 0, got {self}")


@dataclass(frozen=True, slots=True)
class Push:
    """One entry for one bucket, with the offsets it covers."""

    bucket: int
    spans: tuple[OffsetSpan, ...]
    nonce: bytes
    """8 random bytes, new for every push; a retry repeats them."""
    blob: bytes
    """`deltas.pack(...)`"""

    def __post_init__(self) -> None:
        sources = {span.source for span in self.spans}
        moves = any(span.stop != span.start for span in self.spans)
        if len(sources) != len(self.spans) or not moves:
            # marks are the only fence: a push that moves none would be applied at every retry
            raise ValueError(
                f"expected spans of different sources, one not empty, got {self.spans}"
            )


@dataclass(frozen=True, slots=True)
class BucketAnswer:
    """The state of a bucket, after a push or when its marks are read."""

    bucket: int
    version: int
    nonce: bytes
    previous: bytes
    """Nonce of the entry before `version`. With it, a learner folds its own push without reading
    it."""
    marks: Mapping[str, int]
    """All sources in an answer to `marks`, those of the push in an answer to it. Absent means 0.
    """
    log_bytes: int
    """Bytes in the log, which the keepers have not yet trimmed."""

    def covers(self, spans: Sequence[OffsetSpan]) -> bool:
        """Whether exactly these offsets are applied, by the push or by an earlier try of it."""
        return all(self.marks.get(span.source, 0) == span.stop for span in spans)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a bucket's log."""

    version: int
    nonce: bytes
    previous: bytes
    """Nonce of the entry before: a chain that a rewritten history breaks."""
    blob: bytes


@dataclass(frozen=True, slots=True)
class PollResult:
    """A bucket's head, read first, and the entries after a given version."""

    bucket: int
    version: int
    nonce: bytes
    trimmed: int
    """Greatest version that is no longer in the log; 0 if the log was never trimmed."""
    entries: tuple[Entry, ...]
    """Ascending. May begin later than asked (trimmed), and end before or after `version`."""


@dataclass(frozen=True, slots=True)
class LookResult:
    """Single rows, and the entries that they lack."""

    rows: StoredRows
    """As folded."""
    polled: PollResult
    """The log of the same history: its entries beyond the version of a row are all that the row
    lacks. `trimmed` is not later than the rows; head and entries are not earlier."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows of one bucket as of `version`, to be written by the keeper that holds the lease."""

    bucket: int
    keeper: str
    number: int
    """1 for the first fold under this lease, then 2, ..."""
    version: int
    nonce: bytes
    """Of the entry `version`. Refused unless the log, or the head, still has this entry."""
    rows: FoldedRows
    gone: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    """Ids of rows that no longer exist at `version`, to be removed; shape (n,)."""


@dataclass(frozen=True, slots=True)
class Delete:
    """An entry of deletions for one bucket, by the keeper with its lease; marks do not move."""

    bucket: int
    keeper: str
    folds: int
    """Acknowledged folds under this lease."""
    version: int
    nonce: bytes
    """The nonce of the entry `version`: the state from which the deletions were decided."""
    entry_nonce: bytes
    """8 random bytes, of the new entry."""
    blob: bytes
    """`deltas.pack(..., Deletions(...))`"""


@dataclass(frozen=True, slots=True)
class Trim:
    """Remove the entries up to and including `through`, all folded by `version`."""

    bucket: int
    keeper: str
    folds: int
    """Acknowledged folds under this lease."""
    version: int
    nonce: bytes
    through: int
    trimmed: int
    """The version trimmed when the keeper read the log, or by its own last trim. Refused if the
    store has trimmed less: a failover brought back entries whose rows this keeper never wrote."""

    def __post_init__(self) -> None:
        if self.through > self.version:
            raise ValueError(f"expected to trim folded entries only, got {self}")


class Store(Protocol):
    """One model's buckets. Methods raise the kinds of StoreError; see pserver.errors."""

    def create(self, shape: Shape) -> None:
        """Create the model: version 0 and a nonce in every bucket.

        A repetition with an equal shape changes nothing, or completes an interrupted call. A bucket
        that existed and was lost is not created again. Raises ModelExists if there is a model with
        another shape, MissingBucket, BucketExists while a load of a bucket is unfinished,
        Unreachable.
        """

    def shape(self) -> Shape:
        """Return the shape given to `create`. Raises MissingModel, Unreachable."""

    def begin(self, shape: Shape) -> None:
        """Create the model without its buckets, or continue with one that lacks some.

        For `load`. A new model stays unfinished, and `shape` raises, until `finish`. Raises
        ModelExists if there is a model with another shape, Unreachable.
        """

    def missing(self) -> list[int]:
        """Return the missing buckets, ascending; the model may be unfinished.

        Raises MissingModel, Unreachable.
        """

    def load(
        self, bucket: int, version: int, marks: Mapping[str, int], chunks: Iterable[FoldedRows]
    ) -> None:
        """Fill a missing bucket with these rows, all folded up to `version`, and these marks.

        Its log is empty and its nonce new. Leftovers of an interrupted load are removed first. The
        bucket is missing until this call ends. Raises BucketExists if the bucket exists or another
        load of it began, MissingModel, Unreachable.
        """

    def finish(self) -> None:
        """Mark the model as finished. Raises MissingBucket if a bucket is missing, Unreachable."""

    def drop(self) -> None:
        """Remove the model, if it exists; a repetition completes an interrupted call. Raises
        Unreachable.
        """

    def row_limit(self) -> int:
        """Return the most rows that the model may have; 0: no limit. The model need not exist.

        Raises Unreachable.
        """

    def limit_rows(self, most_rows: int) -> None:
        """Set the most rows that the model may have; 0 removes the limit. Raises Unreachable."""

    def marks(self, buckets: Sequence[int]) -> list[BucketAnswer | Unreachable]:
        """Return the state of each bucket, in the order asked. Raises MissingBucket."""

    def push(self, pushes: Sequence[Push]) -> list[BucketAnswer | Unreachable]:
        """Apply each push at most once; return the state of its bucket. Raises MissingBucket."""

    def poll(self, after: Mapping[int, int], limit: int) -> list[PollResult | Unreachable]:
        """Return heads and up to `limit` entries after the version named for each bucket.

        In the order of `after`. Raises MissingBucket.
        """

    def rows(self, bucket: int) -> Iterator[StoredRows]:
        """Yield all folded rows of a bucket in chunks, the first of which may be empty.

        A chunk is read when it is asked for, not before: a copy reads the log in between.
        A chunk with less `trimmed` than the log had when it was read comes from a failover that
        lost folds. It may lack rows whose entries were not read. Raises Unreachable.
        """

    def look(
        self, wanted: Mapping[int, npt.NDArray[np.uint64]], after: Mapping[int, int], limit: int
    ) -> list[LookResult | Unreachable]:
        """Return folded rows by id and the result of `poll`, as of one moment for each bucket.

        In the order of `wanted`; ids without a folded row are left out. Raises MissingBucket.
        """

    def claim(self, bucket: int, keeper: str, lease_ms: int) -> bool:
        """Take or renew the lease of a bucket; False while another keeper holds it.

        Taking a lease sets the count of folds to 0, renewing it does not. `keeper` names one
        holding of a bucket: a keeper that has lost count of its folds takes a new name. The lease
        runs on the store's clock. Raises MissingBucket, Unreachable.
        """

    def release(self, bucket: int, keeper: str) -> None:
        """Release the lease if it is this keeper's. Raises Unreachable."""

    def fold(self, folds: Sequence[Fold]) -> list[LostLease | Unreachable | None]:
        """Write rows, and remove those that are gone. None in the list for each applied fold.

        LostLease if the lease has ended or is another keeper's, if the named entry no longer
        exists, or if this is not the next fold. Raises MissingBucket.
        """

    def trim(self, trims: Sequence[Trim]) -> list[LostLease | Unreachable | None]:
        """Remove entries; `Trim.folds` must be the count. Answers and raises like `fold`.

        LostLease also if the log has trimmed entries again.
        """

    def delete(self, deletes: Sequence[Delete]) -> list[LostLease | Unreachable | None]:
        """Append entries of deletions; fenced like `trim`. Answers and raises like `fold`."""

    def close(self) -> None:
        """Close connections."""
