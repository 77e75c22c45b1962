"""The keys of a model on the servers, and the commands about them.

All keys of a bucket have one hash tag and are therefore on one node:

    {model}:shape           JSON: the properties fixed at creation
    {model:bucket}:marks    hash
    {model:bucket}:log      stream
    {model:bucket}:rows:n   hashes
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.pserver.errors import StoreError, Unreachable
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.server_requirements import function_name
from headrace.pserver.rows import MOST_SUB_HASHES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from headrace.pserver.redis_backend.cluster_client import ClusterClient


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


class RedisCommands:
    """Creates and sends the commands of one model. Safe for use from several threads."""

    def __init__(self, nodes: ClusterClient, model: str) -> None:
        if not model or set(model) & set("{}:"):
            raise ValueError(f"expected a model's name without braces and colons, got {model!r}")
        self.nodes = nodes
        self.model = model
        self.shape_key = f"{{{model}}}:shape".encode()

    def key(self, bucket: int, name: str) -> bytes:
        """Return the key of a bucket's `marks`, `log` or `rows:n`."""
        return f"{{{self.model}:{bucket}}}:{name}".encode()

    def function(
        self, name: str, bucket: int, keys: Sequence[str], arguments: Sequence[bytes | str | int]
    ) -> Call:
        """Return the call of a function for one bucket."""
        named = [self.key(bucket, key) for key in keys]
        return Call(named[0], ("FCALL", function_name(name), len(named), *named, *arguments))

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
        log, prefix = self.key(bucket, "log"), f"{{{self.model}:{bucket}}}:rows:"
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
