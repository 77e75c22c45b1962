"""Managed processes: restarted when they die, and ended with their parent."""

import logging
import multiprocessing
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.popen_spawn_posix import Popen

import psutil
import pytest

from headrace.deploy.process_logs import JsonLines, TextLines
from headrace.pserver.errors import MissingBucket
from headrace.runtime.restart_policy import RestartPolicy
from headrace.serving.errors import ServingError
from headrace.serving.workers.process_pool import ManagedProcess, end_all
from tests.serving.served_models import eventually
from tests.serving.workers.working import (
    be_parent,
    die,
    error_of,
    looked,
    refuse,
    report,
    work,
    work_on,
)


@contextmanager
def looked_after(member: ManagedProcess) -> Iterator[ManagedProcess]:
    try:
        yield member
    finally:
        end_all([member], 10)


def pids(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [int(each) for each in re.findall(r"one is process (\d+)", caplog.text)]


def test_a_killed_worker_is_restarted_and_all_workers_end_on_sigterm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with looked_after(ManagedProcess("one", work)) as member:
        eventually(lambda: looked(member).was_ready)
        [first] = pids(caplog)
        os.kill(first, signal.SIGKILL)
        eventually(lambda: looked(member).was_ready and len(pids(caplog)) == 2)
    assert "one ended (exit status -9); restarting it" in caplog.text
    assert not any(psutil.pid_exists(each) for each in pids(caplog))


@pytest.mark.parametrize(
    ("which", "kind"), [("MissingBucket", MissingBucket), ("AddressTaken", ServingError)]
)
def test_a_worker_that_cannot_start_raises_its_error_in_the_parent(
    which: str, kind: type[Exception]
) -> None:
    with (
        looked_after(ManagedProcess("one", partial(refuse, which))) as member,
        pytest.raises(kind, match=re.escape(str(error_of(which)))),
    ):
        eventually(lambda: looked(member).was_ready)


def test_a_worker_that_dies_repeatedly_before_it_is_ready_is_given_up() -> None:
    with (
        looked_after(ManagedProcess("one", die, RestartPolicy(first_pause_s=0.0))) as member,
        pytest.raises(ServingError, match=r"expected one to become ready.*exit status -9"),
    ):
        eventually(lambda: looked(member).was_ready)


def test_a_worker_that_does_not_end_in_time_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    member = ManagedProcess("one", work_on)
    eventually(lambda: looked(member).was_ready)
    end_all([member], 0.2)
    assert "did not end within" in caplog.text
    assert not psutil.pid_exists(pids(caplog)[0])


@pytest.mark.parametrize(
    ("formatter", "line"),
    [
        (JsonLines(), '"logger": "answers", "message": "the model is old", "process": "one"'),
        (TextLines(), "WARNING one: answers: the model is old"),
    ],
)
def test_a_worker_writes_log_lines_in_the_format_of_its_parent(
    formatter: logging.Formatter, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with looked_after(ManagedProcess("one", report, formatter=formatter)) as member:
        eventually(lambda: looked(member).was_ready)
    assert line in capfd.readouterr().err


def test_no_worker_outlives_a_killed_parent() -> None:
    ours, theirs = multiprocessing.Pipe()
    parent = multiprocessing.get_context("spawn").Process(target=be_parent, args=(theirs,))
    parent.start()
    assert ours.poll(60)
    members = [psutil.Process(each) for each in ours.recv()]
    assert members
    parent.kill()
    parent.join(60)
    ours.close()
    theirs.close()
    _, left = psutil.wait_procs(members, timeout=60)
    assert not left


def test_a_process_start_that_the_system_refuses_is_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with looked_after(ManagedProcess("one", work, RestartPolicy(longest_pause_s=0.0))) as member:
        with monkeypatch.context() as patched:
            patched.setattr(Popen, "_launch", refuse_to_start)
            assert not looked(member).was_ready
        assert "one cannot be started now: no memory" in caplog.text
        eventually(lambda: looked(member).was_ready)


def refuse_to_start(*_: object) -> None:
    raise OSError("no memory")
