"""Processes that are kept running as long as their parent: started again when they die.

A member says when it is ready, or why it cannot work. Who could not work even once is not started
again: an operator has to put something right, and the crew ends with what was said. Who was ready
once and died (killed, out of memory, a bug) is started again at once, and after a pause if it died
young. Whoever is left works on meanwhile.

None outlives its parent: each waits, in a thread, for the parent's end, and then ends as if told
to. Ctrl-C in a terminal reaches all of them; they leave it to the parent.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import pickle
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from headrace.serving.errors import ServingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_YOUNG_S = 10.0
"""Who died earlier than so long after its start waits longer before the next."""
_MOST_FAILURES = 5
"""Deaths in a row without a word, of one that was never ready."""
_SPAWNING = multiprocessing.get_context("spawn")


class WorkerContext:
    """What a member's work is handed: when to end, and whom to tell that it is ready."""

    def __init__(self, channel: Connection) -> None:
        self.stop = threading.Event()
        self._channel = channel

    def ready(self) -> None:
        """Say that the work has begun."""
        with contextlib.suppress(OSError):  # nobody is left to be told
            self._channel.send(None)

    @property
    def orphaned(self) -> bool:
        """Whether the parent is gone."""
        parent = multiprocessing.parent_process()
        return parent is not None and not parent.is_alive()

    def leash(self) -> None:
        """Begin to wait for the parent's end."""
        parent = multiprocessing.parent_process()
        assert parent is not None  # this is a member's process

        def wait() -> None:
            parent.join()
            self.stop.set()

        threading.Thread(target=wait, name="leash", daemon=True).start()


def _enter(work: Callable[[WorkerContext], None], channel: Connection, level: int) -> None:
    """Where a member's process begins."""
    duty = WorkerContext(channel)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: duty.stop.set())
    duty.leash()
    logging.basicConfig(
        level=level,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)-7s %(processName)s: %(name)s: %(message)s",
    )
    try:
        work(duty)
    except Exception as error:
        log.debug("cannot go on", exc_info=True)
        with contextlib.suppress(OSError):
            channel.send(_sent(error))
        sys.exit(1)


def _sent(error: Exception) -> Exception:
    """Return the error if it arrives as it is, else what it says."""
    with contextlib.suppress(Exception):
        if str(pickle.loads(pickle.dumps(error))) == str(error):  # noqa: S301 - our own
            return error
    return ServingError(f"{type(error).__name__}: {error}")


class ManagedProcess:
    """One process of a crew, and those that took its place."""

    def __init__(self, name: str, work: Callable[[WorkerContext], None]) -> None:
        """`work` is called in a process of its own, which it has to be able to reach."""
        self.name, self._work = name, work
        self.was_ready = False
        self._process: SpawnProcess | None = None
        self._channel: Connection | None = None
        self._failures = 0
        self._said: Exception | None = None
        self._began_s = self._due_s = 0.0

    def look(self) -> None:
        """Take what it says, and start it if it is not there. Raises what it cannot work for."""
        if self._process is None:
            if time.monotonic() >= self._due_s:
                try:
                    self._start()
                except OSError as error:  # no memory, too many processes: it may pass
                    log.error("%s cannot be started now: %s", self.name, error)
                    self._due_s = time.monotonic() + _LONGEST_PAUSE_S
            return
        self._listen()
        if self._process.exitcode is None:
            return
        self._listen()  # what it said last
        self._bury(self._process.exitcode)

    def tell(self) -> None:
        """Let it come to its end."""
        if self._process is not None and self._process.exitcode is None:
            self._process.terminate()

    def end(self, within_s: float) -> None:
        """Wait for its end, and make it one then."""
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
        process = _SPAWNING.Process(target=_enter, args=(self._work, theirs, level), name=self.name)
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
        lived_s = time.monotonic() - self._began_s
        self._failures = self._failures + 1 if lived_s < _YOUNG_S else 0
        why = f"exit status {exit_code}" if self._said is None else str(self._said)
        if not self.was_ready and self._failures >= _MOST_FAILURES:
            raise ServingError(f"expected {self.name} to begin to work, found its end: {why}")
        pause_s = min(_FIRST_PAUSE_S * 2**self._failures, _LONGEST_PAUSE_S)
        self._due_s = time.monotonic() + (pause_s if self._failures else 0.0)
        log.error("%s ended (%s); it is started again", self.name, why)

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.close()
        self._process = self._channel = None


def end_all(members: Sequence[ManagedProcess], within_s: float) -> None:
    """Let all come to their end, together."""
    for each in members:
        each.tell()
    deadline_s = time.monotonic() + within_s
    for each in members:
        each.end(max(0.0, deadline_s - time.monotonic()))
