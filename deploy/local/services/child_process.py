"""Keeps a process from outliving the one that asked for it.

A parent that is killed with SIGKILL cannot clean up, and `atexit`, signal handlers and context
managers all run inside the parent. So between parent and process stands a small process of its own,
the leash (this file, run as a script; the standard library alone, so that it starts in 40 ms):

    parent ──pipe──► leash ──► the process

The leash holds the read end of a pipe whose write end only the parent has. The pipe answers in two
ways. A byte means "stop": SIGTERM to the process group, SIGKILL after the grace. Its end means that
the parent is gone, however that came about: the same, and then the leash removes what the parent
would have removed (`remove`, a temporary directory; nothing in it is worth a grace, so the
process is killed at once). On Linux the process also gets SIGKILL from the kernel when its leash is
killed (PR_SET_PDEATHSIG). That mechanism alone would not do between parent and process: it exists
on Linux only, and fires when the *thread* that started the process ends.

Leash and process have a session of their own, so Ctrl-C in a terminal reaches the parent only,
which then stops its processes in the order it wants. The leash ends as the process ended: same exit
status, same signal.
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
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

STOP = b"s"
PIPE = 0  # the leash has the read end as its standard input
MARGIN_S = 5.0  # what a leash may take beyond the grace before the parent kills it


class ChildProcess:
    """A running process on a leash, seen from the parent. Start it by making one.

    `pid` is the process itself, not its leash. Output of both goes to `log_path`, appended.
    `remove` is a directory to delete if this parent dies (see above), None to delete nothing.
    Raises OSError, naming the command, if it cannot be executed.
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
            self._leash = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", __file__),
                    *(str(grace_s), str(remove) if remove else "", *self.command),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=dict(env) if env is not None else None,
                cwd=cwd,
            )
        assert self._leash.stdout is not None
        with self._leash.stdout as report:
            said = report.readline().decode().strip()
        if not said.isdigit():
            self._leash.wait()
            self._close()
            raise OSError(f"expected to start {self.command[0]}, found: {said or 'no answer'}")
        self.pid = int(said)

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while running."""
        return self._leash.poll()

    @property
    def alive(self) -> bool:
        return self._leash.poll() is None

    def wait(self, timeout_s: float) -> int | None:
        """The exit status once it has ended by itself; None if it still runs after `timeout_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._leash.wait(timeout_s)
        return None

    def join(self) -> int:
        """Wait until it has ended, however long that takes; the exit status."""
        return self._leash.wait()

    def kill(self) -> None:
        """SIGKILL to the process, and return when it has ended. What a crash looks like."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._leash.wait()
        self._close()

    def ask_to_stop(self) -> None:
        """Have the leash send SIGTERM, then SIGKILL after the grace; returns at once."""
        assert self._leash.stdin is not None
        if not self._leash.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._leash.stdin.write(STOP)
                self._leash.stdin.flush()

    def stop(self) -> int:
        """Stop the process and return its exit status; within the grace and a margin, always."""
        self.ask_to_stop()
        try:
            return self._leash.wait(self.grace_s + MARGIN_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._leash.kill()
            return self._leash.wait()
        finally:
            self._close()

    def log_tail(self, lines: int = 20) -> str:
        """The last `lines` of the log, for an error message."""
        with self.log_path.open(errors="replace") as log:
            return "".join(deque(log, lines)).rstrip()

    def _close(self) -> None:
        assert self._leash.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._leash.stdin.close()


# ---- From here on: inside the leash ----


def _die_with(leash_pid: int) -> None:
    """In the new process, before it executes: ask the kernel for SIGKILL when the leash ends."""
    if sys.platform != "linux":
        return
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != leash_pid:  # it ended in between: nobody is left to send the signal
        os._exit(1)


class _Guard:
    """One process, the pipe that commands it, and what to do when either ends."""

    def __init__(self, grace_s: float, remove: str, command: list[str]) -> None:
        self._grace_s = grace_s
        self._remove = remove
        leash_pid = os.getpid()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            stderr=sys.stderr.fileno(),
            process_group=0,
            preexec_fn=lambda: _die_with(leash_pid),  # noqa: PLW1509 (no threads yet)
        )

    def run(self) -> int:
        """Wait for the process and say how it ended; the pipe is watched beside."""
        os.set_blocking(PIPE, False)
        os.write(1, f"{self._process.pid}\n".encode())
        signal.signal(signal.SIGTERM, lambda *_: self._signal(signal.SIGTERM))
        threading.Thread(target=self._watch_pipe, daemon=True).start()
        status = self._process.wait()
        self._signal(signal.SIGKILL)  # whatever it started and left behind
        if self._remove and self._parent_gone():
            shutil.rmtree(self._remove, ignore_errors=True)
        return status

    def _watch_pipe(self) -> None:
        select.select([PIPE], [], [])
        if self._remove and self._parent_gone():
            self._signal(signal.SIGKILL)
            return
        self._signal(signal.SIGTERM)
        time.sleep(self._grace_s)  # cut short by the end of the process, which ends the leash
        self._signal(signal.SIGKILL)

    def _parent_gone(self) -> bool:
        """Whether the pipe is at its end. A parent that stops us keeps it open until we end."""
        try:
            while os.read(PIPE, 1):
                pass
        except BlockingIOError:  # nothing more to read, and not the end
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
    """`leash.py GRACE_S REMOVE_OR_EMPTY COMMAND...`, with the parent's pipe as standard input."""
    grace_s, remove, *command = arguments
    try:
        leash = _Guard(float(grace_s), remove, command)
    except (OSError, subprocess.SubprocessError) as error:
        os.write(1, f"{error}\n".encode())
        sys.exit(127)
    _end_like(leash.run())


if __name__ == "__main__":
    main(sys.argv[1:])
