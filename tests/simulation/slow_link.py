"""A slow link, which carries less than a round of pushes within a timeout.

The product sends a round in pieces, and its timeout applies to each of them
(pserver.redis_backend.node_connection). Sent at once, a round that takes longer than the timeout
never gets through, however often it is repeated. Here the product's `NodeExchange` sends over a
connection that carries a fixed number of bytes within a timeout, and then is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from headrace.pserver.errors import Unreachable
from headrace.pserver.redis_backend.node_connection import Call, NodeExchange

if TYPE_CHECKING:
    from headrace.pserver.store import BucketAnswer, Push

_PIECE_BYTES = 64
"""Less than a push of this world, so that a round has many pieces."""
_TIMEOUT_BYTES = 2 * _PIECE_BYTES
"""Bytes that the link carries within the timeout of a piece."""


class SlowLink:
    """A node behind a link, and the only connection to it, of one round."""

    piece_bytes = _PIECE_BYTES

    def __init__(
        self, pushes: Sequence[Push], send: Callable[[Push], BucketAnswer | Unreachable]
    ) -> None:
        """`send`: what happens to a push that arrives whole."""
        self._calls = [Call(b"", ("FCALL", push.nonce, push.blob)) for push in pushes]
        self._ends = [*accumulate(len(b"".join(call.packed())) for call in self._calls)]
        self._pushes, self._send = pushes, send
        self._carried = 0
        self._answers: list[BucketAnswer | Unreachable] = []
        self._read = 0

    def round(self) -> list[BucketAnswer | Unreachable]:
        """Send all pushes as the product does; return the answers that are heard."""
        calls = [(index, call, False) for index, call in enumerate(self._calls)]
        heard: dict[int, BucketAnswer | Unreachable] = {}
        exchange = NodeExchange(self, ("simulated", 0), calls)  # type: ignore[arg-type]
        try:
            exchange.send()
            while not exchange.ended:
                exchange.send()
                heard.update(exchange.read())
        except OSError:
            exchange.abandon()
        exchange.close()
        lost = Unreachable("simulated: the link was cut")
        return [heard.get(index, lost) for index in range(len(self._pushes))]

    # ---------------------------------------------------------------- a node and its connection

    def take(self) -> SlowLink:
        """See NodeConnections."""
        return self

    def give_back(self, connection: SlowLink, *, drained: bool) -> None:
        """See NodeConnections."""

    def answered(self) -> None:
        """See NodeConnections."""

    def send_packed_command(self, items: Sequence[bytes]) -> None:
        """Carry the parts of a piece; the timeout applies to each, as in the client library."""
        for item in items:
            self._carried += min(len(item), _TIMEOUT_BYTES)
            while self._arrived():
                self._answers.append(self._send(self._pushes[len(self._answers)]))
            if len(item) > _TIMEOUT_BYTES:
                raise TimeoutError("simulated: not sent within the timeout")

    def _arrived(self) -> bool:
        """Return whether the next command has arrived whole."""
        place = len(self._answers)
        return place < len(self._ends) and self._ends[place] <= self._carried

    def read_response(self) -> BucketAnswer | Unreachable:
        """Return the next answer."""
        self._read += 1
        return self._answers[self._read - 1]
