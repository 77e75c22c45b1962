"""Runs worker processes and restarts those that die.

A worker reports that it is ready, or the error that stops it. A worker that never became ready is
not restarted: an operator has to put something right, and the pool ends with that error. A worker
that was ready and died (killed, out of memory, a bug) is restarted as `RestartPolicy` says. The
other workers go on meanwhile.

No worker outlives its parent: each watches the parent in a thread and then stops as after SIGTERM.
Ctrl-C in a terminal reaches every process; the workers ignore it and the parent stops them. Workers
write log lines at the level of the parent.
"""

import contextlib
import logging
import multiprocessing
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from headrace.runtime.parent_guard import call_when_readable
from headrace.runtime.restart_policy import RestartHistory, RestartPolicy
from headrace.serving.errors import ServingError

log = logging.getLogger(__name__)

_SPAWNING = multiprocessing.get_context("spawn")


class WorkerContext:
    """Connects a worker with its parent: the stop event, and the report that it is ready."""

    def __init__(self, channel: Connection) -> None:
        self.stop = threading.Event()
        self._channel = channel

    def ready(self) -> None:
        """Report that the work has begun."""
        with contextlib.suppress(OSError):  # the parent is gone
            self._channel.send(None)

    @property
    def orphaned(self) -> bool:
        """Whether the parent is gone."""
        parent = multiprocessing.parent_process()
        return parent is not None and not parent.is_alive()


def _enter(
    work: Callable[[WorkerContext], None],
    channel: Connection,
    level: int,
    formatter: logging.Formatter | None,
) -> None:
    """Run `work` in the new process."""
    context = WorkerContext(channel)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: context.stop.set())
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a worker's process
    call_when_readable(parent.sentinel, context.stop.set)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler])
    try:
        work(context)
    except Exception as error:
        log.debug("the work failed", exc_info=True)
        with contextlib.suppress(OSError):
            channel.send(_sent(error))
        sys.exit(1)


def _sent(error: Exception) -> Exception:
    """Return the error if it can be pickled unchanged, else a ServingError with its text."""
    with contextlib.suppress(Exception):
        if str(pickle.loads(pickle.dumps(error))) == str(error):  # noqa: S301 - our own
            return error
    return ServingError(f"{type(error).__name__}: {error}")


class ManagedProcess:
    """One worker, restarted when it dies."""

    def __init__(
        self,
        name: str,
        work: Callable[[WorkerContext], None],
        policy: RestartPolicy | None = None,
        formatter: logging.Formatter | None = None,
    ) -> None:
        """`work` is pickled and called in the process of the worker.

        formatter: of the worker's log lines.
        """
        self.name, self._work, self._formatter = name, work, formatter
        self.was_ready = False
        self._process: SpawnProcess | None = None
        self._channel: Connection | None = None
        self._history = RestartHistory(policy or RestartPolicy())
        self._said: Exception | None = None
        self._began_s = self._due_s = 0.0

    def supervise(self) -> None:
        """Read the worker's reports and start the worker if it is due.

        Raises the error of a worker that never became ready.
        """
        if self._process is None:
            if time.monotonic() >= self._due_s:
                try:
                    self._start()
                except OSError as error:  # no memory, too many processes: temporary
                    log.error("%s cannot be started now: %s", self.name, error)
                    self._due_s = time.monotonic() + self._history.policy.longest_pause_s
            return
        self._listen()
        if self._process.exitcode is None:
            return
        self._listen()  # its last report
        self._bury(self._process.exitcode)

    def tell(self) -> None:
        """Send SIGTERM."""
        if self._process is not None and self._process.exitcode is None:
            self._process.terminate()

    def end(self, within_s: float) -> None:
        """Wait for the worker's end, and kill it after `within_s`."""
        if self._process is None:
            return
        self._process.join(within_s)
        if self._process.exitcode is None:
            log.warning("%s did not end within %.0f s: killed", self.name, within_s)
            self._process.kill()
            self._process.join()
        self._close()

    def _start(self) -> None:
        self._channel, theirs = _SPAWNING.Pipe(duplex=False)
        level = logging.getLogger().getEffectiveLevel()
        entry = self._work, theirs, level, self._formatter
        process = _SPAWNING.Process(target=_enter, args=entry, name=self.name)
        try:
            process.start()
        except OSError:
            self._close()
            raise
        finally:
            theirs.close()
        self._process, self._began_s, self._said = process, time.monotonic(), None
        log.info("%s is process %d", self.name, process.pid)

    def _listen(self) -> None:
        assert self._channel is not None
        with contextlib.suppress(EOFError, OSError):
            while self._channel.poll():
                said = self._channel.recv()
                if said is None:
                    self.was_ready = True
                else:
                    self._said = said

    def _bury(self, exit_code: int) -> None:
        self._close()
        if self._said is not None and not self.was_ready:
            raise self._said
        self._history.died(time.monotonic() - self._began_s)
        why = f"exit status {exit_code}" if self._said is None else str(self._said)
        if not self.was_ready and self._history.exhausted:
            raise ServingError(f"expected {self.name} to become ready, got its end: {why}")
        self._due_s = time.monotonic() + self._history.pause_s
        log.error("%s ended (%s); restarting it", self.name, why)

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.close()
        self._process = self._channel = None


def end_all(members: Sequence[ManagedProcess], within_s: float) -> None:
    """Stop all workers at the same time."""
    for each in members:
        each.tell()
    deadline_s = time.monotonic() + within_s
    for each in members:
        each.end(max(0.0, deadline_s - time.monotonic()))
