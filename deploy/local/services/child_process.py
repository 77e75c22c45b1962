"""Runs a foreign program that ends with this process, with its output in a log.

The program runs under a guard (`headrace.runtime.parent_guard`), a small process that stops
it on request and when this process is gone. `pid` is that of the program, not of its guard.

Guard and program have a session of their own. Ctrl-C in a terminal therefore reaches this process
only, which then stops its programs in the order it wants.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.runtime.parent_guard import GUARD_SCRIPT, STOP_BYTE

MARGIN_S = 5.0
"""A guard that takes this much longer than the grace period is killed."""


class ChildProcess:
    """A running program under guard. Creating the object starts the program.

    Output of program and guard is appended to `log_path`. `remove` is a directory that the guard
    deletes if this process dies; None deletes nothing.
    Raises OSError, naming the command, if the command cannot be executed.
    """

    def __init__(
        self,
        command: Sequence[str],
        log_path: Path,
        *,
        grace_s: float = 10.0,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        remove: Path | None = None,
    ) -> None:
        self.command = list(command)
        self.log_path = log_path
        self.grace_s = grace_s
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            self._guard = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(GUARD_SCRIPT)),
                    *(str(grace_s), str(remove) if remove else "", *self.command),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=dict(env) if env is not None else None,
                cwd=cwd,
            )
        assert self._guard.stdout is not None
        with self._guard.stdout as report:
            reply = report.readline().decode().strip()
        if not reply.isdigit():
            self._guard.wait()
            self._close()
            raise OSError(f"expected to start {self.command[0]}, got: {reply or 'no answer'}")
        self.pid = int(reply)

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while running."""
        return self._guard.poll()

    @property
    def alive(self) -> bool:
        """Whether the program runs."""
        return self._guard.poll() is None

    def wait(self, timeout_s: float) -> int | None:
        """The exit status once the program has ended; None if it still runs after `timeout_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._guard.wait(timeout_s)
        return None

    def join(self) -> int:
        """Wait for the end of the program without a deadline; return the exit status."""
        return self._guard.wait()

    def kill(self) -> None:
        """Send SIGKILL and return when the program has ended, as after a crash."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._guard.wait()
        self._close()

    def ask_to_stop(self) -> None:
        """Have the guard send SIGTERM, and SIGKILL after the grace period. Returns at once."""
        assert self._guard.stdin is not None
        if not self._guard.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.write(STOP_BYTE)
                self._guard.stdin.flush()

    def stop(self) -> int:
        """Stop the program within the grace period and a margin; return the exit status."""
        self.ask_to_stop()
        try:
            return self._guard.wait(self.grace_s + MARGIN_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._guard.kill()
            return self._guard.wait()
        finally:
            self._close()

    def log_tail(self, lines: int = 20) -> str:
        """The last `lines` of the log, for an error message."""
        with self.log_path.open(errors="replace") as log:
            return "".join(deque(log, lines)).rstrip()

    def _close(self) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.close()
