"""A store on Redis 7 or later, or Valkey: one server or a cluster, behind one class.

What must be atomic is a Function (functions.lua); the rest are plain commands that can be pipelined
to many buckets of many nodes. Keys, all of a bucket under one hash tag, hence on one node:

    {model}:shape           JSON: what was fixed at creation
    {model:bucket}:marks    hash
    {model:bucket}:log      stream
    {model:bucket}:rows:n   hashes

`create` writes the shape first, unfinished, then every bucket, and then that it is finished: so a
bucket that is missing later was lost, and is not made again as if it had never been there.
"""

from __future__ import annotations

import itertools
import secrets
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pserver.address import parse_address
from pserver.errors import (
    LostLease,
    MissingBucket,
    MissingModel,
    ModelExists,
    StoreError,
    Unreachable,
)
from pserver.nodes import Call, Nodes, Waiting
from pserver.rows import Rows, pack_rows, sub_hash_of, unpack_rows
from pserver.store import OWN_FIELDS, Answer, Entry, Polled, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from pserver.rows import StoredRows
    from pserver.store import Fold, Push, Trim

FORMAT = 1
"""Of everything under a model's keys. Raised when an older program could not read it any more."""

_ROWS_A_CHUNK = 16_384
"""Read in one go: a few MB, so that neither side holds its breath for long."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What may differ between processes that use one store."""

    waiting: Waiting = field(default_factory=Waiting)
    sub_hashes: int = 256
    """Of each bucket, a power of two; counts at creation only, and is kept with the model. So many
    that each holds few enough rows to stay flat in the server's memory (128 where nothing else is
    configured): 2 million rows with 64 buckets. Beyond that a row costs some 70 bytes more."""


class _Kept(msgspec.Struct):
    """What {model}:shape holds."""

    format: int
    buckets: int
    width: int
    fingerprint: str
    spec: str
    sub_hashes: int
    complete: bool


def open_store(url: str, model: str, settings: StoreSettings | None = None) -> RedisStore:
    """Connect to the store of a model: redis[+cluster]:// or rediss[+cluster]://.

    Raises Unreachable within seconds if nothing answers there, naming address and setting; Refused
    if user or password are wrong. Whether the model is there, `shape` says.
    """
    settings = settings or StoreSettings()
    return RedisStore(Nodes(parse_address(url), settings.waiting), model, settings.sub_hashes)


class RedisStore:
    """One model's buckets on real servers. Safe for use from several threads."""

    def __init__(
        self,
        nodes: Nodes,
        model: str,
        sub_hashes: int = 256,
        nonces: Callable[[], bytes] = lambda: secrets.token_bytes(8),
    ) -> None:
        """`nonces` draws 8 bytes for each new bucket."""
        if not model or set(model) & set("{}:"):
            raise ValueError(f"expected a model's name without braces and colons, found {model!r}")
        self.nodes = nodes
        self._model, self._sub_hashes, self._nonces = model, sub_hashes, nonces
        self._shape_key = f"{{{model}}}:shape".encode()
        self._kept: _Kept | None = None

    def create(self, shape: Shape) -> None:
        """See Store.create."""
        if shape.model != self._model:
            raise ValueError(f"expected the shape of {self._model!r}, found {shape.model!r}")
        kept = self._read_shape()
        if kept is None:
            kept = self._begin(shape)
        self._compare(shape, kept)
        if not kept.complete:
            self._make_buckets(shape.buckets)
            kept.complete = True
            self._one(self._shape_key, "SET", self._shape_key, msgspec.json.encode(kept))
        self._kept = kept
        for answer in self.marks(range(shape.buckets)):
            if isinstance(answer, Unreachable):
                raise answer

    def shape(self) -> Shape:
        """See Store.shape."""
        kept = self._known()
        return Shape(self._model, kept.buckets, kept.width, kept.fingerprint, kept.spec)

    def marks(self, buckets: Sequence[int]) -> list[Answer | Unreachable]:
        """See Store.marks."""
        keys = [self._key(bucket, "marks") for bucket in buckets]
        replies = self.nodes.run([Call(key, ("HGETALL", key)) for key in keys])
        return [
            self._standing(bucket, _checked(reply))
            for bucket, reply in zip(buckets, replies, strict=True)
        ]

    def push(self, pushes: Sequence[Push]) -> list[Answer | Unreachable]:
        """See Store.push."""
        calls = []
        for push in pushes:
            arguments: list[bytes | str | int] = [push.nonce, push.blob]
            for span in push.spans:
                arguments += (span.source, span.start, span.stop)
            calls.append(self._function("push", push.bucket, ("log", "marks"), arguments))
        answers: list[Answer | Unreachable] = []
        for push, reply in zip(pushes, self.nodes.run(calls), strict=True):
            if isinstance(reply := _checked(reply), Unreachable):
                answers.append(reply)
                continue
            sources = [span.source for span in push.spans]
            marks = dict(zip(sources, map(int, reply[4:]), strict=True))
            version, nonce, previous, log_bytes = reply[:4]
            answers.append(
                Answer(push.bucket, int(version), nonce, previous, marks, int(log_bytes))
            )
        return answers

    def poll(self, after: Mapping[int, int], limit: int) -> list[Polled | Unreachable]:
        """See Store.poll."""
        calls = []
        for bucket, version in after.items():
            marks, log = self._key(bucket, "marks"), self._key(bucket, "log")
            # on one connection, in this order: the head first, so that no entry is missed
            calls.append(Call(marks, ("HMGET", marks, "version", "nonce", "trimmed")))
            calls.append(Call(log, ("XRANGE", log, f"{version + 1}-0", "+", "COUNT", limit)))
        replies = [_checked(reply) for reply in self.nodes.run(calls)]
        return [
            self._polled(bucket, head, entries)
            for bucket, head, entries in zip(after, replies[::2], replies[1::2], strict=True)
        ]

    def rows(self, bucket: int) -> Iterator[StoredRows]:
        """See Store.rows."""
        kept = self._known()
        keys = [self._key(bucket, f"rows:{n}") for n in range(kept.sub_hashes)]
        counts = self._all([Call(key, ("HLEN", key)) for key in keys])
        chunk: list[bytes] = []
        rows_of_chunk = 0
        for key, count in zip(keys, counts, strict=True):
            if count > _ROWS_A_CHUNK:
                yield from self._scan(key, kept.width)
            elif count:
                if rows_of_chunk + count > _ROWS_A_CHUNK:
                    yield self._read_rows(chunk, kept.width)
                    chunk, rows_of_chunk = [], 0
                chunk.append(key)
                rows_of_chunk += count
        if chunk:
            yield self._read_rows(chunk, kept.width)

    def claim(self, bucket: int, keeper: str, lease_ms: int) -> bool:
        """See Store.claim."""
        return bool(self._run("claim", bucket, ("marks",), (keeper, lease_ms)))

    def release(self, bucket: int, keeper: str) -> None:
        """See Store.release."""
        self._run("release", bucket, ("marks",), (keeper,))

    def fold(self, folds: Sequence[Fold]) -> list[LostLease | Unreachable | None]:
        """See Store.fold."""
        return _refusals(self.nodes.run([self._fold(fold, self._known()) for fold in folds]))

    def trim(self, trims: Sequence[Trim]) -> list[LostLease | Unreachable | None]:
        """See Store.trim."""
        calls = []
        for trim in trims:
            fence = (trim.keeper, trim.folds, trim.version, trim.nonce)
            arguments = (*fence, trim.through)
            calls.append(self._function("trim", trim.bucket, ("log", "marks"), arguments))
        return _refusals(self.nodes.run(calls))

    def close(self) -> None:
        """See Store.close."""
        self.nodes.close()

    def node_of(self, bucket: int) -> str:
        """Return `host:port` of the node that has a bucket."""
        return self.nodes.name_of(self._key(bucket, "marks"))

    def _key(self, bucket: int, name: str) -> bytes:
        return f"{{{self._model}:{bucket}}}:{name}".encode()

    def _function(
        self, name: str, bucket: int, keys: Sequence[str], arguments: Sequence[bytes | str | int]
    ) -> Call:
        whole = [self._key(bucket, key) for key in keys]
        return Call(whole[0], ("FCALL", f"headrace_{name}", len(whole), *whole, *arguments))

    def _fold(self, fold: Fold, kept: _Kept) -> Call:
        rows = fold.rows
        place = sub_hash_of(rows.ids, kept.buckets, kept.sub_hashes)
        if (place[1:] < place[:-1]).any():
            order = np.argsort(place, kind="stable")
            place, rows = place[order], Rows._make(column[order] for column in rows)
        subs, counts = np.unique(place, return_counts=True)
        names = ("log", "marks", *(f"rows:{n}" for n in subs.tolist()))
        fence = (fold.keeper, fold.number, fold.version, fold.nonce)
        call = self._function("fold", fold.bucket, names, (*fence, *counts.tolist()))
        ids, blobs = pack_rows(fold.version, rows)
        return call._replace(tail=_framed(ids, blobs), tail_words=2 * ids.shape[0])

    def _run(
        self, name: str, bucket: int, keys: Sequence[str], arguments: Sequence[bytes | str | int]
    ) -> Any:
        return self._all([self._function(name, bucket, keys, arguments)])[0]

    def _one(self, key: bytes, *words: bytes | str | int) -> Any:
        return self._all([Call(key, words)])[0]

    def _all(self, calls: Sequence[Call]) -> list[Any]:
        """Return the replies. Raises what any of the calls met."""
        replies = self.nodes.run(calls)
        for reply in replies:
            if isinstance(reply, StoreError):
                raise reply
        return replies

    def _known(self) -> _Kept:
        if self._kept is None:
            kept = self._read_shape()
            if kept is None or not kept.complete:
                raise MissingModel(
                    f"expected the model {self._model!r} in the store, found "
                    f"{'none' if kept is None else 'it half made'}: `headrace pserver init`"
                )
            self._kept = kept
        return self._kept

    def _read_shape(self) -> _Kept | None:
        found = self._one(self._shape_key, "GET", self._shape_key)
        if found is None:
            return None
        try:
            kept = msgspec.json.decode(found, type=_Kept)
        except msgspec.DecodeError as error:
            raise StoreError(f"{self._shape_key.decode()} cannot be read: {error}") from error
        if kept.format != FORMAT:
            raise StoreError(
                f"{self._shape_key.decode()}: expected format {FORMAT}, found {kept.format}"
            )
        return kept

    def _begin(self, shape: Shape) -> _Kept:
        """Write the unfinished shape, unless somebody else does at this moment; return what is."""
        keys = [self._key(bucket, "marks") for bucket in range(shape.buckets)]
        there = [bool(found) for found in self._all([Call(k, ("EXISTS", k)) for k in keys])]
        fields = asdict(shape)
        del fields["model"]
        kept = _Kept(FORMAT, sub_hashes=self._sub_hashes, complete=False, **fields)
        encoded = msgspec.json.encode(kept)
        if not any(there):  # else only another `create` that is under way may have begun it
            self._one(self._shape_key, "SET", self._shape_key, encoded, "NX")
        now = self._read_shape()
        if now is None:
            raise MissingBucket(
                f"{sum(there)} of {shape.buckets} buckets of {self._model!r} are there, but not "
                f"{self._shape_key.decode()}: its shard came back empty; restore it"
            )
        return now

    def _make_buckets(self, buckets: int) -> None:
        self._all(
            [self._function("create", b, ("marks",), (self._nonces(),)) for b in range(buckets)]
        )

    def _compare(self, shape: Shape, kept: _Kept) -> None:
        for name in ("buckets", "width", "fingerprint", "spec"):
            expected, found = getattr(shape, name), getattr(kept, name)
            if expected != found:
                shown = "" if name == "spec" else f": expected {expected}, found {found}"
                raise ModelExists(f"the store's model {self._model!r} has another {name}{shown}")

    def _standing(self, bucket: int, reply: Any) -> Answer | Unreachable:
        if isinstance(reply, Unreachable):
            return reply
        found = dict(zip(reply[::2], reply[1::2], strict=True))
        if b"version" not in found:
            raise self._missing(bucket)
        marks = {name.decode(): mark for name, mark in found.items()}
        return Answer(
            bucket,
            int(found[b"version"]),
            found[b"nonce"],
            found[b"previous"],
            {source: int(mark) for source, mark in marks.items() if source not in OWN_FIELDS},
            int(found[b"appended_bytes"]) - int(found[b"trimmed_bytes"]),
        )

    def _polled(self, bucket: int, head: Any, entries: Any) -> Polled | Unreachable:
        for reply in (head, entries):
            if isinstance(reply, Unreachable):
                return reply
        version, nonce, trimmed = head
        if version is None:
            raise self._missing(bucket)
        return Polled(
            bucket,
            int(version),
            nonce,
            int(trimmed),
            # the fields in the order in which `push` wrote them: name, value, name, value...
            tuple(
                Entry(int(entry_id[:-2]), fields[1], fields[3], fields[5])
                for entry_id, fields in entries
            ),
        )

    def _missing(self, bucket: int) -> MissingBucket:
        return MissingBucket(
            f"bucket {bucket} of {self._model!r} on {self.node_of(bucket)} has no version: "
            "its shard came back empty; restore it"
        )

    def _read_rows(self, keys: Sequence[bytes], width: int) -> StoredRows:
        replies = self._all([Call(key, ("HGETALL", key)) for key in keys])
        flat = list(itertools.chain.from_iterable(replies))
        return unpack_rows(flat[::2], flat[1::2], width)

    def _scan(self, key: bytes, width: int) -> Iterator[StoredRows]:
        cursor = b"0"
        while True:
            cursor, flat = self._one(key, "HSCAN", key, cursor, "COUNT", _ROWS_A_CHUNK // 4)
            found = dict(zip(flat[::2], flat[1::2], strict=True))  # may name a row twice
            yield unpack_rows(list(found), list(found.values()), width)
            if cursor == b"0":
                return


def _checked(reply: Any) -> Any:
    """Return a reply, or the Unreachable in its place. Raises every other StoreError."""
    if isinstance(reply, StoreError) and not isinstance(reply, Unreachable):
        raise reply
    return reply


def _refusals(replies: list[Any]) -> list[LostLease | Unreachable | None]:
    return [reply if isinstance(reply, LostLease) else _failure(reply) for reply in replies]


def _failure(reply: Any) -> Unreachable | None:
    checked = _checked(reply)
    return checked if isinstance(checked, Unreachable) else None


def _framed(ids: npt.NDArray[np.void], blobs: npt.NDArray[np.void]) -> bytes:
    """Return ids and blobs in turns, as arguments of a command are on the wire."""
    size = blobs.dtype.itemsize
    heads = b"$8\r\n", b"\r\n$%d\r\n" % size
    layout = [("a", f"S{len(heads[0])}"), ("id", "V8"), ("b", f"S{len(heads[1])}")]
    framed = np.empty(ids.shape[0], np.dtype([*layout, ("row", f"V{size}"), ("c", "S2")]))
    framed["a"], framed["b"], framed["c"] = *heads, b"\r\n"
    framed["id"], framed["row"] = ids, blobs
    return framed.tobytes()
