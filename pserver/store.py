"""What every store of a model promises: the protocol between processes and the parameter server.

A model is split into buckets by the high bits of its ids. Everything of a bucket lives on one node
and changes in one atomic call. A bucket has

    version   how many entries its log ever got
    nonce     drawn by whoever pushed the entry `version`; another nonce is another history
    marks     for every source, the first offset not yet applied: the fence
    log       the entries after those that a keeper trimmed: what rows gained, or which rows go
    rows      each with the version up to which the log is folded into it
    lease     of the keeper that folds and trims, and how often it has folded

A push names for every source the offsets it covers. It is applied if and only if every mark equals
the start of its span; then marks, version, nonce and log change together. So an example is applied
to a bucket once, however often its push is sent, by whomever (DESIGN 5).

A keeper numbers its folds. The store counts them beside the lease and takes only the next one, and
a trim only from who knows the count. The version alone would not do: a failover may lose folds and
keep the entries they came from, and a fold that lingered in the network may arrive after a later
one; either way rows would lack entries that the log then loses. Nor would the count: a failover may
lose the folds of the keeper before, and bring back entries that this one never saw. So a trim also
names from where on its keeper knows the log.

A bucket whose shard lost it is filled again by `load`: rows and marks of a snapshot, or none, under
a nonce of its own, so that whoever knew the old history copies it anew.

All calls take many buckets at once, for a store sends one pipeline a node. An answer that did not
arrive is a value (`Unreachable`) in the list, since the other buckets' answers did. The same laws
run on every implementation: tests/pserver/store_laws.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from headrace.pserver.errors import LostLease, Unreachable
    from headrace.pserver.rows import FoldedRows, StoredRows

OWN_FIELDS = frozenset(
    (
        *("version", "nonce", "previous", "trimmed", "appended_bytes", "trimmed_bytes"),
        *("keeper", "lease_ms", "folds", "loading"),
    )
)
"""What a bucket says of itself beside its marks: no source may have such a name."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is fixed about a model at its creation."""

    model: str
    buckets: int
    """A power of two, at most 2^16. id -> bucket by its high bits."""
    width: int
    """Floats a row."""
    fingerprint: str
    """Of the model spec: a process whose spec has another one refuses to start."""
    spec: str
    """The model spec itself, opaque here: for servers without the file, and to name differences."""

    def bucket_of(self, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the bucket of each id; shape (n,)."""
        if self.buckets == 1:
            return (ids >> 63 >> 1).astype("int64")
        return (ids >> (64 - (self.buckets.bit_length() - 1))).astype("int64")


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """Offsets [start, stop) of one source."""

    source: str
    start: int
    stop: int

    def __post_init__(self) -> None:
        if self.source in OWN_FIELDS or not 0 <= self.start <= self.stop:
            raise ValueError(f"expected a source's offsets, start <= stop, found {self}")


@dataclass(frozen=True, slots=True)
class Push:
    """One entry for one bucket, with the offsets it covers."""

    bucket: int
    spans: tuple[OffsetSpan, ...]
    nonce: bytes
    """8 random bytes, new for every new push; a retry repeats them."""
    blob: bytes
    """`gains.pack(...)`"""

    def __post_init__(self) -> None:
        sources = {span.source for span in self.spans}
        moves = any(span.stop > span.start for span in self.spans)
        if len(sources) != len(self.spans) or not moves:
            # the marks are the only fence: what moves none would be applied at every retry
            raise ValueError(f"expected spans of different sources, one not empty: {self.spans}")


@dataclass(frozen=True, slots=True)
class BucketAnswer:
    """How a bucket stands after a push or when asked for its marks."""

    bucket: int
    version: int
    nonce: bytes
    previous: bytes
    """Nonce of the entry before `version`, so that who pushed it can fold it without reading it."""
    marks: Mapping[str, int]
    """Of the sources named in the push; of all sources when `marks` was asked. Absent means 0."""
    log_bytes: int
    """Bytes in the log: what the keepers have not yet trimmed."""

    def covers(self, spans: Sequence[OffsetSpan]) -> bool:
        """Whether just these offsets are applied: by the push, or by the first try of it."""
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
    """A bucket's head, read first, and then the entries after a given version."""

    bucket: int
    version: int
    nonce: bytes
    trimmed: int
    """Greatest version that is no longer in the log; 0 if the log was never trimmed."""
    entries: tuple[Entry, ...]
    """Ascending. May begin later than asked (trimmed) and end before or after `version`."""


@dataclass(frozen=True, slots=True)
class LookResult:
    """Single rows, with what makes them whole."""

    rows: StoredRows
    """As they are folded."""
    polled: PollResult
    """The log of the same history: its entries beyond those of each row are all that the row lacks.
    `trimmed` is not later than the rows, head and entries are not earlier."""


@dataclass(frozen=True, slots=True)
class Fold:
    """FoldedRows of one bucket as they are at `version`, to be written by the keeper that holds
    it."""

    bucket: int
    keeper: str
    number: int
    """1 for the first under this lease, then 2, ..."""
    version: int
    nonce: bytes
    """Of the entry `version`: refused unless the log (or the head) still has that very entry."""
    rows: FoldedRows
    gone: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    """Ids of rows that no longer exist at `version`, to be removed; shape (n,)."""


@dataclass(frozen=True, slots=True)
class Delete:
    """An entry of deletions for one bucket, by the keeper that holds it; marks do not move."""

    bucket: int
    keeper: str
    folds: int
    """How many folds this lease has had acknowledged."""
    version: int
    nonce: bytes
    """Of the entry `version`, by which it was decided."""
    entry_nonce: bytes
    """8 random bytes, of the new entry."""
    blob: bytes
    """`gains.pack(..., Deletions(...))`"""


@dataclass(frozen=True, slots=True)
class Trim:
    """Remove the entries up to and including `through`, all folded by `version`."""

    bucket: int
    keeper: str
    folds: int
    """How many folds this lease has had acknowledged."""
    version: int
    nonce: bytes
    through: int
    trimmed: int
    """What was already trimmed when the keeper read the log, or by its own last trim. Refused where
    less is: a failover brought entries back of which the keeper wrote no row."""

    def __post_init__(self) -> None:
        if self.through > self.version:
            raise ValueError(f"expected to trim at most what is folded, found {self}")


class Store(Protocol):
    """One model's buckets. Methods raise StoreError's kinds; see pserver.errors."""

    def create(self, shape: Shape) -> None:
        """Make the model: version 0 and a nonce in every bucket.

        Doing it again with an equal shape changes nothing, and completes what was begun and
        interrupted. A bucket that was there and is gone is not made again in silence.
        Raises ModelExists if there is one with another shape, MissingBucket, Unreachable.
        """

    def shape(self) -> Shape:
        """Return what `create` was given. Raises MissingModel, Unreachable."""

    def begin(self, shape: Shape) -> None:
        """Make the model without its buckets, or go on with one that lacks some.

        For `load`. A new one stays unfinished, and `shape` raises, until `finish`.
        Raises ModelExists if there is one with another shape, Unreachable.
        """

    def missing(self) -> list[int]:
        """Return the buckets that are not there, ascending; the model may be unfinished.

        Raises MissingModel, Unreachable.
        """

    def load(
        self, bucket: int, version: int, marks: Mapping[str, int], chunks: Iterable[FoldedRows]
    ) -> None:
        """Fill a bucket that is missing: these rows, all folded up to `version`, and these marks.

        Its log is empty, its nonce new. What an interrupted load left of it is removed first; until
        this one ends, the bucket is missing.
        Raises BucketExists if it is there or another load of it began, MissingModel, Unreachable.
        """

    def finish(self) -> None:
        """Declare the model whole. Raises MissingBucket if one is missing, Unreachable."""

    def drop(self) -> None:
        """Remove the model, if there is one; again, if that was interrupted. Raises Unreachable."""

    def marks(self, buckets: Sequence[int]) -> list[BucketAnswer | Unreachable]:
        """Return how each bucket stands, in the order asked. Raises MissingBucket."""

    def push(self, pushes: Sequence[Push]) -> list[BucketAnswer | Unreachable]:
        """Apply each push at most once; return how its bucket stands. Raises MissingBucket."""

    def poll(self, after: Mapping[int, int], limit: int) -> list[PollResult | Unreachable]:
        """Return heads and up to `limit` entries after the version named for each bucket.

        In the order of `after`. Raises MissingBucket.
        """

    def rows(self, bucket: int) -> Iterator[StoredRows]:
        """Yield all folded rows of a bucket in chunks, the first of which may be empty.

        A chunk in which less is `trimmed` than when the log was read comes from a failover that
        lost folds: it may lack rows whose entries were not read. Raises Unreachable.
        """

    def find(self, wanted: Mapping[int, npt.NDArray[np.uint64]]) -> list[StoredRows | Unreachable]:
        """Return folded rows by id, for each bucket in the order of `wanted`.

        Ids that have no folded row are left out. Does not say whether the bucket is there.
        """

    def look(
        self, wanted: Mapping[int, npt.NDArray[np.uint64]], after: Mapping[int, int], limit: int
    ) -> list[LookResult | Unreachable]:
        """Return folded rows by id, and what `poll` would, as of one moment for each bucket.

        In the order of `wanted`; ids that have no folded row are left out. Raises MissingBucket.
        """

    def claim(self, bucket: int, keeper: str, lease_ms: int) -> bool:
        """Take or renew the lease of a bucket; False while another keeper holds it.

        Taking it sets the count of folds to 0, renewing it does not. `keeper` names one attempt
        at holding a bucket: who no longer knows how many of its folds arrived takes a new name.
        The lease runs on the store's clock. Raises MissingBucket, Unreachable.
        """

    def release(self, bucket: int, keeper: str) -> None:
        """Give the lease back if it is this keeper's. Raises Unreachable."""

    def fold(self, folds: Sequence[Fold]) -> list[LostLease | Unreachable | None]:
        """Write rows and remove those that are gone. None where that is done.

        LostLease if the lease is not this keeper's or has ended, if the entry named is gone, or if
        this is not the next fold. Raises MissingBucket.
        """

    def trim(self, trims: Sequence[Trim]) -> list[LostLease | Unreachable | None]:
        """Remove entries; `Trim.folds` must be the count. Answers and raises like `fold`.

        LostLease also if the log has again what was trimmed before.
        """

    def delete(self, deletes: Sequence[Delete]) -> list[LostLease | Unreachable | None]:
        """Append entries of deletions; fenced like `trim`. Answers and raises like `fold`."""

    def close(self) -> None:
        """Close connections."""
