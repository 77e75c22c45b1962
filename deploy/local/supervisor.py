"""Supervises the processes of headrace on one machine: starts, restarts and stops them.

Every part of headrace survives being killed, because its state is in Kafka and in the parameter
server. A supervisor therefore only has to restart what died. This one serves `headrace run`,
`up` and `demo`. On a cluster the orchestrator does this work. A Kafka and a Valkey of this machine
keep their data and their ports, so the supervisor restarts them too (`adopt`).

Each part is a `ChildProcess`, so no part outlives this process. One thread a part waits for its end
and then decides:

    stopped on request                 done
    exit status 2                      an operator must put something right: failed
    exit status 75                     Kafka or the store is unreachable: failed if the part never
                                       worked, else restarted without limit, with growing pauses
    too many quick failures in a row   the part cannot work: failed
    any other end                      restarted, after the pause of the `RestartPolicy`

A failed part stays down. `check` raises its failure with the end of its log. The other parts run on
until the caller, who calls `check` wherever it waits, stops them.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from headrace.deploy.errors import PartFailed
from headrace.deploy.local.services.child_process import ChildProcess
from headrace.deploy.local.services.server_process import ServerProcess
from headrace.runtime.restart_policy import RestartHistory, RestartPolicy
from headrace.runtime.termination import REFUSED, UNREACHABLE

HEADRACE = (sys.executable, "-P", "-m", "headrace")
_LOW_PRIORITY = ("nice", "-n", "10")
"""POSIX: runs the command behind it with lower priority."""
_LOG_LINES = 20
"""Lines of the log that a failure shows."""
_IN_ORDER_S = 2.0
"""Parts stop one after another for this time, then all at once. Each usually takes under 1 s."""


@dataclass(frozen=True)
class SupervisedPart:
    """A process to keep running."""

    name: str
    """Names the log and the part in messages."""

    arguments: tuple[str, ...]
    """Words after `headrace` on the command line. No secrets: other users can read them."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of this process."""

    grace_s: float = 10.0
    """From SIGTERM to SIGKILL. A part finishes its push or transaction in seconds."""

    gives_way: bool = False
    """Whether the part runs with low priority, so that it takes no CPU from the others."""


@dataclass(frozen=True)
class Restart:
    """A part died and was restarted."""

    part: str
    status: int
    """Exit status of the dead process; negative for a signal."""
    died: int
    """The dead process."""
    pid: int
    """The new process."""
    log_path: Path
    last_line: str
    """The end of the log when the process died."""

    def in_words(self) -> str:
        """Return a line for the terminal. It quotes the log of a process that ended by itself."""
        how = signal.Signals(-self.status).name if self.status < 0 else f"status {self.status}"
        said = f" ends with: {self.last_line}" if self.status > 0 and self.last_line else ""
        return (
            f"{self.part} (process {self.died}) died ({how}) and was restarted; its log "
            f"{self.log_path}{said}"
        )


class Supervisor:
    """Keeps parts running. As a context manager, it stops every part in reverse order of start.

    Logs are `directory/<part>.log`. `remove` is a directory that is deleted if this process dies.
    `on_restart` is called from a thread of the part.
    """

    def __init__(
        self,
        directory: Path,
        policy: RestartPolicy | None = None,
        *,
        command: Sequence[str] = HEADRACE,
        remove: Path | None = None,
        on_restart: Callable[[Restart], None] = lambda _: None,
    ) -> None:
        self._directory = directory
        self._policy = policy or RestartPolicy()
        self._command = tuple(command)
        self._remove = remove
        self._on_restart = on_restart
        self._kept: dict[str, _PartThread] = {}
        self._adopted: list[_PartThread] = []

    def start(self, part: SupervisedPart) -> None:
        """Start `part` and keep it running. Raises OSError if the command cannot be executed."""
        if part.name in self._kept:
            raise ValueError(f"expected a new part, got {part.name!r} a second time")

        def launch() -> ChildProcess:
            return ChildProcess(
                [*(_LOW_PRIORITY if part.gives_way else ()), *self._command, *part.arguments],
                self._directory / f"{part.name}.log",
                grace_s=part.grace_s,
                env={**os.environ, **part.environment},
                remove=self._remove,
            )

        self._kept[part.name] = _PartThread(
            part.name, launch(), launch, self._policy, self._on_restart
        )

    def adopt(self, server: ServerProcess, policy: RestartPolicy) -> None:
        """Restart a launched server on its data and its port when it dies. Its owner stops it."""

        def launch() -> ChildProcess:
            server.launch()
            return server.launched()

        self._adopted.append(
            _PartThread(server.program, server.launched(), launch, policy, self._on_restart)
        )

    def pid(self, name: str) -> int:
        """The process id of part `name`, or of its last process."""
        return self._kept[name].pid

    def alive(self, name: str) -> bool:
        """Whether part `name` runs now. False between its death and its restart."""
        return self._kept[name].alive

    def restarts(self, name: str) -> int:
        """The number of restarts of part `name`."""
        return self._kept[name].restarts

    def log_path(self, name: str) -> Path:
        """The log of part `name`."""
        return self._directory / f"{name}.log"

    def check(self) -> None:
        """Raise PartFailed if a part has failed. Callers check this wherever they wait."""
        for kept in (*self._adopted, *self._kept.values()):
            if kept.failure is not None:
                raise kept.failure

    def stop(self, *names: str) -> None:
        """Stop these parts one after another in this order, or all in reverse order of start.

        No part is restarted from now on. A part has ended before the next is stopped, unless that
        takes seconds. A part that was stopped before is skipped.
        """
        stopped = [self._kept[name] for name in names or tuple(reversed(self._kept))]
        for kept in stopped:
            kept.end_restarts()
        in_order_until_s = time.monotonic() + _IN_ORDER_S
        for kept in stopped:
            kept.ask_to_stop(max(0.0, in_order_until_s - time.monotonic()))
        for kept in stopped:
            kept.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for adopted in self._adopted:
            adopted.end_restarts()
        self.stop()


class _PartThread:
    """One part: its current process, and the thread that waits for the end of that process."""

    def __init__(
        self,
        name: str,
        process: ChildProcess,
        launch: Callable[[], ChildProcess],
        policy: RestartPolicy,
        on_restart: Callable[[Restart], None],
    ) -> None:
        self._name = name
        self._launch = launch
        self._history = RestartHistory(policy)
        self._on_restart = on_restart
        self._stopping = threading.Event()
        self._turn = threading.Lock()  # a restart and a stop exclude each other
        self._process = process
        self._started_s = time.monotonic()
        self.restarts = 0
        self._worked = False  # once, for longer than `quick_s`
        self.failure: PartFailed | None = None
        self._thread = threading.Thread(target=self._keep, name=f"keep {name}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.alive

    def end_restarts(self) -> None:
        with self._turn:
            self._stopping.set()

    def ask_to_stop(self, wait_s: float) -> None:
        """Ask the process to stop, and wait for its end for so long at most."""
        self._process.ask_to_stop()
        self._process.wait(wait_s)

    def stop(self) -> None:
        self._process.stop()
        self._thread.join()

    def _keep(self) -> None:
        while True:
            status = self._process.join()
            if self._stopping.is_set():
                return
            self._process.stop()  # already ended: this closes the pipe
            lived_s = time.monotonic() - self._started_s
            self._worked = self._worked or lived_s >= self._history.policy.quick_s
            # Kafka or the store was reachable once and will be again
            outage = self._worked and status == UNREACHABLE
            self._history.died(lived_s, outage=outage)
            self.failure = None if outage else self._failure(status)
            if self.failure is not None or not self._restart(status):
                return

    def _failure(self, status: int) -> PartFailed | None:
        """Return why the part is not restarted; None if it is."""
        history = self._history
        if status in (REFUSED, UNREACHABLE):
            why = "refused to run"
        elif history.exhausted:
            why = f"died {history.quick_failures} times, each within {history.policy.quick_s:g} s"
        else:
            return None
        tail = self._process.log_tail(_LOG_LINES)
        return PartFailed(
            f"{self._name} {why} (status {status}); the end of {self._process.log_path}:\n{tail}"
        )

    def _restart(self, status: int) -> bool:
        """Pause, then start; return False if stopped meanwhile."""
        died, last_line = self._process, self._process.log_tail(1)
        if self._stopping.wait(self._history.pause_s):
            return False
        with self._turn:
            if self._stopping.is_set():
                return False
            try:
                self._process = self._launch()
            except OSError as error:
                self.failure = PartFailed(f"{self._name} could not be restarted: {error}")
                return False
            self._started_s = time.monotonic()
            self.restarts += 1
        self._on_restart(
            Restart(
                part=self._name,
                status=status,
                died=died.pid,
                pid=self._process.pid,
                log_path=died.log_path,
                last_line=last_line,
            )
        )
        return True
