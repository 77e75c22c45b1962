"""The keys of a model on the servers, and the commands about them.

All keys of a bucket have one hash tag and are therefore on one node:

    {model}:shape           JSON: the properties fixed at creation
    {model:bucket}:marks    hash
    {model:bucket}:log      stream
    {model:bucket}:rows:n   hashes
    {model}:reshard         while a reshard runs: a token, with a time to live
    {model}:row_limit       the most rows of the model, if an operator set it; outlives the model

A model that was resharded has its buckets under other keys, so that no process takes a bucket of
the old count for one of the new: {model:1.bucket} after the first reshard, then {model:2.bucket}.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.pserver.errors import Resharded, StoreError, Unreachable
from headrace.pserver.redis_backend.cluster_client import ClusterClient
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.server_requirements import function_name
from headrace.pserver.rows.row_codec import MOST_SUB_HASHES
from headrace.runtime.undecodable import UNDECODABLE

_CHECK_S = 1.0
"""Between two looks at the generation. Pushes to old buckets are lost, not wrong: the marks of the
new buckets make learners read the same examples again."""


def _framed(word: str) -> str:
    return f"${len(word)}\r\n{word}\r\n"


_TEXTS = [str(number) for number in range(MOST_SUB_HASHES)]
_FRAMED = [_framed(text) for text in _TEXTS]


class RowsByNode(NamedTuple):
    """Rows of one bucket as arguments of a function, grouped by sub-hash."""

    subs: npt.NDArray[np.int64]
    """The sub-hashes with rows, ascending; shape (n,)."""
    counts: npt.NDArray[np.int64]
    """Rows of each sub-hash, or rows of each kind; shape (n,) or (n, kinds)."""
    rows: bytes
    """Words as they go on the wire, in the order of the sub-hashes."""
    row_words: int
    """Number of words in `rows`."""


class _Generation(msgspec.Struct):
    """The part of {model}:shape on which all other keys depend."""

    generation: int = 0


class RedisCommands:
    """Creates and sends the commands of one model. Safe for use from several threads."""

    def __init__(self, nodes: ClusterClient, model: str, prefix: str = "") -> None:
        """prefix: of all keys; it separates environments that share one store."""
        if not model or set(prefix + model) & set("{}:"):
            raise ValueError(
                f"expected a model's name without braces and colons, got {prefix + model!r}"
            )
        self.nodes = nodes
        self.model, self.prefix = model, prefix
        self.shape_key = self.model_key("shape")
        self._generation: int | None = None
        """Number of reshards of the model so far; None before it was read."""
        self._checked_s = 0.0

    def of_generation(self, generation: int) -> RedisCommands:
        """Return the commands for the buckets of a generation, whichever is current."""
        commands = RedisCommands(self.nodes, self.model, self.prefix)
        commands.adopt(generation)
        return commands

    def adopt(self, generation: int) -> None:
        """Use the buckets of this generation from now on."""
        self._generation = generation

    def check_generation(self) -> None:
        """Check about once a second that the buckets in use are still the current ones.

        Raises Resharded.
        """
        now_s = time.monotonic()
        if self._generation is None or now_s < self._checked_s + _CHECK_S:
            return
        self._checked_s = now_s
        found = self.nodes.run([Call(self.shape_key, ("GET", self.shape_key))])[0]
        if isinstance(found, bytes) and _generation_in(found) != self._generation:
            raise Resharded(
                f"expected generation {self._generation} of the buckets of {self.model!r}, got "
                f"{_generation_in(found)}: the model was resharded. Start this process again"
            )

    def model_key(self, name: str) -> bytes:
        """Return the key of the model's `shape`, `reshard` or `row_limit`."""
        return f"{{{self.prefix}{self.model}}}:{name}".encode()

    def key(self, bucket: int, name: str) -> bytes:
        """Return the key of a bucket's `marks`, `log` or `rows:n`. May raise Unreachable, once."""
        return f"{self._tag(bucket)}:{name}".encode()

    def _tag(self, bucket: int) -> str:
        generation = self._generation
        if generation is None:
            found = self.one(self.shape_key, "GET", self.shape_key)
            generation = 0 if found is None else _generation_in(found)
            if found is not None:
                self._generation = generation
        return (
            f"{{{self.prefix}{self.model}:{generation}.{bucket}}}"
            if generation
            else (f"{{{self.prefix}{self.model}:{bucket}}}")
        )

    def function(
        self, name: str, bucket: int, keys: Sequence[str], arguments: Sequence[bytes | str | int]
    ) -> Call:
        """Return the call of a function for one bucket."""
        named = [self.key(bucket, key) for key in keys]
        return Call(named[0], ("FCALL", function_name(name), len(named), *named, *arguments))

    def on_model(
        self, name: str, names: Sequence[str], arguments: Sequence[bytes | str | int]
    ) -> Any:
        """Call a function on keys of the model; return the reply. Raises StoreError."""
        keys = [self.model_key(each) for each in names]
        words = function_name(name), len(keys), *keys, *arguments
        return self.one(keys[0], "FCALL", *words)

    def scattered(
        self,
        name: str,
        bucket: int,
        arguments: Sequence[bytes | str | int],
        words: RowsByNode,
        command: str = "FCALL",
    ) -> Call:
        """Return the call of a function for rows in many sub-hashes.

        Its keys are log, marks and the sub-hashes. Its arguments are `arguments`, the row counts of
        the sub-hashes, and the rows. Most of these words are small numbers, and there are hundreds
        of them. They are framed here from a table, which is four times faster than in the client
        library.
        """
        log, prefix = self.key(bucket, "log"), f"{self._tag(bucket)}:rows:"
        subs, length = words.subs.tolist(), len(prefix.encode())
        keys = "".join([f"${length + len(_TEXTS[n])}\r\n{prefix}{_TEXTS[n]}\r\n" for n in subs])
        encoded = [word if isinstance(word, bytes) else str(word).encode() for word in arguments]
        counts = words.counts.ravel().tolist()
        if max(counts, default=0) < len(_FRAMED):
            framed = "".join([_FRAMED[count] for count in counts])
        else:
            framed = "".join([_framed(str(count)) for count in counts])
        return Call(
            log,
            (command, function_name(name), 2 + len(subs), log, self.key(bucket, "marks")),
            b"".join(
                [
                    keys.encode(),
                    *(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded),
                    framed.encode(),
                    words.rows,
                ]
            ),
            len(subs) + len(encoded) + len(counts) + words.row_words,
        )

    def one(self, key: bytes, *words: bytes | str | int) -> Any:
        """Send one command; return the reply. Raises the command's StoreError."""
        return self.all([Call(key, words)])[0]

    def all(self, calls: Sequence[Call]) -> list[Any]:
        """Send commands; return the replies. Raises the first command's StoreError."""
        replies = self.nodes.run(calls)
        for reply in replies:
            if isinstance(reply, StoreError):
                try:
                    raise reply
                finally:
                    del reply, replies  # else the error keeps this frame and its callers' frames
        return replies


def _generation_in(shape: bytes) -> int:
    try:
        return msgspec.json.decode(shape, type=_Generation).generation
    except UNDECODABLE:  # the reader of the whole shape reports it
        return 0


def names_of_all(sub_hashes: int) -> list[str]:
    """Return the names of all keys of a bucket."""
    return ["log", "marks", *(f"rows:{n}" for n in range(sub_hashes))]


def checked(reply: Any) -> Any:
    """Return a reply, or the Unreachable in its place. Raises every other StoreError."""
    if isinstance(reply, StoreError) and not isinstance(reply, Unreachable):
        try:
            raise reply
        finally:
            del reply  # else the error keeps this frame and its callers' frames
    return reply
