"""Parent processes for tests that kill them: small programs that start a process and wait."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import psutil

from headrace.deploy.local.services.waiting import wait_until

ENDED_WITHIN_S = 90.0


@contextlib.contextmanager
def parent(program: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `program` in a session of its own; yields it and the first line it printed.

    The program must print one line once it has started. Leftovers of a failed test are killed.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    offspring: list[psutil.Process] = []
    try:
        assert process.stdout is not None
        with process.stdout as said:
            line = said.readline().strip()
            offspring = descendants(process.pid)
            yield process, line
    finally:
        process.kill()
        process.wait()
        for each in offspring:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


def descendants(pid: int) -> list[psutil.Process]:
    """Everything that `pid` started and that runs now."""
    return list(psutil.Process(pid).children(recursive=True))


def process_of(pid: int) -> psutil.Process:
    """The process `pid`, told apart from a later one of the same number."""
    return psutil.Process(pid)


def still_running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that still run after the deadline."""
    wait_until(lambda: not any(map(_runs, processes)), ENDED_WITHIN_S)
    return [each for each in processes if _runs(each)]


def _runs(process: psutil.Process) -> bool:
    try:
        # an orphan that has ended stays a zombie for as long as init likes
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
