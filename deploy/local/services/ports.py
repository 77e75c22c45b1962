"""Free ports for servers that must know their port before they start.

Kafka advertises its port and a cluster node gossips it, so "let the kernel choose" comes too late.
A port is taken below the kernel's ephemeral range (from 32768 on Linux, 49152 on macOS): up there
any outgoing connection may sit on it between the check and the start, or while a killed server is
down and about to be started again on the same port. Drawn at random, so that several stacks that
start at the same moment do not try the same ones in the same order.

A server may start to listen a minute after its port was chosen, and one that was killed comes back
to its own. So a port is kept from other processes for as long as the one lives that was given it,
by a lock on one byte of a file that a user's processes share, in the directory of temporary files.
Where that file cannot be had, nobody is kept from anything.
"""

import fcntl
import functools
import os
import secrets
import socket
import tempfile
from pathlib import Path

HOST = "127.0.0.1"
LOWEST_PORT = 20_000
PAST_HIGHEST_PORT = 32_768
TRIES = 200

_given: set[int] = set()  # a port not yet bound by its server must not be given out twice


def free_port() -> int:
    """A port of 127.0.0.1 nobody listens on, given out once in the life of this process.

    No other process of this user is given it in that time.
    """
    for _ in range(TRIES):
        port = LOWEST_PORT + secrets.randbelow(PAST_HIGHEST_PORT - LOWEST_PORT)
        if take_port(port):
            return port
    raise OSError(
        f"expected a free port in {LOWEST_PORT}..{PAST_HIGHEST_PORT - 1} of {HOST}, "
        f"found none in {TRIES} tries"
    )


def take_port(port: int, host: str = HOST) -> bool:
    """Give out this very port, if nobody was given it or listens on it; return whether it was."""
    if port in _given or not _lock(port) or not is_free(port, host):
        return False
    _given.add(port)
    return True


def _lock(port: int) -> bool:
    """Lock a port against other processes; return False if another has it."""
    file = _locks()
    if file is None:
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):  # which of them, the system chooses
        return False
    except OSError:  # there are no locks on this file system
        pass
    return True


@functools.cache
def _locks() -> int | None:
    """Open the file of locks, never to be closed: that would give back all of them."""
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
