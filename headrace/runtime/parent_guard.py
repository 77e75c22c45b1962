"""Ends a process when its parent is gone, however the parent ended.

A parent that is killed with SIGKILL cannot clean up: `atexit`, signal handlers and context managers
all run inside the parent. So the parent holds the write end of a pipe and the child watches the
read end, which reaches its end of file when the parent is gone. `call_when_readable` is the watch.
A Python child calls it itself (server workers do). A foreign program cannot, so a small process
runs in between: this file as a script, with the standard library alone, so that it starts in 40 ms.

    parent ──pipe──► guard ──► the process

The guard reacts to two events on the pipe. A byte means "stop": SIGTERM to the process group, then
SIGKILL after the grace period. End of file means that the parent is gone: the same, except when the
parent named a directory to remove. Nothing in that directory is worth a grace period, so the
process is killed at once and the guard removes the directory, as the parent would have done.

On Linux the kernel also kills the process when its guard is killed (PR_SET_PDEATHSIG). That alone
would not do between parent and process: it exists on Linux only, and it fires when the *thread*
that started the process ends.

The guard ends as the process ended: with the same exit status or by the same signal.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

GUARD_SCRIPT = Path(__file__)
"""Run as `GUARD_SCRIPT GRACE_S REMOVE_OR_EMPTY COMMAND...`, the pipe being standard input."""
STOP_BYTE = b"s"
_PIPE = 0  # standard input


def call_when_readable(pipe: int, act: Callable[[], None]) -> None:
    """Start a thread that calls `act` once the pipe has a byte or has reached its end of file."""

    def watch() -> None:
        select.select([pipe], [], [])
        act()

    threading.Thread(target=watch, name="parent guard", daemon=True).start()


def _die_with(guard_pid: int) -> None:
    """In the new process, before exec: ask the kernel for SIGKILL when the guard ends."""
    if sys.platform != "linux":
        return
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != guard_pid:  # the guard ended in between and can send no signal
        os._exit(1)


class _Guard:
    """Runs one process and watches both the process and the pipe."""

    def __init__(self, grace_s: float, remove: str, command: list[str]) -> None:
        self._grace_s = grace_s
        self._remove = remove
        guard_pid = os.getpid()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            stderr=sys.stderr.fileno(),
            process_group=0,
            preexec_fn=lambda: _die_with(guard_pid),  # noqa: PLW1509 (no threads yet)
        )

    def run(self) -> int:
        """Report the process id, wait for the process, and return its exit status."""
        os.set_blocking(_PIPE, False)
        os.write(1, f"{self._process.pid}\n".encode())
        signal.signal(signal.SIGTERM, lambda *_: self._signal(signal.SIGTERM))
        call_when_readable(_PIPE, self._stop)
        status = self._process.wait()
        self._signal(signal.SIGKILL)  # children that the process left behind
        if self._remove and self._parent_gone():
            shutil.rmtree(self._remove, ignore_errors=True)
        return status

    def _stop(self) -> None:
        if self._remove and self._parent_gone():
            self._signal(signal.SIGKILL)
            return
        self._signal(signal.SIGTERM)
        time.sleep(self._grace_s)  # cut short by the end of the process, which ends the guard
        self._signal(signal.SIGKILL)

    def _parent_gone(self) -> bool:
        """Whether the pipe is at its end. A living parent keeps it open until the guard ends."""
        try:
            while os.read(_PIPE, 1):
                pass
        except BlockingIOError:  # nothing to read now, and no end of file
            return False
        return True

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a zombie
            os.killpg(self._process.pid, number)


def _end_like(status: int) -> None:
    """End with the exit status of the process, or by the signal that ended it."""
    if status < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to reset
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(max(status, 0))


def main(arguments: list[str]) -> None:
    """Run a command under guard: GRACE_S, a directory to remove or an empty word, the command."""
    grace_s, remove, *command = arguments
    try:
        guard = _Guard(float(grace_s), remove, command)
    except (OSError, subprocess.SubprocessError) as error:
        os.write(1, f"{error}\n".encode())
        sys.exit(127)
    _end_like(guard.run())


if __name__ == "__main__":
    main(sys.argv[1:])
