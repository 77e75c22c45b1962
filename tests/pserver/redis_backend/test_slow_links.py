"""Links that cannot carry a round of commands within the timeout."""

import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from headrace.pserver.errors import Unreachable
from headrace.pserver.redis_backend.address import parse_address
from headrace.pserver.redis_backend.cluster_client import ClusterClient
from headrace.pserver.redis_backend.node_connection import Call, WaitLimits

COMMANDS, BYTES = 128, 128 << 10  # 16 MiB: more than the buffers between client and server hold
CARRIED = 3 << 20
WAITING = WaitLimits(answer_timeout_ms=1000, piece_bytes=256 << 10)
DEADLINE_S = 60
READ_BYTES = 64 << 10


class StallingLink:
    """A proxy before a server: each connection carries some bytes to the server and then stalls."""

    def __init__(self, server: tuple[str, int], carried_bytes: int) -> None:
        self._server, self._carried_bytes = server, carried_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._closing, self._closed = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.stalled = 0

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()
        return f"redis://{host}:{port}"

    def close(self) -> None:
        self._closing.close()
        self._thread.join()
        self._listener.close()
        self._closed.close()

    def _run(self) -> None:
        left: dict[socket.socket, int] = {}  # bytes that a client may still send
        other: dict[socket.socket, socket.socket] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._closed, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    end = key.fileobj
                    assert isinstance(end, socket.socket)
                    if end is self._closed:
                        for each in other:
                            each.close()
                        return
                    if end is self._listener:
                        client, _ = end.accept()
                        server = socket.create_connection(self._server)
                        other |= {client: server, server: client}
                        left[client] = self._carried_bytes
                        selector.register(client, selectors.EVENT_READ)
                        selector.register(server, selectors.EVENT_READ)
                        continue
                    try:
                        brought = end.recv(READ_BYTES)
                        other[end].sendall(brought)
                    except OSError:
                        brought = b""
                    if end in left and brought:
                        left[end] -= len(brought)
                        if left[end] <= 0:
                            self.stalled += 1
                            selector.unregister(end)
                    elif not brought:
                        for each in (end, other[end]):
                            if each in selector.get_map():
                                selector.unregister(each)
                            each.close()
                            left.pop(each, None)
                        other.pop(other.pop(end))


@pytest.fixture
def link(valkey_node: str) -> Iterator[StallingLink]:
    [server] = parse_address(valkey_node).hosts
    with closing(StallingLink(server, CARRIED)) as link:
        yield link


def test_a_round_cut_by_a_stalled_link_keeps_the_answers_before_it(link: StallingLink) -> None:
    with closing(ClusterClient(parse_address(link.url), WAITING, read_only=True)) as nodes:
        answers = nodes.run([Call(b"", ("ECHO", bytes(BYTES)))] * COMMANDS)
    acknowledged = [answer for answer in answers if not isinstance(answer, Unreachable)]
    assert link.stalled
    assert 0 < len(acknowledged) < COMMANDS
    assert all(isinstance(answer, Unreachable) for answer in answers[len(acknowledged) :])


def test_repeated_rounds_get_through_a_link_that_cannot_carry_one(link: StallingLink) -> None:
    """The caller repeats only the commands that were not acknowledged, as a learner does."""
    waiting = COMMANDS
    rounds = 0
    deadline = time.monotonic() + DEADLINE_S
    with closing(ClusterClient(parse_address(link.url), WAITING, read_only=True)) as nodes:
        while waiting:
            assert time.monotonic() < deadline, f"{waiting} of {COMMANDS} not acknowledged"
            answers = nodes.run([Call(b"", ("ECHO", bytes(BYTES)))] * waiting)
            refused = sum(isinstance(answer, Unreachable) for answer in answers)
            rounds += refused < waiting
            waiting = refused
    assert link.stalled >= 2
    assert rounds > 2


def test_a_command_larger_than_a_piece_arrives_whole(valkey_node: str) -> None:
    sent = [bytes([n]) * size for n, size in enumerate((1, 3 << 20, 5, 256 << 10, 1 << 20, 2))]
    patient = WaitLimits(piece_bytes=WAITING.piece_bytes)
    with closing(ClusterClient(parse_address(valkey_node), patient, read_only=True)) as nodes:
        assert nodes.run([Call(b"", ("ECHO", each)) for each in sent]) == sent
