"""The connections to one server, and its part of a round of commands.

The commands for a node go out in pieces of some hundred KB. The answers to a piece are read once
the piece after it is on its way, so the server always has work. A slow link therefore makes
progress: a timeout applies to a piece, and the answers to earlier pieces are not lost by it.
*Refused:* one write for all commands of a node. Its timeout covers the whole round, so a round that
takes longer to send never gets through, however often it is sent again.

A node that failed is left alone for a moment, so that requests to other nodes do not wait for it.
Before it gets commands again, it has to answer a PING within a short limit.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import hiredis
import redis
from redis.connection import Connection

from headrace.pserver.errors import StoreError
from headrace.pserver.redis_backend.address import RedisAddress, connection_options

_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.05, 1.0
"""Pause after a failure of a node; doubled at each failure."""
_PING_TIMEOUT_S = 0.25
"""Time that a failed node has to answer a PING, before it gets commands again."""


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """Timeouts of a connection to a server."""

    connect_timeout_ms: int = 2_000
    """A running server accepts a connection at once; a wrong address must fail in seconds."""
    answer_timeout_ms: int = 5_000
    """Longer than a server's pauses (a fork, an fsync), short enough to turn to its successor."""
    piece_bytes: int = 256 << 10
    """Commands sent before the answers to the piece before are read. A link must carry two pieces
    within `answer_timeout_ms`: 0.1 MB/s with these values."""


class Call(NamedTuple):
    """One command for the node that has `key`."""

    key: bytes
    words: tuple[bytes | str | int, ...]
    tail: bytes = b""
    """More words, as they go on the wire: thousands, without a Python object for each."""
    tail_words: int = 0

    def packed(self) -> tuple[bytes, ...]:
        """The command as it goes on the wire, in parts."""
        # not by the connection, which looks at every word three times before it calls this
        packed = hiredis.pack_command(self.words)  # type: ignore[arg-type]  # of any length
        if not self.tail_words:
            return (packed,)
        count = b"*%d" % (len(self.words) + self.tail_words)
        return count, packed[packed.index(b"\r\n") :], self.tail


_ASKING = b"".join(Call(b"", ("ASKING",)).packed())

Place = tuple[str, int]


class NodeConnections:
    """One server: its connections, and whether it answers."""

    def __init__(self, place: Place, address: RedisAddress, waiting: WaitLimits) -> None:
        self.name = f"{place[0]}:{place[1]}"
        self.piece_bytes = waiting.piece_bytes
        self._options: dict[str, Any] = {
            "host": place[0],
            "port": place[1],
            **connection_options(address),
        }
        self._pool = self._make_pool(
            waiting.connect_timeout_ms / 1000, waiting.answer_timeout_ms / 1000
        )
        self._pause_s = 0.0
        self._ping_at_s = 0.0
        self._failure: StoreError | None = None

    def _make_pool(self, connect_timeout_s: float, answer_timeout_s: float) -> Any:
        return redis.ConnectionPool(
            socket_connect_timeout=connect_timeout_s,
            socket_timeout=answer_timeout_s,
            **self._options,
        )

    def take(self) -> Connection:
        """Return a connection, to be given back. Raises redis' errors, or the last failure."""
        if self._failure is not None:
            if time.monotonic() < self._ping_at_s:
                # without the tracebacks of the times before, which would grow with each request
                raise self._failure.with_traceback(None)
            self._ping()
        connection: Connection = self._pool.get_connection()
        return connection

    def _ping(self) -> None:
        pool = self._make_pool(_PING_TIMEOUT_S, _PING_TIMEOUT_S)
        try:
            connection = pool.get_connection()
            connection.send_command("PING")
            connection.read_response()
        finally:
            pool.disconnect()

    def give_back(self, connection: Connection, *, drained: bool) -> None:
        """Take a connection back; it is closed unless all its answers were read."""
        if not drained:
            connection.disconnect()  # type: ignore[no-untyped-call]
        self._pool.release(connection)

    def failed(self, error: StoreError) -> None:
        """Leave the node alone for a moment."""
        self._pause_s = min(max(2 * self._pause_s, _LEAST_PAUSE_S), _MOST_PAUSE_S)
        self._ping_at_s = time.monotonic() + self._pause_s
        self._failure = error
        self._pool.disconnect(inuse_connections=False)

    def answered(self) -> None:
        """Trust the node again."""
        self._failure, self._pause_s = None, 0.0

    def close(self) -> None:
        self._pool.disconnect()


class NodeExchange:
    """The commands of one round for one node, sent in pieces, and their answers."""

    def __init__(
        self, node: NodeConnections, place: Place, calls: Sequence[tuple[int, Call, bool]]
    ) -> None:
        """calls: index in the round, command, and whether ASKING goes before it."""
        self.node, self.place = node, place
        self._unsent = deque(calls)
        self._unread: deque[list[tuple[int, bool]]] = deque()  # pieces
        self._answered = 0  # commands of the oldest piece
        self._connection: Connection | None = None

    @property
    def ended(self) -> bool:
        """Whether every command was answered, or the exchange was abandoned."""
        return not self._unsent and not self._unread

    def send(self) -> None:
        """Send the next piece, if there is one. Raises redis' errors, OSError, StoreError."""
        if not self._unsent:
            return
        if self._connection is None:
            self._connection = self.node.take()
        parts: list[bytes] = []
        size, limit = 0, self.node.piece_bytes
        piece: list[tuple[int, bool]] = []
        self._unread.append(piece)
        unsent = self._unsent
        while unsent and size < limit:
            index, call, asking = unsent.popleft()
            piece.append((index, asking))
            if asking:
                parts.append(_ASKING)
            packed = call.packed()
            parts += packed
            size += len(packed[-1])  # the longest by far, where there are several
        joined = b"".join(parts)
        items: Sequence[bytes | memoryview] = [joined]
        if len(joined) > limit:  # the client library applies its timeout to each item
            whole = memoryview(joined)
            items = [whole[start : start + limit] for start in range(0, len(joined), limit)]
        self._connection.send_packed_command(items)  # type: ignore[no-untyped-call]

    def read(self) -> Iterator[tuple[int, Any]]:
        """Yield the answers to the oldest piece, by index; refusals are values.

        Raises redis' connection errors and OSError.
        """
        connection = self._connection
        assert connection is not None
        for index, asking in self._unread[0]:
            if asking:
                read_one(connection)
            answer = read_one(connection)
            self._answered += 1
            yield index, answer
        self._unread.popleft()
        self._answered = 0

    def abandon(self) -> list[int]:
        """Close the connection; return the indexes of the commands that were not answered."""
        unanswered = [index for piece in self._unread for index, _ in piece][self._answered :]
        unanswered += [index for index, *_ in self._unsent]
        if self._connection is not None:
            self.node.give_back(self._connection, drained=False)
        self._connection = None
        self._unsent.clear()
        self._unread.clear()
        return unanswered

    def close(self) -> None:
        """Give the connection back, unless the exchange was closed or abandoned before."""
        if not self.ended:
            self.abandon()
        elif self._connection is not None:
            self.node.give_back(self._connection, drained=True)
            self._connection = None


def read_one(connection: Connection) -> Any:
    """Return the next reply; a server's refusal as a value. Raises redis' connection errors."""
    try:
        return connection.read_response()
    except redis.ResponseError as refusal:
        return refusal
