"""Runs `headrace` as a process, with its output and its leftovers."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

HEADRACE = (sys.executable, "-P", "-m", "headrace")
GENEROUS_S = 400.0


def headrace(
    *arguments: str, timeout_s: float = GENEROUS_S, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*HEADRACE, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=_environment(variables),
        check=False,
    )


class Running:
    """A command under way, whose output is read line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """All that was printed so far."""
        with self._news:
            return "".join(self._lines)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Return the first match in the output; fails with the output if the process ends first."""
        deadline_s = time.monotonic() + GENEROUS_S
        with self._news:
            while (found := re.search(pattern, "".join(self._lines))) is None:
                ended = self.process.poll() is not None and not self._reader.is_alive()
                assert not ended, f"no {pattern!r}, ended {self.process.poll()}:\n{self._lines}"
                left_s = deadline_s - time.monotonic()
                assert left_s > 0, f"no {pattern!r} within {GENEROUS_S} s:\n{self._lines}"
                self._news.wait(min(left_s, 0.5))
        return found

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, list[psutil.Process]]:
        """Send a signal; return the exit status and what still runs of all that it started."""
        offspring = psutil.Process(self.process.pid).children(recursive=True)
        assert offspring
        self.process.send_signal(number)
        try:
            status = self.process.wait(GENEROUS_S)
        except subprocess.TimeoutExpired:
            running = [each.cmdline() for each in offspring if each.is_running()]
            raise AssertionError(f"still runs, with {running}, after:\n{self.output}") from None
        self._reader.join(60)
        _, left = psutil.wait_procs(offspring, timeout=60)
        return status, left

    def end(self) -> int:
        """Wait for the end; return the exit status."""
        status = self.process.wait(GENEROUS_S)
        self._reader.join(60)
        return status

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._news:
                    self._lines.append(line)
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()


@contextlib.contextmanager
def running(*arguments: str, folder: Path | None = None, **variables: str) -> Iterator[Running]:
    """Start a command in a folder, by default in this one. A failed test leaves no process."""
    process = subprocess.Popen(
        [*HEADRACE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=_environment(variables),
    )
    try:
        yield Running(process)
    finally:
        if process.poll() is None:
            offspring = psutil.Process(process.pid).children(recursive=True)
            for each in [*offspring, psutil.Process(process.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        process.wait()


def _environment(variables: dict[str, str]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HEADRACE_") or name == "HEADRACE_KAFKA_JARS"
    }
    return {**kept, "COLUMNS": "200", "PYTHONUNBUFFERED": "1", **variables}
