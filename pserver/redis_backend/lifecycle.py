"""Creates a model on the servers, fills buckets that were lost, and removes the model.

`create` writes the shape as unfinished, then every bucket, and then marks the shape as finished. A
bucket that is missing later was therefore lost, and is not created again as an empty one.

A lost bucket is filled under a token that the loading process draws: rows first, the head last.
Until the head exists, the bucket is missing for all other processes. Calls of an earlier load are
refused, and so is `create`, so rows of two histories never mix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict

import msgspec
import numpy as np
from msgspec.structs import replace

from headrace.pserver.bucket_generations import TOKEN_MS, BucketGeneration, Generations
from headrace.pserver.errors import (
    BucketExists,
    MissingBucket,
    MissingModel,
    ModelExists,
    StoreError,
)
from headrace.pserver.redis_backend.commands import RedisCommands, names_of_all
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.row_io import BucketLayout, written
from headrace.pserver.rows.row_codec import MOST_SUB_HASHES, FoldedRows, sub_hash_of, sub_hashes_for
from headrace.pserver.store import Shape
from headrace.runtime.undecodable import UNDECODABLE

FORMAT = 1
"""Version of the format of a model's keys. Raise it if older programs could not read the keys."""
RESHARDED_FORMAT = 2
"""The same with keys of a later generation, which older programs would not find."""
_ROWS_A_CALL = 1000
_NO_IDS = np.zeros(0, np.uint64)


class StoredShape(msgspec.Struct, omit_defaults=True):
    """The content of {model}:shape."""

    format: int
    buckets: int
    width: int
    fingerprint: str
    spec: str
    sub_hashes: int
    complete: bool
    generation: int = 0
    """Number of the current buckets; each attempt at a reshard has a greater one."""
    planned: BucketGeneration | None = None
    """Buckets that a reshard fills."""
    superseded: BucketGeneration | None = None
    """Buckets before the last reshard, until they are removed."""
    abandoned: list[BucketGeneration] = []
    """Buckets that interrupted reshards left, until the next one removes them."""

    @property
    def layout(self) -> BucketLayout:
        """The distribution of rows over buckets and sub-hashes."""
        return BucketLayout(self.buckets, self.sub_hashes, self.width)

    @property
    def generations(self) -> Generations:
        """All generations of buckets."""
        current = BucketGeneration(self.generation, self.buckets, self.sub_hashes)
        return Generations(current, self.planned, self.superseded, tuple(self.abandoned))

    def of_generations(self, now: Generations) -> StoredShape:
        """Return the shape of the model with these generations."""
        current = now.current
        return replace(
            self,
            format=RESHARDED_FORMAT if current.generation else FORMAT,
            generation=current.generation,
            buckets=current.buckets,
            sub_hashes=current.sub_hashes,
            planned=now.planned,
            superseded=now.superseded,
            abandoned=list(now.abandoned),
        )


class ModelLifecycle:
    """Creates, fills and removes one model."""

    def __init__(
        self, calls: RedisCommands, sub_hashes: int | None, draw_nonce: Callable[[], bytes]
    ) -> None:
        """`sub_hashes`: of each bucket of a new model; None for the default of its bucket count."""
        wanted = 1 if sub_hashes is None else sub_hashes
        if wanted & (wanted - 1) or not 1 <= wanted <= MOST_SUB_HASHES:
            raise ValueError(
                f"expected a power of two up to {MOST_SUB_HASHES} of sub-hashes, got {sub_hashes}"
            )
        self._calls, self._sub_hashes, self._draw_nonce = calls, sub_hashes, draw_nonce

    def read(self) -> StoredShape | None:
        """Return the stored shape of the model, finished or not; None without one."""
        found = self._text()
        return None if found is None else self._decoded(found)

    def _text(self) -> bytes | None:
        key = self._calls.shape_key
        found: bytes | None = self._calls.one(key, "GET", key)
        return found

    def _decoded(self, found: bytes) -> StoredShape:
        key = self._calls.shape_key
        try:
            stored = msgspec.json.decode(found, type=StoredShape)
        except UNDECODABLE as error:
            raise StoreError(f"{key.decode()} cannot be read: {error}") from error
        expected = RESHARDED_FORMAT if stored.generation else FORMAT
        if stored.format != expected:
            raise StoreError(
                f"{key.decode()}: expected format {expected}, got {stored.format}: use the version "
                "of headrace that wrote it, or a newer one"
            )
        self._calls.adopt(stored.generation)
        return stored

    def rewrite(self, change: Callable[[StoredShape], StoredShape], token: str = "") -> StoredShape:
        """Replace the stored shape by `change` of it, atomically; return the new one.

        `change` runs again if another process changed the shape meanwhile. token: of a reshard,
        which has to hold it still. Raises BucketExists without it, MissingModel, and what `change`
        raises.
        """
        answer = 0
        while answer == 0:
            text = self._text()
            if text is None:
                raise self._unmade(None)
            changed = change(self._decoded(text))
            arguments = text, msgspec.json.encode(changed), token
            answer = self._calls.on_model("reshape", ("shape", "reshard"), arguments)
        if answer < 0:
            raise self.overtaken()
        return changed

    def overtaken(self) -> BucketExists:
        """Return the error of a reshard that lost its token."""
        return BucketExists(
            f"another reshard of {self._calls.model!r} has begun, because this one took more "
            f"than {TOKEN_MS // 1000} s for a bucket"
        )

    def finished(self) -> StoredShape:
        """Return the shape of a finished model. Raises MissingModel."""
        return self.check_complete(self.read())

    def check_complete(self, stored: StoredShape | None) -> StoredShape:
        """Return the shape if it is that of a finished model. Raises MissingModel."""
        if stored is None or not stored.complete:
            raise self._unmade(stored)
        return stored

    def _unmade(self, stored: StoredShape | None) -> MissingModel:
        return MissingModel(
            f"expected the model {self._calls.model!r} in the store, got "
            f"{'no model' if stored is None else 'an incomplete one'}. "
            "Run `headrace pserver init`"
        )

    def create(self, shape: Shape) -> None:
        """See Store.create."""
        before = self.read()
        there = shape.buckets - len(self.absent(self._calls, shape.buckets))
        if there and before is None:
            raise MissingBucket(
                f"{there} of {shape.buckets} buckets of {shape.model!r} exist, but not "
                f"{self._calls.shape_key.decode()}: its shard restarted without data. "
                "Run `headrace pserver restore`"
            )
        stored = self.begin(shape)
        if not stored.complete:
            makes = [
                self._calls.function("create", bucket, ("marks",), (self._draw_nonce(),))
                for bucket in range(shape.buckets)
            ]
            self._calls.all(makes)
        self.finish()

    def begin(self, shape: Shape) -> StoredShape:
        """See Store.begin."""
        if shape.model != self._calls.model:
            raise ValueError(f"expected the shape of {self._calls.model!r}, got {shape.model!r}")
        stored = self.read()
        if stored is None:
            fields = asdict(shape)
            del fields["model"]
            sub_hashes = self._sub_hashes or self._survivors(shape.buckets)
            sub_hashes = sub_hashes or sub_hashes_for(shape.buckets)
            stored = StoredShape(FORMAT, sub_hashes=sub_hashes, complete=False, **fields)
            key = self._calls.shape_key
            self._calls.one(key, "SET", key, msgspec.json.encode(stored), "NX")
            stored = self._begun()  # that of another process, if it was first
        for name in ("buckets", "width", "fingerprint", "spec"):
            expected, found = getattr(shape, name), getattr(stored, name)
            if expected != found:
                shown = "" if name == "spec" else f": expected {expected}, got {found}"
                raise ModelExists(
                    f"the store's model {shape.model!r} has another {name}{shown}. Give the "
                    "changed model another name, or remove this one: `headrace pserver drop`"
                )
        return stored

    def _survivors(self, buckets: int) -> int | None:
        """Return the number of sub-hashes of buckets that outlived the shape; None if they have no
        rows.

        Only with the right number does every id belong to the sub-hash in which it was found.
        """
        lost = self.absent(self._calls, buckets)
        for bucket in (each for each in range(buckets) if each not in lost):
            keys = [self._calls.key(bucket, f"rows:{n}") for n in range(MOST_SUB_HASHES)]
            lengths = self._calls.all([Call(key, ("HLEN", key)) for key in keys])
            # the last ones: the least ids are in the first one for every number of sub-hashes
            some = np.flatnonzero(np.array(lengths, np.int64))[-8:].tolist()
            scans = [Call(keys[n], ("HSCAN", keys[n], 0, "COUNT", 10)) for n in some]
            found = [flat[::2] for _, flat in self._calls.all(scans)]
            ids = np.frombuffer(b"".join(name for names in found for name in names), "<u8")
            place = np.repeat(some, [len(names) for names in found])
            for bits in range(MOST_SUB_HASHES.bit_length() - 1, -1, -1):
                if some and (sub_hash_of(ids, buckets, 1 << bits) == place).all():
                    return 1 << bits
        return None

    def missing(self) -> list[int]:
        """See Store.missing."""
        return self.absent(self._calls, self._begun().buckets)

    def load(
        self, bucket: int, version: int, marks: Mapping[str, int], chunks: Iterable[FoldedRows]
    ) -> None:
        """See Store.load."""
        self.fill(self._calls, self._begun().layout, bucket, (version, marks, chunks))

    def fill(
        self,
        calls: RedisCommands,
        layout: BucketLayout,
        bucket: int,
        content: tuple[int, Mapping[str, int], Iterable[FoldedRows]],
    ) -> None:
        """Fill a missing bucket of some generation with rows up to a version, and with marks."""
        (version, marks, chunks), token = content, self._draw_nonce().hex()
        every = names_of_all(layout.sub_hashes)
        calls.all([calls.function("load_begin", bucket, every, (token,))])
        for chunk in chunks:
            loads = []
            for start in range(0, chunk.ids.shape[0], _ROWS_A_CALL):
                rows = chunk.chosen(slice(start, start + _ROWS_A_CALL))
                words = written(version, rows, _NO_IDS, layout)
                loads.append(calls.scattered("load_rows", bucket, (token,), words))
            calls.all(loads)
        pairs = [word for pair in marks.items() for word in pair]
        arguments = (token, version, self._draw_nonce(), *pairs)
        calls.all([calls.function("load_end", bucket, ("marks",), arguments)])

    def finish(self) -> StoredShape:
        """See Store.finish."""
        stored = self._begun()
        if missing := self.absent(self._calls, stored.buckets):
            raise self.lost(missing[0])
        if stored.complete:
            return stored
        return self.rewrite(_complete)

    def drop(self) -> None:
        """See Store.drop."""
        if self.read() is None:
            return
        # processes that start now find an unfinished model, not a part of its buckets
        stored, key = self.rewrite(_unfinished), self._calls.shape_key
        for each in stored.generations.known:
            self.remove(each)
        self._calls.one(key, "DEL", key)

    def row_limit(self) -> int:
        """See Store.row_limit."""
        key = self._calls.model_key("row_limit")
        return int(self._calls.one(key, "GET", key) or 0)

    def limit_rows(self, most_rows: int) -> None:
        """See Store.limit_rows."""
        key = self._calls.model_key("row_limit")
        if most_rows:
            self._calls.one(key, "SET", key, most_rows)
        else:
            self._calls.one(key, "DEL", key)

    def remove(self, buckets: BucketGeneration) -> None:
        """Remove all buckets of a generation."""
        calls = self._calls.of_generation(buckets.generation)
        every = names_of_all(buckets.sub_hashes)
        for bucket in range(buckets.buckets):
            calls.all([calls.function("drop", bucket, every, ())])

    def lost(self, bucket: int) -> MissingBucket:
        """Return the error of a bucket that is missing."""
        node = self._calls.nodes.name_of(self._calls.key(bucket, "marks"))
        return MissingBucket(
            f"bucket {bucket} of {self._calls.model!r} on {node} has no version: "
            "its shard restarted without data. Run `headrace pserver restore`"
        )

    def _begun(self) -> StoredShape:
        stored = self.read()
        if stored is None:
            raise self._unmade(None)
        return stored

    def absent(self, calls: RedisCommands, buckets: int) -> list[int]:
        """Return the missing ones of these buckets, of the generation of `calls`."""
        keys = [calls.key(bucket, "marks") for bucket in range(buckets)]
        there = calls.all([Call(key, ("HEXISTS", key, "version")) for key in keys])
        return [bucket for bucket, found in enumerate(there) if not found]


def _unfinished(stored: StoredShape) -> StoredShape:
    return replace(stored, complete=False)


def _complete(stored: StoredShape) -> StoredShape:
    return replace(stored, complete=True)
