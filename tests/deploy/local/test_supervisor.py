"""The supervisor restarts parts that die, reports parts that refuse, and stops them in order."""

import os
import queue
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.deploy.errors import PartFailed
from headrace.deploy.local.services.waiting import wait_until
from headrace.deploy.local.supervisor import Restart, SupervisedPart, Supervisor
from headrace.runtime.restart_policy import RestartPolicy
from headrace.runtime.termination import REFUSED, UNREACHABLE
from tests.deploy.local.processes import (
    ENDED_WITHIN_S,
    process_of,
    still_running,
)

PYTHON = (sys.executable, "-c")
SLEEP = "import time; time.sleep(1000)"
SAYS_WHEN_IT_STOPS = """
import pathlib, signal, sys, time
def stopped(*_):
    with pathlib.Path(sys.argv[2]).open("a") as file:
        file.write(sys.argv[1] + " ")
    sys.exit(0)
signal.signal(signal.SIGTERM, stopped)
print("ready", flush=True)
time.sleep(1000)
"""


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether `condition` holds before the deadline."""
    return wait_until(condition, ENDED_WITHIN_S)


def failure_of(supervisor: Supervisor) -> str:
    """Wait for a part to fail; return the message."""

    def failed() -> bool:
        try:
            supervisor.check()
        except PartFailed:
            return True
        return False

    assert eventually(failed)
    with pytest.raises(PartFailed) as raised:
        supervisor.check()
    return str(raised.value)


def test_a_killed_part_is_restarted_and_the_restart_is_reported(tmp_path: Path) -> None:
    told: queue.SimpleQueue[Restart] = queue.SimpleQueue()
    with Supervisor(tmp_path, command=PYTHON, on_restart=told.put) as supervisor:
        supervisor.start(SupervisedPart("learner", (SLEEP,)))
        first = supervisor.pid("learner")

        os.kill(first, signal.SIGKILL)
        restart = told.get(timeout=ENDED_WITHIN_S)

        assert (restart.part, restart.status) == ("learner", -signal.SIGKILL)
        assert supervisor.pid("learner") == restart.pid != first
        assert supervisor.alive("learner")
        assert supervisor.restarts("learner") == 1
        supervisor.check()
        second = process_of(restart.pid)
    assert still_running([second]) == []


@pytest.mark.parametrize("status", [REFUSED, UNREACHABLE])
def test_a_part_that_refuses_to_start_is_reported_and_not_restarted(
    tmp_path: Path, status: int
) -> None:
    program = f"import sys; print('line 3: expected a transform'); sys.exit({status})"
    with Supervisor(tmp_path, command=PYTHON) as supervisor:
        supervisor.start(SupervisedPart("joiner", (program,)))

        message = failure_of(supervisor)

        assert f"joiner refused to run (status {status})" in message
        assert "line 3: expected a transform" in message
        assert supervisor.restarts("joiner") == 0


def test_a_part_has_the_environment_of_its_supervisor_and_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TOPICS_PREFIX", "team-a.")
    program = "import os; print(os.environ['HEADRACE_TOPICS_PREFIX'], os.environ['OWN']); exit(2)"
    with Supervisor(tmp_path, command=PYTHON) as supervisor:
        supervisor.start(SupervisedPart("server", (program,), {"OWN": "secret"}))
        assert "team-a. secret" in failure_of(supervisor)


def test_a_part_that_keeps_dying_fails_with_the_end_of_its_log(tmp_path: Path) -> None:
    policy = RestartPolicy(first_pause_s=0.01, quick_failures=3)
    with Supervisor(tmp_path, policy, command=PYTHON) as supervisor:
        supervisor.start(SupervisedPart("keeper", ("raise SystemExit('out of luck')",)))

        message = failure_of(supervisor)

        assert "keeper died 3 times" in message
        assert "out of luck" in message
        assert supervisor.restarts("keeper") == 2
        assert not supervisor.alive("keeper")


def test_deaths_far_apart_do_not_add_up_to_a_failure(tmp_path: Path) -> None:
    policy = RestartPolicy(first_pause_s=0.01, quick_s=0.0, quick_failures=2)
    with Supervisor(tmp_path, policy, command=PYTHON) as supervisor:
        supervisor.start(SupervisedPart("learner", ("raise SystemExit(1)",)))

        assert eventually(lambda: supervisor.restarts("learner") >= 4)
        supervisor.check()


def test_parts_stop_in_the_given_order_and_the_rest_in_reverse(
    tmp_path: Path,
) -> None:
    order = tmp_path / "order"
    names = ("server", "keeper", "learner", "joiner")
    with Supervisor(tmp_path, command=PYTHON) as supervisor:
        for name in names:
            supervisor.start(SupervisedPart(name, (SAYS_WHEN_IT_STOPS, name, str(order))))
        for name in names:
            log = supervisor.log_path(name)
            assert eventually(lambda log=log: "ready" in log.read_text())  # type: ignore[misc]

        supervisor.stop("keeper")

        assert order.read_text() == "keeper "
        assert supervisor.restarts("keeper") == 0
    assert order.read_text() == "keeper joiner learner server "


def test_a_part_waiting_for_its_restart_can_be_stopped(tmp_path: Path) -> None:
    policy = RestartPolicy(first_pause_s=1000.0, longest_pause_s=1000.0)
    with Supervisor(tmp_path, policy, command=PYTHON) as supervisor:
        supervisor.start(SupervisedPart("learner", ("raise SystemExit(1)",)))
        assert eventually(lambda: not supervisor.alive("learner"))

    assert supervisor.restarts("learner") == 0


def test_a_part_that_lost_kafka_is_restarted_until_kafka_is_back(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    program = f"""
import pathlib, sys, time
tries = pathlib.Path({str(tries)!r})
tries.open("a").write("x")
count = len(tries.read_text())
if count == 1:
    time.sleep(0.6)  # works for longer than `quick_s`
if count < 9:
    sys.exit({UNREACHABLE})
time.sleep(1000)
"""
    policy = RestartPolicy(first_pause_s=0.01, longest_pause_s=0.05, quick_s=0.5, quick_failures=3)
    with Supervisor(tmp_path, policy, command=PYTHON) as supervisor:
        supervisor.start(SupervisedPart("learner", (program,)))
        assert eventually(lambda: supervisor.restarts("learner") == 8)
        supervisor.check()
        assert supervisor.alive("learner")
