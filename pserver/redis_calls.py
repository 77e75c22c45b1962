"""How a model's buckets are named on the servers, and calls about them.

Keys, all of a bucket under one hash tag, hence on one node:

    {model}:shape           JSON: what was fixed at creation
    {model:bucket}:marks    hash
    {model:bucket}:log      stream
    {model:bucket}:rows:n   hashes
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pserver.errors import StoreError, Unreachable
from pserver.nodes import Call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pserver.nodes import Nodes


class Calls:
    """Makes and sends the calls of one model. Safe for use from several threads."""

    def __init__(self, nodes: Nodes, model: str) -> None:
        if not model or set(model) & set("{}:"):
            raise ValueError(f"expected a model's name without braces and colons, found {model!r}")
        self.nodes = nodes
        self.model = model
        self.shape_key = f"{{{model}}}:shape".encode()

    def key(self, bucket: int, name: str) -> bytes:
        """Return the key of a bucket's `marks`, `log` or `rows:n`."""
        return f"{{{self.model}:{bucket}}}:{name}".encode()

    def function(
        self, name: str, bucket: int, keys: Sequence[str], arguments: Sequence[bytes | str | int]
    ) -> Call:
        """Return the call of a function about one bucket."""
        return self._call("FCALL", name, bucket, keys, arguments)

    def reading_function(
        self, name: str, bucket: int, keys: Sequence[str], arguments: Sequence[bytes | str | int]
    ) -> Call:
        """Return the call of a function that changes nothing."""
        return self._call("FCALL_RO", name, bucket, keys, arguments)

    def _call(
        self,
        command: str,
        name: str,
        bucket: int,
        keys: Sequence[str],
        arguments: Sequence[bytes | str | int],
    ) -> Call:
        whole = [self.key(bucket, key) for key in keys]
        return Call(whole[0], (command, f"headrace_{name}", len(whole), *whole, *arguments))

    def one(self, key: bytes, *words: bytes | str | int) -> Any:
        """Send one command; return the reply. Raises what it met."""
        return self.all([Call(key, words)])[0]

    def all(self, calls: Sequence[Call]) -> list[Any]:
        """Send commands; return the replies. Raises what any of them met."""
        replies = self.nodes.run(calls)
        for reply in replies:
            if isinstance(reply, StoreError):
                raise reply
        return replies


def names_of_all(sub_hashes: int) -> list[str]:
    """Return the names of all keys of a bucket."""
    return ["log", "marks", *(f"rows:{n}" for n in range(sub_hashes))]


def checked(reply: Any) -> Any:
    """Return a reply, or the Unreachable in its place. Raises every other StoreError."""
    if isinstance(reply, StoreError) and not isinstance(reply, Unreachable):
        raise reply
    return reply
