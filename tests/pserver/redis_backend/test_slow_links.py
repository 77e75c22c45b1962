"""Links that cannot carry a round of commands within the timeout."""

import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

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
        self._ends: list[socket.socket] = []
        self.stalled = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()
        return f"redis://{host}:{port}"

    def close(self) -> None:
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._ends += [client, server]
                for ends in ((client, server, self._carried_bytes), (server, client, math.inf)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, sender: socket.socket, receiver: socket.socket, left: float) -> None:
        with suppress(OSError):
            while brought := sender.recv(READ_BYTES):
                receiver.sendall(brought)
                left -= len(brought)
                if left <= 0:
                    self.stalled += 1
                    return
            receiver.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def link(valkey_node: str) -> Iterator[StallingLink]:
    [server] = parse_address(valkey_node).hosts
    with closing(StallingLink(server, CARRIED)) as link:
        yield link


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
            assert all(isinstance(each, Unreachable) for each in answers[waiting - refused :])
            rounds += refused < waiting
            waiting = refused
    assert link.stalled >= 2
    assert rounds > 2


def test_a_command_larger_than_a_piece_arrives_whole(valkey_node: str) -> None:
    sent = [bytes([n]) * size for n, size in enumerate((1, 3 << 20, 5, 256 << 10, 1 << 20, 2))]
    patient = WaitLimits(piece_bytes=WAITING.piece_bytes)
    with closing(ClusterClient(parse_address(valkey_node), patient, read_only=True)) as nodes:
        assert nodes.run([Call(b"", ("ECHO", each)) for each in sent]) == sent
