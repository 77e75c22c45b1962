"""A client for the servers behind a store: the map of slots, and commands for many nodes at once.

Every node gets its first commands before any answer is read, so the nodes work at the same time.
Every command has an answer of its own: a reply, or the error of `pserver.errors` that names the
next step. A command that could not be sent or was not answered in time is `Unreachable`, and the
answers of other nodes are kept. Nothing is sent twice behind the caller's back, with two
exceptions in which the server did nothing: the slot is on another node (MOVED, ASK), or the
server lacks the function.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any

import redis
from redis import exceptions
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from headrace.pserver.errors import StoreError, Unreachable
from headrace.pserver.redis_backend.address import SETTING, RedisAddress
from headrace.pserver.redis_backend.error_translation import translated
from headrace.pserver.redis_backend.node_connection import (
    Call,
    NodeConnections,
    NodeExchange,
    Place,
    WaitLimits,
)
from headrace.pserver.redis_backend.server_requirements import (
    check_eviction,
    check_functions,
    function_is_missing,
)

_ROUNDS = 4
"""A command may be sent to another node three times, as slots move, before it is Unreachable."""
_LOOK_EVERY_S = 0.25
"""Between two reads of the map of slots, while nodes fail."""


class ClusterClient:
    """The nodes of one store, found from its address. Safe for use from several threads."""

    def __init__(
        self, address: RedisAddress, limits: WaitLimits, *, read_only: bool = False
    ) -> None:
        """Connect. Unless `read_only`, load the functions and check the eviction policy of nodes.

        Raises StoreError.
        """
        self._address, self._limits, self._read_only = address, limits, read_only
        self._lock = threading.Lock()
        self._nodes: dict[Place, NodeConnections] = {}
        self._slots: list[Place | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._looked_at_s = 0.0
        self._look(first=True)

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Send all calls; return for each its reply or a StoreError, in order."""
        answers: list[Any] = [None] * len(calls)
        asking: dict[int, Place] = {}
        unsent: Sequence[int] = range(len(calls))
        for _ in range(_ROUNDS):
            unsent = self._round(calls, unsent, asking, answers)
            if not unsent:
                break
        if any(isinstance(answer, Unreachable) for answer in answers):
            self._look()
        return answers

    def known(self) -> list[Place]:
        """Return every node in the address or found since, whether it answers or not."""
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
        unsent: Sequence[int],
        asking: dict[int, Place],
        answers: list[Any],
    ) -> list[int]:
        """Send the unsent commands, note their answers; return those to be sent again."""
        by_place: dict[Place, list[tuple[int, Call, bool]]] = {}
        for index in unsent:
            redirect = asking.pop(index, None)
            place = redirect or self._slots[key_slot(calls[index].key)]
            if place is None:
                answers[index] = Unreachable(f"no node of {self._address} serves this slot")
            else:
                by_place.setdefault(place, []).append((index, calls[index], redirect is not None))
        exchanges = [
            NodeExchange(self._node(place), place, commands) for place, commands in by_place.items()
        ]
        again: list[int] = []
        try:
            under_way = exchanges
            for exchange in under_way:
                self._send(exchange, answers)
            while under_way := [exchange for exchange in under_way if not exchange.ended]:
                for exchange in under_way:  # one piece ahead of the one whose answers are read
                    self._send(exchange, answers)
                for exchange in under_way:
                    again += self._read(exchange, asking, answers)
        finally:
            for exchange in exchanges:
                exchange.close()
        return again

    def _send(self, exchange: NodeExchange, answers: list[Any]) -> None:
        try:
            exchange.send()
        except (OSError, redis.RedisError, StoreError) as error:
            self._give_up(exchange, error, answers)

    def _read(
        self, exchange: NodeExchange, asking: dict[int, Place], answers: list[Any]
    ) -> list[int]:
        if exchange.ended:  # its last piece could not be sent
            return []
        again, lacking = [], []
        try:
            for index, answer in exchange.read():
                answers[index] = answer
                if isinstance(answer, redis.ResponseError):
                    answers[index] = translated(answer, exchange.node.name)
                    if self._redirected(answer, index, exchange.place, asking):
                        again.append(index)
                    elif function_is_missing(answer) and not self._read_only:
                        lacking.append(index)
        except (OSError, redis.RedisError) as error:
            self._give_up(exchange, error, answers)
        else:
            exchange.node.answered()
        if lacking:
            try:
                check_functions(self.ask, exchange.place)
                again += lacking
            except StoreError as refusal:  # newer ones, no memory for them, or a replica by now
                for index in lacking:
                    answers[index] = refusal
        return again

    def _give_up(self, exchange: NodeExchange, error: Exception, answers: list[Any]) -> None:
        known = translated(error, exchange.node.name)
        if error is not known:
            exchange.node.failed(known)
        for index in exchange.abandon():
            answers[index] = known

    def _redirected(
        self, error: redis.ResponseError, index: int, place: Place, asking: dict[int, Place]
    ) -> bool:
        """Whether the call was refused only because its slot is on another node."""
        if isinstance(error, exceptions.MovedError):
            if not self._address.cluster:
                return False
            self._slots[error.slot_id] = (error.host or place[0], error.port)
            return True
        if isinstance(error, exceptions.AskError):
            asking[index] = (error.host or place[0], error.port)
            return True
        return False

    def _node(self, place: Place) -> NodeConnections:
        with self._lock:
            if place not in self._nodes:
                self._nodes[place] = NodeConnections(place, self._address, self._limits)
            return self._nodes[place]

    def ask(self, place: Place, *words: bytes | str | int) -> Any:
        """Send one command to one node; return the reply. Raises StoreError."""
        exchange = NodeExchange(self._node(place), place, [(0, Call(b"", words), False)])
        node = exchange.node
        try:
            exchange.send()
            [(_, answer)] = exchange.read()
        except (OSError, redis.RedisError, StoreError) as error:
            known = translated(error, node.name)
            if known is error:
                raise
            node.failed(known)
            try:
                raise known from error
            finally:
                del known  # else the error keeps this frame and its callers' frames
        finally:
            exchange.close()
        node.answered()
        if isinstance(answer, redis.ResponseError):
            raise translated(answer, node.name) from answer
        return answer

    def _look(self, *, first: bool = False) -> None:
        """Read the map of slots from any node that answers; check the nodes when `first`."""
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
                        check_functions(self.ask, primary)
                        check_eviction(self.ask, primary)
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
                f"{SETTING}: expected Redis or Valkey at {self._address}, got: {trouble}"
            ) from trouble

    def _slots_from(self, place: Place) -> list[Place | None]:
        info = self.ask(place, "INFO", "cluster")
        clustered = b"cluster_enabled:1" in info
        if clustered != self._address.cluster:
            scheme = "redis+cluster://" if clustered else "redis://"
            raise StoreError(
                f"{SETTING}: expected {scheme}, because {place[0]}:{place[1]} is "
                f"{'a node of a cluster' if clustered else 'not in a cluster'}"
            )
        slots: list[Place | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        if not clustered:
            return [place] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, primary, *_ in self.ask(place, "CLUSTER", "SLOTS"):
            owner = (primary[0].decode() if primary[0] else place[0], int(primary[1]))
            slots[first : last + 1] = [owner] * (last + 1 - first)
        return slots
