"""Tests the queue of unproven connections: its order, its budget, and who waits in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import uvicorn
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from headrace.runtime.http import bounded_protocol
from headrace.runtime.http.server import SingleWriteProtocol
from headrace.runtime.http.small_reads import PROVEN_BYTES, UNPROVEN_BYTES, SmallReads
from headrace.runtime.http.unproven_connections import (
    ANSWER_S,
    BUDGET_S,
    BURST_S,
    CONNECTION_S,
    MOST_HELD_BYTES,
    SHARE,
    UnprovenQueue,
)
from tests.effort import examples
from tests.memory_connection import MemoryConnection, until

POST = b"POST / HTTP/1.1\r\nHost: server\r\nContent-Length: 0\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: server\r\n\r\n"


class Turns:
    """Stands for the event loop and its clock: a turn runs what the turn before called soon.

    A turn in which only later calls are due begins when the first of them is.
    """

    def __init__(self) -> None:
        self.now_s, self._soon = 0.0, list[Any]()
        self._later: list[tuple[float, Any]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._later.append((self.now_s + delay_s, call))

    def next(self) -> None:
        if not self._soon and self._later:
            self.now_s = max(self.now_s, min(due_s for due_s, _ in self._later))
        due = [call for due_s, call in self._later if due_s <= self.now_s]
        self._later = [(due_s, call) for due_s, call in self._later if due_s > self.now_s]
        calls, self._soon = self._soon + due, []
        for call in calls:
            call()


class Peer:
    """A connection whose bytes take this long to process."""

    def __init__(
        self, turns: Turns, queue: UnprovenQueue, cost_s: float, log: list[tuple[Peer, bytes]]
    ) -> None:
        self._turns, self._queue, self._cost_s, self._log = turns, queue, cost_s, log

    def take_turn(self, data: bytes) -> None:
        self._turns.now_s += self._cost_s
        self._queue.spend(self._cost_s)
        self._log.append((self, data))


def queue_of(turns: Turns) -> UnprovenQueue:
    loop: Any = turns
    return UnprovenQueue(loop, lambda: turns.now_s)


@settings(deadline=None, max_examples=examples(100))
@given(
    st.lists(st.floats(0.0, 3 * BUDGET_S), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.binary(max_size=3)), max_size=30),
)
def test_waiting_bytes_are_processed_in_order_and_one_turn_stays_near_its_budget(
    costs: list[float], arrivals: list[tuple[int, bytes]]
) -> None:
    turns, log = Turns(), list[tuple[Peer, bytes]]()
    queue = queue_of(turns)
    peers = [Peer(turns, queue, cost, log) for cost in costs]
    sent = [(peers[i % len(peers)], data) for i, data in arrivals]
    for peer, data in sent:
        queue.wait(peer, data)
    while queue.busy:
        before_s, done = turns.now_s, len(log)
        turns.next()
        assert len(log) > done, "each turn serves one at least"
        assert turns.now_s - before_s <= BUDGET_S + max(costs) + 1e-9
    assert log == sent


def test_bytes_beyond_the_bound_are_processed_at_once() -> None:
    turns = Turns()
    queue = queue_of(turns)
    queue.wait(Peer(turns, queue, 0.0, []), bytes(MOST_HELD_BYTES - 10))
    assert not queue.admits(10)
    assert queue.admits(11)
    turns.next()
    assert queue.admits(10)


def test_failed_connections_take_no_more_than_their_share_of_the_time() -> None:
    turns, log = Turns(), list[tuple[Peer, bytes]]()
    queue = queue_of(turns)
    peer = Peer(turns, queue, 2 * BUDGET_S, log)
    for _ in range(10_000):
        queue.wait(peer)
    while turns.now_s < 10.0:
        turns.next()
    spent_s = len(log) * 2 * BUDGET_S
    assert SHARE * turns.now_s <= spent_s <= BURST_S + SHARE * turns.now_s + 2 * BUDGET_S


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the status that the path names, 200 by default."""
    await receive()
    status = int(scope["path"][1:] or 200)
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def _config() -> uvicorn.Config:
    config = uvicorn.Config(_answer, ws="none", log_config=None, proxy_headers=False)
    config.load()
    return config


def _client(state: ServerState | None = None) -> MemoryConnection:
    return MemoryConnection(SingleWriteProtocol, _config(), state)


@pytest.mark.parametrize(
    ("requests", "proven"),
    [
        ([POST], True),
        ([GET], False),
        ([POST.replace(b"/ ", b"/401 ")], False),
        ([POST.replace(b"/ ", b"/503 ")], False),
        ([GET, GET + POST.replace(b"/ ", b"/401 ")], False),
        ([POST.replace(b"/ ", b"/401 "), POST], True),
        ([POST, POST.replace(b"/ ", b"/401 ")], True),
    ],
)
def test_a_post_answered_with_success_proves_a_connection(
    requests: list[bytes], proven: bool
) -> None:
    async def talk() -> bool:
        client = _client()
        for request in requests:
            await client.send(request)
            await until(lambda: client.protocol.cycle.response_complete)
            await asyncio.sleep(0)
        await client.received_once(lambda: True)
        return client.protocol.proven

    assert asyncio.run(talk()) is proven


@pytest.mark.parametrize(("path", "spent_s"), [(b"/200", -CONNECTION_S), (b"/401", ANSWER_S)])
def test_a_request_spends_time_of_the_share_unless_it_is_answered_with_success(
    monkeypatch: pytest.MonkeyPatch, path: bytes, spent_s: float
) -> None:
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)  # no parsing takes time

    async def talk() -> float:
        client = _client()
        queue = client.protocol._queue
        queue._now_s, queue._credited_s = (lambda: 0.0), 0.0  # the share does not grow
        before_s = queue._credit_s = BURST_S / 2
        await client.send(POST.replace(b"/ ", path + b" "))
        await until(lambda: client.protocol.cycle.response_complete)
        await client.received_once(lambda: True)
        return before_s - queue._credit_s

    assert asyncio.run(talk()) == pytest.approx(spent_s, abs=ANSWER_S / 2)


class NoTurns(UnprovenQueue):
    """A queue without any budget: all wait until `_renew` is called."""

    def admits(self, size: int) -> bool:
        return False

    def _renew_soon(self) -> None:
        pass


def test_a_proven_connection_is_answered_while_all_others_wait() -> None:
    async def talk() -> None:
        client = _client()
        await client.send(POST)
        await until(lambda: client.protocol.proven)
        queues: WeakKeyDictionary[Any, Any] = bounded_protocol._QUEUES
        loop: Any = asyncio.get_running_loop()
        waiting = queues[client.state] = NoTurns(loop)
        others = [_client(client.state) for _ in range(3)]
        for other in others:
            other.protocol.data_received(POST)
        await client.send(POST)
        await until(lambda: client.received.count(b"HTTP/1.1 200") == 2)
        assert all(other.paused and not other.received for other in others)
        while waiting.busy:
            waiting._renew()
        await until(lambda: all(o.received.startswith(b"HTTP/1.1 200") for o in others))
        assert not any(other.paused for other in others)
        for each in (client, *others):
            await each.received_once(lambda: True)

    asyncio.run(talk())


def test_a_connection_that_proves_itself_while_it_waits_is_read_at_once() -> None:
    async def talk() -> None:
        client = _client()
        client.protocol._queue._credit_s = -0.1  # the share of the time to come is spent already
        client.protocol._reading_s = 1e-9  # but its turn has begun
        client.protocol.data_received(POST)
        before = client.paused
        await until(lambda: client.protocol.proven)
        assert (before, client.paused) == (True, False)
        await client.send(POST)
        await client.received_once(lambda: client.received.count(b"HTTP/1.1 200") == 2)

    asyncio.run(talk())


def test_bytes_of_a_connection_that_waits_stay_in_the_system() -> None:
    async def talk() -> None:
        client = _client()
        queue = client.protocol._queue
        steady_s, stopped_s = queue._now_s, queue._credited_s
        queue._now_s = lambda: stopped_s  # time that passes would earn a share
        client.protocol._reading_s = 1e-9  # its turn has begun
        queue._credit_s = 1e-9  # and uses up the share
        client.protocol.data_received(POST[:10])  # the begin of a head
        assert client.paused
        assert queue._held_bytes == 0
        queue._now_s = steady_s
        await client.received_once(lambda: True)

    asyncio.run(talk())


def test_a_server_reads_little_of_a_connection_that_waits() -> None:
    async def talk() -> None:
        config, state = _config(), ServerState()
        made = list[SingleWriteProtocol]()
        bounded_protocol._QUEUES[state] = NoTurns(asyncio.get_running_loop())

        def connection() -> SmallReads:
            made.append(SingleWriteProtocol(config, state, {}, asyncio.get_running_loop()))
            return SmallReads(made[-1])

        server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"x" * 1_000_000)
        queue = bounded_protocol._QUEUES[state]
        await until(lambda: len(queue._waiting) == 2)  # its wish to be read, and its first bytes
        await asyncio.sleep(0)
        assert queue._held_bytes <= UNPROVEN_BYTES
        made[-1].transport.close()  # it does not read, so it does not see that the client leaves
        await until(lambda: not state.connections)
        writer.transport.abort()
        server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(talk())


def test_a_proven_connection_reads_as_much_as_comes() -> None:
    async def talk() -> None:
        client = _client()
        reads = SmallReads(client.protocol)
        before = len(reads.get_buffer(-1))
        client.protocol.prove()
        after = reads.get_buffer(-1)
        after[: len(POST)] = POST
        reads.buffer_updated(len(POST))
        assert (before, len(after)) == (UNPROVEN_BYTES, PROVEN_BYTES)
        await client.received_once(lambda: b"200 OK" in client.received)

    asyncio.run(talk())
