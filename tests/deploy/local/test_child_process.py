"""A guarded process ends on request, and when its parent is gone."""

import os
import signal
import sys
from pathlib import Path

import pytest

from headrace.deploy.local.services.child_process import ChildProcess
from headrace.deploy.local.services.waiting import wait_until
from tests.deploy.local.processes import (
    ENDED_WITHIN_S,
    descendants,
    parent,
    process_of,
    still_running,
)

SLEEP = [sys.executable, "-c", "import time; time.sleep(1000)"]
IGNORING_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ignoring", flush=True)
time.sleep(1000)
"""
WITH_CHILD = """
import subprocess, sys
print("started", subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]).pid)
sys.stdout.flush()
sys.stdin.read() or __import__("time").sleep(1000)
"""
PARENT = """
import pathlib, sys, time
from headrace.deploy.local.services.child_process import ChildProcess
directory, program, remove = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
child = ChildProcess([sys.executable, "-c", program], directory / "log", grace_s=0.5,
                  remove=pathlib.Path(remove) if remove else None)
while not (directory / "log").read_text():
    time.sleep(0.01)
print(child.pid, flush=True)
time.sleep(1000)
"""


def test_a_guarded_process_ends_with_its_own_status_and_its_output_is_in_the_log(
    tmp_path: Path,
) -> None:
    process = ChildProcess([sys.executable, "-c", "print('so long'); exit(7)"], tmp_path / "log")

    assert process.join() == 7
    assert process.stop() == 7
    assert process.log_tail() == "so long"


def test_a_guarded_process_ends_with_the_signal_that_killed_it_or_with_sigterm(
    tmp_path: Path,
) -> None:
    killed, stopped = (ChildProcess(SLEEP, tmp_path / name) for name in ("a", "b"))
    assert os.getsid(stopped.pid) != os.getsid(0), "Ctrl-C in the terminal does not reach it"
    os.kill(killed.pid, signal.SIGKILL)

    assert killed.join() == killed.stop() == -signal.SIGKILL
    assert stopped.stop() == -signal.SIGTERM
    assert not stopped.alive


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    process = ChildProcess([sys.executable, "-c", IGNORING_SIGTERM], tmp_path / "log", grace_s=0.3)
    assert wait_until(lambda: process.log_tail() == "ignoring", ENDED_WITHIN_S)

    assert process.stop() == -signal.SIGKILL


def test_a_missing_command_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no-such-command"):
        ChildProcess(["no-such-command"], tmp_path / "log")


@pytest.mark.parametrize("program", [IGNORING_SIGTERM, WITH_CHILD], ids=["no SIGTERM", "a child"])
def test_no_process_is_left_when_the_parent_is_killed(tmp_path: Path, program: str) -> None:
    with parent(PARENT, str(tmp_path), program, "") as (process, line):
        everything = descendants(process.pid)
        assert int(line) in {each.pid for each in everything}

        process.kill()

        assert still_running(everything) == []
    assert (tmp_path / "log").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent")
def test_a_process_ends_when_its_guard_is_killed(tmp_path: Path) -> None:
    process = ChildProcess(SLEEP, tmp_path / "log")
    itself = process_of(process.pid)
    guard = itself.parent()

    guard.kill()

    assert still_running([itself]) == []
    process.stop()
