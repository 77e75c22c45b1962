"""The servers behind a store: which node has which slot, and many commands sent to many of them.

Commands go out in one write a node, to all nodes before any answer is read, so that nodes work at
the same time. Every command gets an answer of its own: a reply, or the error of `pserver.errors`
that says what to do next. What could not be asked or did not answer in time is `Unreachable`; other
nodes' answers are not lost by that. Nothing is ever sent twice behind the caller's back, but for
what a server refused to do because it is elsewhere (MOVED, ASK) or has no such function yet.

A node that failed is left alone for a moment, so that following the others does not wait for it;
then it is asked with a short limit before it is trusted with more.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import hiredis
import redis
from redis import exceptions
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from headrace.pserver.errors import StoreError, Unreachable
from headrace.pserver.redis_backend.address import SETTING, connection_options
from headrace.pserver.redis_backend.error_translation import translated

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from redis.connection import Connection

    from headrace.pserver.redis_backend.address import RedisAddress

LIBRARY_VERSION = 2
"""Of functions.lua. A node with an older one gets this one; with a newer one we stop."""

_LIBRARY = Path(__file__).with_name("functions.lua")

_ROUNDS = 4
"""A command may be sent elsewhere three times, as slots move, before its bucket is unreachable."""
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.05, 1.0
"""How long a node that failed is left alone; doubled at each failure."""
_ASK_LIMIT_S = 0.25
"""How long a node that failed has to answer, before it is trusted again."""
_LOOK_EVERY_S = 0.25
"""Between two looks at who has which slot, while nodes fail."""


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """How long to wait for a server."""

    connect_timeout_ms: int = 2_000
    """A server that is there takes a connection at once; a wrong address must fail in seconds."""
    answer_timeout_ms: int = 5_000
    """Longer than a server's pauses (a fork, an fsync), short enough to turn to its successor."""


class Call(NamedTuple):
    """One command for the node that has `key`."""

    key: bytes
    words: tuple[bytes | str | int, ...]
    tail: bytes = b""
    """More words, made by the thousand without one Python object each: as they go on the wire."""
    tail_words: int = 0

    def packed(self) -> tuple[bytes, ...]:
        """The command as it goes on the wire, in parts."""
        # not by the connection, which looks at every word three times before it calls this
        whole = hiredis.pack_command(self.words)  # type: ignore[arg-type]  # of any length
        if not self.tail_words:
            return (whole,)
        count = b"*%d" % (len(self.words) + self.tail_words)
        return count, whole[whole.index(b"\r\n") :], self.tail


_ASKING = Call(b"", ("ASKING",))

Place = tuple[str, int]


class _Node:
    """One server: its connections, and whether it answers."""

    def __init__(self, place: Place, address: RedisAddress, waiting: WaitLimits) -> None:
        self.name = f"{place[0]}:{place[1]}"
        self._options: dict[str, Any] = {
            "host": place[0],
            "port": place[1],
            **connection_options(address),
        }
        self._pool = self._make_pool(
            waiting.connect_timeout_ms / 1000, waiting.answer_timeout_ms / 1000
        )
        self._pause_s = 0.0
        self._ask_at_s = 0.0
        self._trouble: StoreError | None = None

    def _make_pool(self, connect_timeout_s: float, answer_timeout_s: float) -> Any:
        return redis.ConnectionPool(
            socket_connect_timeout=connect_timeout_s,
            socket_timeout=answer_timeout_s,
            **self._options,
        )

    def send(self, calls: Iterable[Call]) -> Connection:
        """Write commands; return the connection that will bring the answers. Raises redis' own."""
        if self._trouble is not None:
            if time.monotonic() < self._ask_at_s:
                raise self._trouble
            self._ask()
        connection: Connection = self._pool.get_connection()
        try:
            packed = b"".join([part for call in calls for part in call.packed()])
            connection.send_packed_command([packed])  # type: ignore[no-untyped-call]
        except BaseException:
            self.give_back(connection, whole=False)
            raise
        return connection

    def _ask(self) -> None:
        pool = self._make_pool(_ASK_LIMIT_S, _ASK_LIMIT_S)
        try:
            connection = pool.get_connection()
            connection.send_command("PING")
            connection.read_response()
        finally:
            pool.disconnect()

    def give_back(self, connection: Connection, *, whole: bool) -> None:
        """Take a connection back; unless all its answers were read, it is closed."""
        if not whole:
            connection.disconnect()  # type: ignore[no-untyped-call]
        self._pool.release(connection)

    def failed(self, error: StoreError) -> None:
        """Leave the node alone for a moment."""
        self._pause_s = min(max(2 * self._pause_s, _LEAST_PAUSE_S), _MOST_PAUSE_S)
        self._ask_at_s = time.monotonic() + self._pause_s
        self._trouble = error
        self._pool.disconnect(inuse_connections=False)

    def answered(self) -> None:
        """Trust the node again."""
        self._trouble, self._pause_s = None, 0.0

    def close(self) -> None:
        self._pool.disconnect()


class ClusterClient:
    """All nodes of one store, found from its address. Safe for use from several threads."""

    def __init__(
        self, address: RedisAddress, waiting: WaitLimits, *, read_only: bool = False
    ) -> None:
        """Connect; unless all we do is read, see that every node has the functions.

        Raises StoreError.
        """
        self._address, self._waiting, self._read_only = address, waiting, read_only
        self._lock = threading.Lock()
        self._nodes: dict[Place, _Node] = {}
        self._slots: list[Place | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._looked_at_s = 0.0
        self._look(first=True)

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Send all calls; return for each its reply or a StoreError, in order."""
        answers: list[Any] = [None] * len(calls)
        asking: dict[int, Place] = {}
        waiting: Sequence[int] = range(len(calls))
        for _ in range(_ROUNDS):
            waiting = self._round(calls, waiting, asking, answers)
            if not waiting:
                break
        if any(isinstance(answer, Unreachable) for answer in answers):
            self._look()
        return answers

    def primaries(self) -> list[str]:
        """Return `host:port` of every node that has slots."""
        return sorted({self._node(place).name for place in self._slots if place is not None})

    def known(self) -> list[Place]:
        """Return every node named in the address or heard of since, whether it answers or not."""
        return list(dict.fromkeys([*self._address.hosts, *self._nodes]))

    def name_of(self, key: bytes) -> str:
        """Return `host:port` of the node that has a key."""
        place = self._slots[key_slot(key)]
        return str(self._address) if place is None else self._node(place).name

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for node in self._nodes.values():
                node.close()

    def _round(
        self,
        calls: Sequence[Call],
        waiting: Sequence[int],
        asking: dict[int, Place],
        answers: list[Any],
    ) -> list[int]:
        """Send those that wait, note their answers; return those to be sent again elsewhere."""
        by_place: dict[Place, list[int]] = {}
        for index in waiting:
            place = asking.get(index) or self._slots[key_slot(calls[index].key)]
            if place is None:
                answers[index] = Unreachable(f"no node of {self._address} serves this slot")
            else:
                by_place.setdefault(place, []).append(index)
        sent: list[tuple[_Node, Place, Connection, list[int]]] = []
        for place, indexes in by_place.items():
            node = self._node(place)
            commands: list[Call] = []
            for index in indexes:
                if index in asking:
                    commands.append(_ASKING)
                commands.append(calls[index])
            try:
                sent.append((node, place, node.send(commands), indexes))
            except (OSError, redis.RedisError, StoreError) as error:
                self._give_up(node, error, indexes, answers)
        again: list[int] = []
        for node, place, connection, indexes in sent:
            again += self._read(node, place, connection, indexes, asking, answers)
        return again

    def _read(
        self,
        node: _Node,
        place: Place,
        connection: Connection,
        indexes: list[int],
        asking: dict[int, Place],
        answers: list[Any],
    ) -> list[int]:
        again, lacking = [], []
        read = 0
        try:
            for index in indexes:
                if asking.pop(index, None):
                    _read_one(connection)
                answer = _read_one(connection)
                read += 1
                answers[index] = answer
                if isinstance(answer, redis.ResponseError):
                    answers[index] = translated(answer, node.name)
                    if self._redirected(answer, index, place, asking):
                        again.append(index)
                    elif "Function not found" in str(answer) and not self._read_only:
                        lacking.append(index)
        except (OSError, redis.RedisError) as error:
            node.give_back(connection, whole=False)
            self._give_up(node, error, indexes[read:], answers)
        except BaseException:
            node.give_back(connection, whole=False)
            raise
        else:
            node.give_back(connection, whole=True)
            node.answered()
        if lacking:
            try:
                self._load_functions(place)
                again += lacking
            except StoreError as trouble:  # no memory for them, or a replica by now
                for index in lacking:
                    answers[index] = trouble
        return again

    def _give_up(
        self, node: _Node, error: Exception, indexes: Iterable[int], answers: list[Any]
    ) -> None:
        known = translated(error, node.name)
        if error is not known:
            node.failed(known)
        for index in indexes:
            answers[index] = known

    def _redirected(
        self, error: redis.ResponseError, index: int, place: Place, asking: dict[int, Place]
    ) -> bool:
        """Whether the call was refused only because it has to be sent again, elsewhere."""
        if isinstance(error, exceptions.MovedError):
            if not self._address.cluster:
                return False
            self._slots[error.slot_id] = (error.host or place[0], error.port)
            return True
        if isinstance(error, exceptions.AskError):
            asking[index] = (error.host or place[0], error.port)
            return True
        return False

    def _node(self, place: Place) -> _Node:
        with self._lock:
            if place not in self._nodes:
                self._nodes[place] = _Node(place, self._address, self._waiting)
            return self._nodes[place]

    def ask(self, place: Place, *words: bytes | str | int) -> Any:
        """Say one command to one node; return the reply. Raises StoreError."""
        node = self._node(place)
        try:
            connection = node.send([Call(b"", words)])
        except (OSError, redis.RedisError, StoreError) as error:
            known = translated(error, node.name)
            if known is error:
                raise
            node.failed(known)
            raise known from error
        try:
            answer = _read_one(connection)
        except (OSError, redis.RedisError) as error:
            node.give_back(connection, whole=False)
            node.failed(known := translated(error, node.name))
            raise known from error
        node.give_back(connection, whole=True)
        node.answered()
        if isinstance(answer, redis.ResponseError):
            raise translated(answer, node.name) from answer
        return answer

    def _look(self, *, first: bool = False) -> None:
        """Find out which node has which slot, from any node that answers; load the functions."""
        now = time.monotonic()
        if not first and (now - self._looked_at_s < _LOOK_EVERY_S or not self._address.cluster):
            return
        self._looked_at_s = now
        trouble: StoreError | None = None
        known = dict.fromkeys([*self._nodes, *self._address.hosts])
        for place in known:
            try:
                slots = self._slots_from(place)
                if first and not self._read_only:
                    for primary in sorted({owner for owner in slots if owner is not None}):
                        self._check_functions(primary)
                self._slots = slots
            except StoreError as error:
                if first and not isinstance(error, Unreachable):
                    raise
                trouble = error
            else:
                return
        if first:
            assert trouble is not None
            raise Unreachable(
                f"{SETTING}: expected a Redis or Valkey at {self._address}, found: {trouble}"
            ) from trouble

    def _slots_from(self, place: Place) -> list[Place | None]:
        info = self.ask(place, "INFO", "cluster")
        clustered = b"cluster_enabled:1" in info
        if clustered != self._address.cluster:
            scheme = "redis+cluster://" if clustered else "redis://"
            raise StoreError(
                f"{SETTING}: {place[0]}:{place[1]} is {'a node of a' if clustered else 'no'} "
                f"cluster: expected {scheme}"
            )
        slots: list[Place | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        if not clustered:
            return [place] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, primary, *_ in self.ask(place, "CLUSTER", "SLOTS"):
            owner = (primary[0].decode() if primary[0] else place[0], int(primary[1]))
            slots[first : last + 1] = [owner] * (last + 1 - first)
        return slots

    def _check_functions(self, place: Place) -> None:
        try:
            version = int(self.ask(place, "FCALL_RO", "headrace_version", 0))
        except Unreachable:
            raise
        except StoreError as error:
            if "Function not found" not in str(error):
                raise
            version = 0
        if version > LIBRARY_VERSION:
            raise StoreError(
                f"{place[0]}:{place[1]}: expected functions of version {LIBRARY_VERSION} at most, "
                f"found {version}: a newer headrace uses this store"
            )
        if version < LIBRARY_VERSION:
            self._load_functions(place)

    def _load_functions(self, place: Place) -> None:
        self.ask(place, "FUNCTION", "LOAD", "REPLACE", _LIBRARY.read_bytes())


def _read_one(connection: Connection) -> Any:
    """Return the next reply; a server's refusal as a value. Raises redis' connection errors."""
    try:
        return connection.read_response()
    except redis.ResponseError as refusal:
        return refusal
