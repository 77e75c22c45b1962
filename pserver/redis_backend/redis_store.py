"""The store on Redis 7 or later, or Valkey: one server or a cluster, behind one class.

Atomic operations are Functions (functions.lua). Everything else is a plain command, so commands for
many buckets of many nodes go out in one pipeline. `commands` names the keys, `row_io` encodes the
rows, and `lifecycle` creates, fills and removes models.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.pserver.errors import LostLease, Unreachable
from headrace.pserver.redis_backend.address import parse_address
from headrace.pserver.redis_backend.bucket_successor import BucketSuccessor, remove_old
from headrace.pserver.redis_backend.cluster_client import ClusterClient
from headrace.pserver.redis_backend.commands import RedisCommands, checked
from headrace.pserver.redis_backend.lifecycle import FORMAT, ModelLifecycle, StoredShape
from headrace.pserver.redis_backend.node_connection import Call, WaitLimits
from headrace.pserver.redis_backend.row_io import (
    ROWS_A_CHUNK,
    look_rows,
    read_bucket,
    written,
)
from headrace.pserver.rows.row_codec import FoldedRows, StoredRows
from headrace.pserver.store import (
    OWN_FIELDS,
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

__all__ = ["FORMAT", "RedisStore", "StoreSettings", "open_store"]


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Settings that may differ between processes that use one store."""

    waiting: WaitLimits = field(default_factory=WaitLimits)
    sub_hashes: int | None = None
    """A power of two: sub-hashes of each bucket. Used at creation only, and stored with the
    model. None: the default of the bucket count (`sub_hashes_for`). A sub-hash with few enough
    rows stays flat in the server's memory (512 by default, `hash-max-listpack-entries`): 6 million
    rows with 64 buckets. Beyond that a row takes some 40 bytes more; take 1024 for up to 25
    million. More sub-hashes than needed make folds slower."""
    read_only: bool = False
    """Whether this process only reads. It then needs no functions of its own version, does not load
    them, and needs no permission to write."""
    key_prefix: str = ""
    """Begins every key, so that environments with models of one name share a store. It is not
    stored: each process of an environment must have it."""


def open_store(url: str, model: str, settings: StoreSettings | None = None) -> RedisStore:
    """Connect to the store of a model: redis[+cluster]:// or rediss[+cluster]://.

    Raises Unreachable within seconds if no server answers there, AccessRefused if user or password
    are wrong, and StoreError if a server does not meet the requirements of writers. `shape` tells
    whether the model exists.
    """
    settings = settings or StoreSettings()
    nodes = ClusterClient(parse_address(url), settings.waiting, read_only=settings.read_only)
    return RedisStore(nodes, model, settings.sub_hashes, key_prefix=settings.key_prefix)


class RedisStore:
    """One model's buckets on real servers. Safe for use from several threads."""

    def __init__(
        self,
        nodes: ClusterClient,
        model: str,
        sub_hashes: int | None = None,
        nonces: Callable[[], bytes] = lambda: secrets.token_bytes(8),
        rows_a_chunk: int = ROWS_A_CHUNK,
        key_prefix: str = "",
    ) -> None:
        """`nonces` draws 8 bytes for each new bucket; `rows_a_chunk`: most rows read at a time."""
        self.nodes, self._rows_a_chunk = nodes, rows_a_chunk
        self._calls = RedisCommands(nodes, model, key_prefix)
        self._lifecycle = ModelLifecycle(self._calls, sub_hashes, nonces)
        self._stored: StoredShape | None = None

    def create(self, shape: Shape) -> None:
        """See Store.create."""
        self._lifecycle.create(shape)

    def begin(self, shape: Shape) -> None:
        """See Store.begin."""
        self._lifecycle.begin(shape)

    def missing(self) -> list[int]:
        """See Store.missing."""
        return self._lifecycle.missing()

    def load(
        self, bucket: int, version: int, marks: Mapping[str, int], chunks: Iterable[FoldedRows]
    ) -> None:
        """See Store.load."""
        self._lifecycle.load(bucket, version, marks, chunks)

    def finish(self) -> None:
        """See Store.finish."""
        self._lifecycle.finish()

    def drop(self) -> None:
        """See Store.drop."""
        self._stored = None
        self._lifecycle.drop()

    def row_limit(self) -> int:
        """See Store.row_limit."""
        return self._lifecycle.row_limit()

    def limit_rows(self, most_rows: int) -> None:
        """See Store.limit_rows."""
        self._lifecycle.limit_rows(most_rows)

    def successor(self, buckets: int) -> BucketSuccessor:
        """Return the buckets that a reshard to this number fills. See `BucketSuccessor`."""
        return BucketSuccessor(self._lifecycle, self._calls, buckets)

    def remove_old(self) -> int:
        """Remove the buckets before the last reshard; return their number."""
        return remove_old(self._lifecycle)

    def shape(self) -> Shape:
        """See Store.shape."""
        stored = self._known()
        return Shape(
            self._calls.model, stored.buckets, stored.width, stored.fingerprint, stored.spec
        )

    def assume_generation(self, generation: int) -> None:
        """Use the keys of this generation of buckets, because the shape cannot be read."""
        self._calls.adopt(generation)

    @property
    def sub_hashes(self) -> int:
        """Sub-hashes of each bucket of the model. Raises MissingModel, Unreachable."""
        return self._known().sub_hashes

    @property
    def keys_of_buckets(self) -> str:
        """The pattern of the keys of the model's buckets, of any generation."""
        return f"{{{self._calls.prefix}{self._calls.model}:*}}:*"

    def key(self, bucket: int, name: str) -> bytes:
        """Return the key of a bucket's `marks`, `log` or `rows:n`."""
        return self._calls.key(bucket, name)

    def marks(self, buckets: Sequence[int]) -> list[BucketAnswer | Unreachable]:
        """See Store.marks. Raises Resharded within about a second of a reshard."""
        self._calls.check_generation()
        keys = [self.key(bucket, "marks") for bucket in buckets]
        replies = self.nodes.run([Call(key, ("HGETALL", key)) for key in keys])
        return [
            self._bucket_answer(bucket, checked(reply))
            for bucket, reply in zip(buckets, replies, strict=True)
        ]

    def push(self, pushes: Sequence[Push]) -> list[BucketAnswer | Unreachable]:
        """See Store.push. Raises Resharded within about a second of a reshard."""
        self._calls.check_generation()
        calls = []
        for push in pushes:
            arguments: list[bytes | str | int] = [push.nonce, push.blob]
            for span in push.spans:
                arguments += (span.source, span.start, span.stop)
            calls.append(self._calls.function("push", push.bucket, ("log", "marks"), arguments))
        answers: list[BucketAnswer | Unreachable] = []
        for push, reply in zip(pushes, self.nodes.run(calls), strict=True):
            if isinstance(reply := checked(reply), Unreachable):
                answers.append(reply)
                continue
            sources = [span.source for span in push.spans]
            marks = dict(zip(sources, map(int, reply[4:]), strict=True))
            version, nonce, previous, log_bytes = reply[:4]
            answers.append(
                BucketAnswer(push.bucket, int(version), nonce, previous, marks, int(log_bytes))
            )
        return answers

    def poll(self, after: Mapping[int, int], limit: int) -> list[PollResult | Unreachable]:
        """See Store.poll."""
        calls = []
        for bucket, version in after.items():
            marks, log = self.key(bucket, "marks"), self.key(bucket, "log")
            # on one connection and in this order: with the head first, no entry is missed
            calls.append(Call(marks, ("HMGET", marks, "version", "nonce", "trimmed")))
            calls.append(Call(log, ("XRANGE", log, f"{version + 1}-0", "+", "COUNT", limit)))
        replies = [checked(reply) for reply in self.nodes.run(calls)]
        return [
            self._polled(bucket, head, entries)
            for bucket, head, entries in zip(after, replies[::2], replies[1::2], strict=True)
        ]

    def rows(self, bucket: int) -> Iterator[StoredRows]:
        """See Store.rows."""
        return read_bucket(self._calls, bucket, self._known().layout, self._rows_a_chunk)

    def look(
        self, wanted: Mapping[int, npt.NDArray[np.uint64]], after: Mapping[int, int], limit: int
    ) -> list[LookResult | Unreachable]:
        """See Store.look."""
        answers: list[LookResult | Unreachable] = []
        seen = look_rows(self._calls, wanted, after, limit, self._known().layout)
        for bucket, one in zip(wanted, seen, strict=True):
            if isinstance(one, Unreachable):
                answers.append(one)
                continue
            polled = self._polled(bucket, one.head, one.entries)
            answers.append(
                polled if isinstance(polled, Unreachable) else LookResult(one.rows, polled)
            )
        return answers

    def claim(self, bucket: int, keeper: str, lease_ms: int) -> bool:
        """See Store.claim. Raises Resharded within about a second of a reshard."""
        self._calls.check_generation()
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
            arguments = (*fence, trim.through, trim.trimmed)
            calls.append(self._calls.function("trim", trim.bucket, ("log", "marks"), arguments))
        return _refusals(self.nodes.run(calls))

    def delete(self, deletes: Sequence[Delete]) -> list[LostLease | Unreachable | None]:
        """See Store.delete."""
        calls = []
        for delete in deletes:
            fence = (delete.keeper, delete.folds, delete.version, delete.nonce)
            arguments = (*fence, delete.entry_nonce, delete.blob)
            calls.append(self._calls.function("delete", delete.bucket, ("log", "marks"), arguments))
        return _refusals(self.nodes.run(calls))

    def close(self) -> None:
        """See Store.close."""
        self.nodes.close()

    def node_of(self, bucket: int) -> str:
        """Return `host:port` of the node that has a bucket."""
        return self.nodes.name_of(self.key(bucket, "marks"))

    def _fold(self, fold: Fold, stored: StoredShape) -> Call:
        words = written(fold.version, fold.rows, fold.gone, stored.layout)
        fence = (fold.keeper, fold.number, fold.version, fold.nonce)
        return self._calls.scattered("fold", fold.bucket, fence, words)

    def _run(
        self, name: str, bucket: int, keys: Sequence[str], arguments: Sequence[bytes | str | int]
    ) -> Any:
        return self._calls.all([self._calls.function(name, bucket, keys, arguments)])[0]

    def _known(self) -> StoredShape:
        if self._stored is None:
            self._stored = self._lifecycle.finished()
        return self._stored

    def _bucket_answer(self, bucket: int, reply: Any) -> BucketAnswer | Unreachable:
        if isinstance(reply, Unreachable):
            return reply
        found = dict(zip(reply[::2], reply[1::2], strict=True))
        if b"version" not in found:
            raise self._lifecycle.lost(bucket)
        marks = {name.decode(): mark for name, mark in found.items()}
        return BucketAnswer(
            bucket,
            int(found[b"version"]),
            found[b"nonce"],
            found[b"previous"],
            {source: int(mark) for source, mark in marks.items() if source not in OWN_FIELDS},
            int(found[b"appended_bytes"]) - int(found[b"trimmed_bytes"]),
        )

    def _polled(self, bucket: int, head: Any, entries: Any) -> PollResult | Unreachable:
        for reply in (head, entries):
            if isinstance(reply, Unreachable):
                return reply
        version, nonce, trimmed = head
        if version is None:
            raise self._lifecycle.lost(bucket)
        return PollResult(
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


def _refusals(replies: list[Any]) -> list[LostLease | Unreachable | None]:
    return [reply if isinstance(reply, LostLease) else _failure(reply) for reply in replies]


def _failure(reply: Any) -> Unreachable | None:
    passing = checked(reply)
    return passing if isinstance(passing, Unreachable) else None
