"""A Kafka whose clients connect through a proxy that delays, copies and cuts single requests."""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from headrace.deploy.local.services.kafka import HOST, KafkaNode
from headrace.deploy.local.services.ports import free_port

PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 0, 24, 25, 26, 28
REQUESTS = {
    "Produce": PRODUCE,
    "AddPartitionsToTxn": ADD_PARTITIONS,
    "AddOffsetsToTxn": ADD_OFFSETS,
    "EndTxn": END_TXN,
    "TxnOffsetCommit": TXN_OFFSET_COMMIT,
}


@dataclass(slots=True)
class HeldRequest:
    """A request that the broker has not read yet, though its client has no connection to it now."""

    port: int
    frame: bytes

    def arrive(self) -> None:
        """Let the broker read it, and wait for its answer."""
        with socket.create_connection((HOST, self.port), timeout=10.0) as server:
            server.sendall(self.frame)
            _read_frame(server)


@dataclass(slots=True)
class RequestProxy:
    """Passes requests on, whole ones, and asks before each what to do with it."""

    target: int
    port: int = field(default_factory=free_port)
    cut: int | None = None
    """The next request of this kind is held, and the client's connection breaks behind it."""
    before: dict[int, Callable[[], object]] = field(default_factory=dict)
    """Called before the next request of a kind is passed on."""
    held: list[HeldRequest] = field(default_factory=list)
    seen: list[tuple[int, int]] = field(default_factory=list)
    """Kind and version of each request."""
    _listener: socket.socket = field(init=False)

    def start(self) -> None:
        """Accept connections."""
        self._listener = socket.create_server((HOST, self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """Accept no more."""
        self._listener.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with self._listener, suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection((HOST, self.target))
                except OSError:
                    client.close()
                    continue
                threading.Thread(target=self._pass, args=[client, server], daemon=True).start()

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        answers = threading.Thread(target=_answer, args=[server, client], daemon=True)
        answers.start()
        try:
            while frame := _read_frame(client):
                kind, version = struct.unpack_from(">hh", frame, 4)
                self.seen.append((kind, version))
                if kind == self.cut:
                    self.cut = None
                    self.held.append(HeldRequest(self.target, frame))
                    break
                if (act := self.before.pop(kind, None)) is not None:
                    act()
                server.sendall(frame)
        except OSError:
            pass
        for end in (client, server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        answers.join()
        client.close()
        server.close()


def _answer(server: socket.socket, client: socket.socket) -> None:
    with suppress(OSError):
        while block := server.recv(1 << 16):
            client.sendall(block)
        client.shutdown(socket.SHUT_RDWR)


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
