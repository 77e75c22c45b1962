"""Our own processes, kept running: started, started again when they die, stopped in order.

Every part of headrace survives being killed (what it knows is in Kafka and in the parameter
server), so whoever runs several on one machine has only to start them again. This does it for
`headrace run` and `headrace demo`. On a cluster it is the orchestrator's work, not this file's.

Each part is a process on a leash (`deploy.local.services.child_process`), so none outlives this
one, with a thread that waits for its end and then decides:

    asked to stop                       done
    ended with status 2                 a person must put something right: failed, at once
    ended with status 75                Kafka or the store is not there: failed if it never was,
                                        else start again, however often, after a pause that grows
    died young, `quick_failures` times  it will not work: failed
    anything else                       start again, after a pause that grows with quick failures

A part that failed stays down, and `check` raises what is known about it, the end of its log
included. The others run on until the caller, who calls `check` where it waits, stops them.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.deploy.errors import PartFailed
from headrace.deploy.local.services import ChildProcess
from headrace.deploy.termination import REFUSED, UNREACHABLE

logger = logging.getLogger(__name__)

HEADRACE = (sys.executable, "-P", "-m", "headrace")
_GIVING_WAY = ("nice", "-n", "10")
"""POSIX: the priority with which what follows is run."""


@dataclass(frozen=True)
class SupervisedPart:
    """A process to keep running."""

    name: str
    """Names its log, and the part to whoever asks."""

    arguments: tuple[str, ...]
    """What follows `headrace` on the command line."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Beside the environment of this process."""

    grace_s: float = 10.0
    """From SIGTERM to SIGKILL. A part finishes the push or the transaction it is in: seconds."""

    gives_way: bool = False
    """Whether it gets a core only while no other part wants it: for who watches the others."""


@dataclass(frozen=True)
class SupervisorSettings:
    """When to start a part again, and when to give up."""

    first_pause_s: float = 0.1
    """Before the first restart: next to nothing, for a crash is rare and freshness is not."""

    longest_pause_s: float = 5.0
    """The pause doubles with each quick failure, so that a part that cannot work costs little."""

    quick_s: float = 10.0
    """Who ran longer than this had begun to work: importing and connecting take 2 to 5 s."""

    quick_failures: int = 5
    """Deaths within `quick_s` of a start, in a row, after which we give up."""

    log_lines: int = 20
    """How much of the log is shown with a failure."""


@dataclass(frozen=True)
class Restart:
    """A part died and was started again."""

    part: str
    status: int
    """How it had ended; negative for a signal."""
    pid: int
    """The new process."""


class Supervisor:
    """Keeps parts running. A context manager: leaving it stops every part, the last started first.

    Logs are `directory/<part>.log`. `remove` is a directory that leashes delete if this process
    dies. `on_restart` is called from a thread of the part.
    """

    def __init__(
        self,
        directory: Path,
        settings: SupervisorSettings | None = None,
        *,
        command: Sequence[str] = HEADRACE,
        remove: Path | None = None,
        on_restart: Callable[[Restart], None] = lambda _: None,
    ) -> None:
        self._directory = directory
        self._settings = settings or SupervisorSettings()
        self._command = tuple(command)
        self._remove = remove
        self._on_restart = on_restart
        self._kept: dict[str, _PartThread] = {}

    def start(self, part: SupervisedPart) -> None:
        """Start `part` and keep it running. Raises OSError if there is nothing to execute."""
        if part.name in self._kept:
            raise ValueError(f"expected a part that is not kept yet, found {part.name!r} again")

        def launch() -> ChildProcess:
            return ChildProcess(
                [*(_GIVING_WAY if part.gives_way else ()), *self._command, *part.arguments],
                self._directory / f"{part.name}.log",
                grace_s=part.grace_s,
                env={**os.environ, **part.environment},
                remove=self._remove,
            )

        self._kept[part.name] = _PartThread(part, launch, self._settings, self._on_restart)

    def pid(self, name: str) -> int:
        """The process that runs part `name` now, or ran it last."""
        return self._kept[name].pid

    def alive(self, name: str) -> bool:
        """Whether part `name` runs now; False between its death and its restart."""
        return self._kept[name].alive

    def restarts(self, name: str) -> int:
        """How often part `name` was started again."""
        return self._kept[name].restarts

    def log_path(self, name: str) -> Path:
        """Where part `name` writes."""
        return self._directory / f"{name}.log"

    def check(self) -> None:
        """Raise PartFailed if a part has failed; to be called wherever something is waited for."""
        for kept in self._kept.values():
            if kept.failure is not None:
                raise kept.failure

    def stop(self, *names: str) -> None:
        """Stop these parts, one after the other in this order; all, the last started first.

        A part has ended when the next is asked to. A part stopped before is left alone.
        """
        for name in names or tuple(reversed(self._kept)):
            self._kept[name].stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class _PartThread:
    """One part: its process of the moment, and the thread that waits for that to end."""

    def __init__(
        self,
        part: SupervisedPart,
        launch: Callable[[], ChildProcess],
        settings: SupervisorSettings,
        on_restart: Callable[[Restart], None],
    ) -> None:
        self._part = part
        self._launch = launch
        self._settings = settings
        self._on_restart = on_restart
        self._stopping = threading.Event()
        self._turn = threading.Lock()  # a restart and a stop exclude each other
        self._process = launch()
        self._started_s = time.monotonic()
        self._quick_failures = 0
        self.restarts = 0
        self._worked = False  # ever, for longer than `quick_s`
        self.failure: PartFailed | None = None
        self._thread = threading.Thread(target=self._keep, name=f"keep {part.name}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.alive

    def stop(self) -> None:
        with self._turn:
            self._stopping.set()
            self._process.stop()
        self._thread.join()

    def _keep(self) -> None:
        while True:
            status = self._process.join()
            if self._stopping.is_set():
                return
            self._process.stop()  # it has ended; this closes its pipe
            quick = time.monotonic() - self._started_s < self._settings.quick_s
            self._quick_failures = self._quick_failures + 1 if quick else 0
            self._worked = self._worked or not quick
            self.failure = self._judged(status)
            if self.failure is not None or not self._start_again(status):
                return

    def _judged(self, status: int) -> PartFailed | None:
        if status == UNREACHABLE and self._worked:
            return None  # what it needs was there, and will be again
        if status in (REFUSED, UNREACHABLE):
            why = "refused to run"
        elif self._quick_failures >= self._settings.quick_failures:
            why = f"died {self._quick_failures} times, each within {self._settings.quick_s:g} s"
        else:
            return None
        tail = self._process.log_tail(self._settings.log_lines)
        return PartFailed(
            f"{self._part.name} {why} (status {status}); the end of {self._process.log_path}:\n"
            f"{tail}"
        )

    def _start_again(self, status: int) -> bool:
        """Pause, then start; False if asked to stop meanwhile."""
        settings = self._settings
        pause_s = settings.first_pause_s * 2 ** max(0, self._quick_failures - 1)
        logger.warning("%s ended with status %d, starting it again", self._part.name, status)
        if self._stopping.wait(min(pause_s, settings.longest_pause_s)):
            return False
        with self._turn:
            if self._stopping.is_set():
                return False
            try:
                self._process = self._launch()
            except OSError as error:
                self.failure = PartFailed(f"{self._part.name} could not be started again: {error}")
                return False
            self._started_s = time.monotonic()
            self.restarts += 1
        self._on_restart(Restart(self._part.name, status, self._process.pid))
        return True
