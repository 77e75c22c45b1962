"""Free ports for servers that must know their port before they start.

Kafka advertises its port and a cluster node gossips it, so "let the kernel choose" comes too late.
Ports are below the kernel's ephemeral range (from 32768 on Linux, 49152 on macOS). In that range an
outgoing connection may take the port between the check and the start, or while a killed server is
down. Ports are drawn at random, so that pipelines that start at the same moment do not try the same
ports in the same order.

A server may start to listen a minute after its port was chosen, and a restarted server returns to
its port. A process therefore reserves its ports for its lifetime, by a lock on one byte of a file
that all processes of a user share in the directory of temporary files. If that file cannot be
opened, there is no reservation between processes.

`KeptPorts` gives a pipeline that starts again on its data the ports that its clients know.
"""

import fcntl
import functools
import json
import os
import secrets
import socket
import tempfile
from pathlib import Path

HOST = "127.0.0.1"
LOWEST_PORT = 20_000
PAST_HIGHEST_PORT = 32_768
TRIES = 200

_given: set[int] = set()  # a port that its server has not bound yet must not be given out twice


def free_port() -> int:
    """Return a free port of 127.0.0.1, each only once in the lifetime of this process.

    No other process of this user gets the port in that time. Raises OSError.
    """
    for _ in range(TRIES):
        port = LOWEST_PORT + secrets.randbelow(PAST_HIGHEST_PORT - LOWEST_PORT)
        if take_port(port):
            return port
    raise OSError(
        f"expected a free port in {LOWEST_PORT}..{PAST_HIGHEST_PORT - 1} of {HOST}, "
        f"got none in {TRIES} tries"
    )


class KeptPorts:
    """Ports by name, which a directory keeps for the next process. Call `save` once it is ours."""

    def __init__(self, directory: Path | None) -> None:
        """directory: None keeps nothing."""
        self._path = None if directory is None else directory / "ports.json"
        self._ports = _read_ports(self._path)
        self.moved: list[str] = []
        """A line for each port that another process has taken meanwhile."""

    def take(self, name: str) -> int:
        """Reserve the kept port of this name, or a free one if it is taken or unknown."""
        kept = self._ports.get(name)
        if kept is None or not take_port(kept):
            self._ports[name] = free_port()
            if kept is not None:
                self.moved.append(
                    f"port {kept} of {name} is taken: {name} now listens on port "
                    f"{self._ports[name]}"
                )
        return self._ports[name]

    def save(self) -> None:
        """Write the ports into the directory."""
        if self._path is not None:
            unfinished = self._path.with_suffix(".part")
            unfinished.write_text(json.dumps(self._ports))
            unfinished.replace(self._path)


def _read_ports(path: Path | None) -> dict[str, int]:
    """Return the ports in a file; none if it cannot be read, because any free port works."""
    try:
        found = json.loads(path.read_text()) if path is not None else {}
        return {str(name): port for name, port in found.items() if isinstance(port, int)}
    except (OSError, ValueError, AttributeError):
        return {}


def take_port(port: int, host: str = HOST) -> bool:
    """Reserve this port, if it is free; return whether it was."""
    if port in _given or not _lock(port) or not is_free(port, host):
        return False
    _given.add(port)
    return True


def _lock(port: int) -> bool:
    """Lock a port against other processes; return False if another process has it."""
    file = _locks()
    if file is None:
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):  # depends on the system
        return False
    except OSError:  # this file system has no locks
        pass
    return True


@functools.cache
def _locks() -> int | None:
    """Open the file of locks. It is never closed, because that would release every lock."""
    path = Path(tempfile.gettempdir()) / f"headrace-ports-{os.getuid()}"
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None


def is_free(port: int, host: str = HOST) -> bool:
    """Whether a server could listen on `port` of `host` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
