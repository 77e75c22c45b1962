"""A Kafka whose clients connect through a proxy that makes single requests late.

The proxy does what networks and slow brokers do: a request waits in the buffers of a broker while
its client waits for the answer, or loses the connection and sends it again.
"""

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from headrace.deploy.local.services.kafka import HOST, KafkaNode
from headrace.deploy.local.services.ports import free_port

PRODUCE, INIT_PRODUCER, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = (
    0,
    22,
    *range(24, 27),
    28,
)
REQUESTS = {
    "Produce": PRODUCE,
    "AddPartitionsToTxn": ADD_PARTITIONS,
    "AddOffsetsToTxn": ADD_OFFSETS,
    "EndTxn": END_TXN,
    "TxnOffsetCommit": TXN_OFFSET_COMMIT,
}
OTHER = -1
"""Kind of the requests of others."""
_ANSWER_S = 10.0


@dataclass(slots=True)
class Moment:
    """When late requests reach the broker: before the n-th request of a kind in a transaction."""

    kind: int
    nth: int = 1
    behind: int | None = None
    """That request is slow: it arrives only behind one of this kind."""
    then: Callable[[], None] = lambda: None
    """Called when the late requests have arrived, before anything else."""
    seen: Counter[int] = field(default_factory=Counter)

    @property
    def reached(self) -> bool:
        """Whether the request is the next one."""
        return self.seen[self.kind] >= self.nth and (
            self.behind is None or self.seen[self.behind] > 0
        )


@dataclass(slots=True)
class RequestProxy:
    """Passes requests on, whole ones, or holds some of one transactional id."""

    target: int
    producer: bytes = b""
    """The transactional id."""
    port: int = field(default_factory=free_port)
    late: int | None = None
    """The next request of this kind is held, with all that follows on its connection."""
    breaks: bool = True
    """Whether that connection then breaks."""
    moment: Moment | None = None
    held: list[bytes] = field(default_factory=list)
    producers: int = 0
    """Producers begun when late requests arrived."""
    seen: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Requests by kind and version."""
    _slow: list[tuple["_Connection", bytes]] = field(default_factory=list)
    _listener: socket.socket = field(init=False)

    def start(self) -> None:
        """Accept connections."""
        self._listener = socket.create_server((HOST, self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """Accept no more."""
        self._listener.shutdown(socket.SHUT_RDWR)

    def arrive(self) -> None:
        """Let the broker read what is late, and wait for its answers."""
        self.producers = self.count(INIT_PRODUCER)
        while self.held:
            with socket.create_connection((HOST, self.target), timeout=_ANSWER_S) as server:
                server.sendall(self.held.pop(0))
                _read_frame(server)

    def count(self, kind: int) -> int:
        """Return how many requests of a kind were sent."""
        return sum(count for (each, _), count in self.seen.items() if each == kind)

    def _accept(self) -> None:
        with self._listener, suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection((HOST, self.target))
                except OSError:
                    client.close()
                    continue
                connection = _Connection(client, server)
                threading.Thread(target=self._pass, args=[connection], daemon=True).start()

    def _pass(self, connection: "_Connection") -> None:
        answers = threading.Thread(target=connection.answer, daemon=True)
        answers.start()
        frozen = False
        with suppress(OSError):
            while frame := _read_frame(connection.client):
                kind, version = struct.unpack_from(">hh", frame, 4)
                ours = self.producer in frame
                self.seen[kind, version] += ours
                if ours and kind == self.late:
                    self.late, frozen = None, True
                    self.held.append(frame)
                    if self.breaks:
                        break
                if not frozen:
                    self._pass_on(connection, kind if ours else OTHER, frame)
        connection.shut()
        answers.join()
        connection.close()

    def _pass_on(self, connection: "_Connection", kind: int, frame: bytes) -> None:
        moment = self.moment
        if moment is None:
            connection.send(frame)
            return
        moment.seen[kind] += 1
        slow = kind == moment.kind and moment.seen[kind] >= moment.nth
        if not slow:
            connection.send(frame)
        else:
            self._slow.append((connection, frame))
        if moment.reached:
            self.moment = None
            connection.wait_answered()
            self.arrive()
            moment.then()
            for owner, waiting in self._slow:
                owner.send(waiting)
            self._slow.clear()
        elif kind == END_TXN:
            moment.seen.clear()


class _Connection:
    """One connection of a client, and its other half to the broker."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self._server = client, server
        self._unanswered = 0
        self._changed = threading.Condition()

    def send(self, frame: bytes) -> None:
        """Send a request to the broker."""
        with self._changed:
            self._unanswered += 1
        self._server.sendall(frame)

    def wait_answered(self) -> None:
        """Wait until the broker has answered all requests."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unanswered, _ANSWER_S)

    def answer(self) -> None:
        """Pass answers on, until the broker closes the connection."""
        with suppress(OSError):
            while frame := _read_frame(self._server):
                self.client.sendall(frame)
                with self._changed:
                    self._unanswered -= 1
                    self._changed.notify_all()
            self.client.shutdown(socket.SHUT_RDWR)

    def shut(self) -> None:
        """End both halves."""
        for end in (self.client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the sockets back."""
        self.client.close()
        self._server.close()


def _read_frame(sender: socket.socket) -> bytes:
    """Return the next frame with its length; empty at the end."""
    head = _read(sender, 4)
    return head and head + _read(sender, struct.unpack(">I", head)[0])


def _read(sender: socket.socket, size: int) -> bytes:
    blocks = b""
    while len(blocks) < size:
        block = sender.recv(size - len(blocks))
        if not block:
            return b""
        blocks += block
    return blocks


class KafkaBehindProxy(KafkaNode):
    """A broker that advertises the port of the proxy."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.proxy = RequestProxy(self.port)
        self.proxy.start()

    def _properties(self) -> dict[str, object]:
        listener = f"PLAINTEXT://{HOST}:{self.proxy.port}"
        return {**super()._properties(), "advertised.listeners": listener}
