"""The lifecycle that Kafka and Valkey nodes share: launch, kill, stop, and the failure to start."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NoReturn

from headrace.deploy.errors import DeployError
from headrace.deploy.local.services.child_process import ChildProcess
from headrace.deploy.local.services.waiting import wait_until


class ServerProcess(ABC):
    """A server that runs as a child process. `launch`, then `wait_ready`.

    After `kill`, `launch` starts it again with its data and its port.
    """

    program: str
    """Name of the server in messages."""

    def __init__(self, start_timeout_s: float) -> None:
        self.start_timeout_s = start_timeout_s
        self._process: ChildProcess | None = None

    @property
    @abstractmethod
    def address(self) -> str:
        """`host:port` of the server."""

    @property
    def pid(self) -> int:
        """Process id of the server. Requires `launch`."""
        return self.launched().pid

    @property
    def alive(self) -> bool:
        """Whether the server runs."""
        return self._process is not None and self._process.alive

    @abstractmethod
    def launch(self) -> None:
        """Start the server without waiting for it."""

    @abstractmethod
    def wait_ready(self) -> None:
        """Return once the server answers. Raises DeployError."""

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.launched().kill()

    def ask_to_stop(self) -> None:
        """Send SIGTERM and return at once."""
        if self._process is not None:
            self._process.ask_to_stop()

    def stop(self) -> None:
        """Stop the server. Does nothing if it was never launched."""
        if self._process is not None:
            self._process.stop()

    def wait_for(self, ready: Callable[[], bool], expected: str) -> None:
        """Return once `ready`. Raises DeployError, which names what was `expected`."""
        process = self.launched()
        if wait_until(ready, self.start_timeout_s, lambda: process.alive):
            return
        self.fail(expected)

    def fail(self, expected: str) -> NoReturn:
        """Raise DeployError with the state of the server and the end of its log."""
        process = self.launched()
        state = "running" if process.alive else f"ended with status {process.poll()}"
        raise DeployError(
            f"expected {expected} from {self.program} at {self.address} within "
            f"{self.start_timeout_s:g} s, got a server that is {state}; the end of "
            f"{process.log_path}:\n{process.log_tail()}"
        )

    def launched(self) -> ChildProcess:
        """Return the process of the server. Requires `launch`."""
        if self._process is None:
            raise RuntimeError(f"expected a launched {self.program} at {self.address}, got none")
        return self._process
