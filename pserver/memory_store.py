"""A store in this process's memory: the fake that ships with the interface.

It keeps every promise of `pserver.store.Store`, and holds bytes where the real store holds bytes,
so the same laws run on both. Clock and random numbers are passed in. For tests it offers two
faults: a bucket can go back to an earlier state, as in an asynchronous failover that loses writes,
and it can come back empty, as from a shard that lost its disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from headrace.pserver.bucket_generations import BucketGeneration, Generations, may_replace
from headrace.pserver.errors import (
    BucketExists,
    LostLease,
    MissingBucket,
    MissingModel,
    ModelExists,
    Unreachable,
)
from headrace.pserver.push_fence import marks_after, passes_fence
from headrace.pserver.rows.row_codec import FoldedRows, StoredRows, pack_rows, unpack_rows
from headrace.pserver.store import (
    BucketAnswer,
    Delete,
    Entry,
    Fold,
    LookResult,
    PollResult,
    Push,
    Shape,
    Trim,
)

_ROWS_A_CHUNK = 4096


@dataclass
class BucketState:
    """The content of one bucket."""

    nonce: bytes
    version: int = 0
    previous: bytes = b""
    trimmed: int = 0
    marks: dict[str, int] = field(default_factory=dict)
    log: list[Entry] = field(default_factory=list)
    rows: dict[bytes, bytes] = field(default_factory=dict)
    keeper: str = ""
    lease_ms: int = 0
    folds: int = 0

    def write(self, version: int, rows: FoldedRows) -> None:
        """Write rows, folded up to `version`."""
        ids, blobs = pack_rows(version, rows)
        self.rows.update(zip(ids.tolist(), blobs.tolist(), strict=True))

    def append(self, nonce: bytes, blob: bytes) -> None:
        """Append an entry to the log."""
        self.version += 1
        self.previous, self.nonce = self.nonce, nonce
        self.log.append(Entry(self.version, nonce, self.previous, blob))

    def copy(self) -> BucketState:
        """Return a copy that later changes leave alone."""
        return replace(self, marks=dict(self.marks), log=list(self.log), rows=dict(self.rows))


class MemoryStore:
    """One model's buckets in memory. Safe for use from several threads."""

    def __init__(self, *, clock_ms: Callable[[], int], nonces: Callable[[], bytes]) -> None:
        """`clock_ms` is the store's clock, for leases; `nonces` draws 8 bytes for a new bucket."""
        self._clock_ms, self._nonces = clock_ms, nonces
        self._shape: Shape | None = None
        self._complete = False
        self.generations = Generations(BucketGeneration(0, 0, 1))
        """Of the buckets. A `MemorySuccessor` replaces them."""
        self.of_generation: dict[int, dict[int, BucketState]] = {0: {}}
        """Buckets by generation and number."""
        self.reshard_token: str | None = None
        self._loads: dict[int, int] = {}  # bucket -> the last load that began, until it ends
        self._begun_loads = 0
        self._row_limit = 0
        self._lock = threading.RLock()

    @property
    def _buckets(self) -> dict[int, BucketState]:
        return self.of_generation.setdefault(self.generations.current.generation, {})

    def create(self, shape: Shape) -> None:
        """See Store.create."""
        with self._lock:
            self.begin(shape)
            if not self._complete:
                for bucket in self.missing():
                    if bucket in self._loads:
                        raise BucketExists(
                            f"bucket {bucket} is partly filled: complete the restore of the "
                            "model, or drop the model"
                        )
                    self._buckets[bucket] = BucketState(self._nonces())
            self.finish()

    def begin(self, shape: Shape) -> None:
        """See Store.begin."""
        with self._lock:
            if self._shape is None:
                self._shape = shape
                self.generations = Generations(BucketGeneration(0, shape.buckets, 1))
            if self._shape != shape:
                raise ModelExists(f"expected {shape}, got {self._shape}")

    def missing(self) -> list[int]:
        """See Store.missing."""
        with self._lock:
            shape = self._begun()
            return [bucket for bucket in range(shape.buckets) if bucket not in self._buckets]

    def load(
        self, bucket: int, version: int, marks: Mapping[str, int], chunks: Iterable[FoldedRows]
    ) -> None:
        """See Store.load."""
        with self._lock:
            if bucket not in self.missing():
                raise BucketExists(f"bucket {bucket} exists")
            self._begun_loads += 1
            self._loads[bucket] = token = self._begun_loads
            state = self.new_state(version, marks)
            for rows in chunks:
                self._check_load(bucket, token)
                state.write(version, rows)
            self._check_load(bucket, token)
            del self._loads[bucket]
            self._buckets[bucket] = state

    def _check_load(self, bucket: int, token: int) -> None:
        if self._loads.get(bucket) != token:
            raise BucketExists(f"bucket {bucket} exists, or another process fills it")

    def finish(self) -> None:
        """See Store.finish."""
        with self._lock:
            for bucket in range(self._begun().buckets):
                self._state(bucket)
            self._complete = True

    def drop(self) -> None:
        """See Store.drop."""
        with self._lock:
            self._shape, self._complete, self._loads = None, False, {}
            self.of_generation.clear()

    def new_state(self, version: int, marks: Mapping[str, int]) -> BucketState:
        """Return the state of a bucket to load, without rows, under a new history."""
        return BucketState(self._nonces(), version, trimmed=version, marks=dict(marks))

    def reshape(self, expected: Generations, now: Generations, token: str = "") -> bool:
        """Replace the generations as `reshape` in functions.lua does; return whether it did."""
        with self._lock:
            if not may_replace(self.generations, expected, self.reshard_token, token):
                return False
            self.generations = now
            self._shape = replace(self._begun(), buckets=now.current.buckets)
            return True

    def row_limit(self) -> int:
        """See Store.row_limit."""
        return self._row_limit

    def limit_rows(self, most_rows: int) -> None:
        """See Store.limit_rows."""
        self._row_limit = most_rows

    def shape(self) -> Shape:
        """See Store.shape."""
        with self._lock:
            if not self._complete:
                raise MissingModel("this store in memory holds no model: call `create` first")
            return self._begun()

    def _begun(self) -> Shape:
        if self._shape is None:
            raise MissingModel("this store in memory holds no model: call `create` first")
        return self._shape

    def marks(self, buckets: Sequence[int]) -> list[BucketAnswer | Unreachable]:
        """See Store.marks."""
        with self._lock:
            return [self._answer(b, dict(self._state(b).marks)) for b in buckets]

    def push(self, pushes: Sequence[Push]) -> list[BucketAnswer | Unreachable]:
        """See Store.push."""
        with self._lock:
            return [self._push(push) for push in pushes]

    def poll(self, after: Mapping[int, int], limit: int) -> list[PollResult | Unreachable]:
        """See Store.poll."""
        with self._lock:
            return [self._poll(bucket, version, limit) for bucket, version in after.items()]

    def rows(self, bucket: int) -> Iterator[StoredRows]:
        """See Store.rows. Each chunk is of one moment, not all of them together."""
        with self._lock:
            ids, trimmed = list(self._state(bucket).rows), self._state(bucket).trimmed
        yield unpack_rows([], [], self.shape().width)._replace(trimmed=trimmed)
        for start in range(0, len(ids), _ROWS_A_CHUNK):
            with self._lock:
                stored = self._state(bucket).rows
                chunk = [
                    row_id for row_id in ids[start : start + _ROWS_A_CHUNK] if row_id in stored
                ]
                blobs = [stored[row_id] for row_id in chunk]
                width, trimmed = self.shape().width, self._state(bucket).trimmed
            yield unpack_rows(chunk, blobs, width)._replace(trimmed=trimmed)

    def look(
        self, wanted: Mapping[int, npt.NDArray[np.uint64]], after: Mapping[int, int], limit: int
    ) -> list[LookResult | Unreachable]:
        """See Store.look."""
        with self._lock:
            looked: list[LookResult | Unreachable] = []
            for bucket, ids in wanted.items():
                stored = self._state(bucket).rows
                names: list[bytes] = np.asarray(ids, "<u8").view("V8").tolist()
                there = [name for name in names if name in stored]
                rows = unpack_rows(there, [stored[name] for name in there], self.shape().width)
                looked.append(LookResult(rows, self._poll(bucket, after[bucket], limit)))
            return looked

    def claim(self, bucket: int, keeper: str, lease_ms: int) -> bool:
        """See Store.claim."""
        with self._lock:
            state, now = self._state(bucket), self._clock_ms()
            if state.keeper != keeper:
                if state.keeper and now < state.lease_ms:
                    return False
                state.keeper, state.folds = keeper, 0
            state.lease_ms = now + lease_ms
            return True

    def release(self, bucket: int, keeper: str) -> None:
        """See Store.release."""
        with self._lock:
            state = self._state(bucket)
            if state.keeper == keeper:
                state.keeper = ""

    def fold(self, folds: Sequence[Fold]) -> list[LostLease | Unreachable | None]:
        """See Store.fold."""
        with self._lock:
            return [self._fold(fold) for fold in folds]

    def trim(self, trims: Sequence[Trim]) -> list[LostLease | Unreachable | None]:
        """See Store.trim."""
        with self._lock:
            return [self._trim(trim) for trim in trims]

    def delete(self, deletes: Sequence[Delete]) -> list[LostLease | Unreachable | None]:
        """See Store.delete."""
        with self._lock:
            return [self._delete(delete) for delete in deletes]

    def close(self) -> None:
        """See Store.close."""

    def checkpoint(self, bucket: int) -> BucketState:
        """Return the present state of the bucket, for `revert`."""
        with self._lock:
            return self._state(bucket).copy()

    def revert(self, bucket: int, checkpoint: BucketState) -> None:
        """Set the bucket back to an earlier state, as a failover that loses writes does."""
        with self._lock:
            self._buckets[bucket] = checkpoint.copy()

    def empty(self, bucket: int) -> None:
        """Lose the bucket, as a shard that comes back without its data."""
        with self._lock:
            self._buckets.pop(bucket, None)
            self._loads.pop(bucket, None)

    def _state(self, bucket: int) -> BucketState:
        if bucket not in self._buckets:
            raise MissingBucket(
                f"bucket {bucket} of {self._begun().model!r} has no version: its shard came back "
                "empty; `headrace pserver restore`"
            )
        return self._buckets[bucket]

    def _fold(self, fold: Fold) -> LostLease | None:
        state = self._state(fold.bucket)
        refusal = refusal_of(state, fold, fold.number - 1, self._clock_ms())
        if refusal is None:
            state.write(fold.version, fold.rows)
            for name in np.asarray(fold.gone, "<u8").view("V8").tolist():
                state.rows.pop(name, None)
            state.folds = fold.number
        return refusal

    def _trim(self, trim: Trim) -> LostLease | None:
        state = self._state(trim.bucket)
        refusal = refusal_of(state, trim, trim.folds, self._clock_ms())
        if refusal is None and trim.through > state.trimmed:
            state.log = [entry for entry in state.log if entry.version > trim.through]
            state.trimmed = trim.through
        return refusal

    def _delete(self, delete: Delete) -> LostLease | None:
        state = self._state(delete.bucket)
        refusal = refusal_of(state, delete, delete.folds, self._clock_ms())
        if refusal is None:
            state.append(delete.entry_nonce, delete.blob)
        return refusal

    def _push(self, push: Push) -> BucketAnswer:
        state = self._state(push.bucket)
        if passes_fence(push, state.marks):
            state.marks = marks_after(push, state.marks)
            state.append(push.nonce, push.blob)
        sources = [span.source for span in push.spans]
        return self._answer(push.bucket, {s: state.marks.get(s, 0) for s in sources})

    def _answer(self, bucket: int, marks: Mapping[str, int]) -> BucketAnswer:
        state = self._state(bucket)
        log_bytes = sum(len(entry.blob) for entry in state.log)
        return BucketAnswer(bucket, state.version, state.nonce, state.previous, marks, log_bytes)

    def _poll(self, bucket: int, after: int, limit: int) -> PollResult:
        state = self._state(bucket)
        begin = max(0, after - state.trimmed)  # the log is without holes
        entries = tuple(state.log[begin : begin + limit])
        return PollResult(bucket, state.version, state.nonce, state.trimmed, entries)


def refusal_of(
    state: BucketState, named: Fold | Trim | Delete, folds: int, now_ms: int
) -> LostLease | None:
    """Return why a bucket refuses a keeper's write; None if it accepts it.

    folds: that must have been applied under the lease. functions.lua has this rule as `fenced`.
    """
    where = f"bucket {named.bucket}"
    if state.keeper != named.keeper or now_ms >= state.lease_ms:
        return LostLease(
            f"{where}: expected the lease of {named.keeper}, got that of {state.keeper!r} or an "
            "ended one"
        )
    if state.folds != folds:
        return LostLease(f"{where}: expected {folds} folds, got {state.folds}")
    known = {entry.version: entry.nonce for entry in state.log} | {state.version: state.nonce}
    if known.get(named.version) != named.nonce:
        return LostLease(f"{where}: the log no longer has this entry {named.version}")
    if isinstance(named, Trim) and state.trimmed < named.trimmed:
        return LostLease(f"{where}: trimmed entries exist again, up to {named.trimmed}")
    return None
