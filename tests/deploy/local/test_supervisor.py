"""The supervisor restarts parts that die, reports parts that refuse, and stops them in order."""

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.deploy.errors import PartFailed
from headrace.deploy.local.services.valkey import ValkeyNode
from headrace.deploy.local.services.waiting import wait_until
from headrace.deploy.local.supervisor import Restart, SupervisedPart, Supervisor
from headrace.runtime.restart_policy import RestartPolicy
from headrace.runtime.termination import REFUSED, UNREACHABLE
from tests.deploy.local.processes import ENDED_WITHIN_S, process_of, still_running
from tests.running_server import running_server

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


def test_parts_stop_in_the_given_order_and_the_rest_in_reverse(tmp_path: Path) -> None:
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
    sys.exit(1 if count == 6 else {UNREACHABLE})  # one crash among them
time.sleep(1000)
"""
    policy = RestartPolicy(first_pause_s=0.01, longest_pause_s=0.05, quick_s=0.5, quick_failures=3)
    with Supervisor(tmp_path, policy, command=PYTHON) as supervisor:
        supervisor.start(SupervisedPart("learner", (program,)))
        assert eventually(lambda: supervisor.restarts("learner") == 8)
        supervisor.check()
        assert supervisor.alive("learner")


def test_a_part_that_ends_while_the_others_stop_is_not_restarted(tmp_path: Path) -> None:
    """The first to stop takes until the second has died, which its supervisor must not restart."""
    dead = tmp_path / "dead"
    lingers = f"""
import pathlib, signal, sys, time
def stopped(*_):
    while not pathlib.Path({str(dead)!r}).exists():
        time.sleep(0.01)
    time.sleep(0.5)  # longer than the pause before a restart
    sys.exit(0)
signal.signal(signal.SIGTERM, stopped)
print("ready", flush=True)
time.sleep(1000)
"""
    told: queue.SimpleQueue[Restart] = queue.SimpleQueue()
    policy = RestartPolicy(first_pause_s=0.01)
    with Supervisor(tmp_path, policy, command=PYTHON, on_restart=told.put) as supervisor:
        supervisor.start(SupervisedPart("learner", (SLEEP,)))
        supervisor.start(SupervisedPart("joiner", (lingers,)))
        assert eventually(lambda: "ready" in supervisor.log_path("joiner").read_text())
        stopping = threading.Thread(target=supervisor.stop)
        stopping.start()
        os.kill(supervisor.pid("learner"), signal.SIGKILL)
        assert eventually(lambda: not supervisor.alive("learner"))
        dead.touch()
        stopping.join()
    assert told.empty()
    assert supervisor.restarts("learner") == 0


def test_parts_that_take_long_to_stop_stop_at_the_same_time(tmp_path: Path) -> None:
    """Each part ends only once all were asked to stop, and would be killed if it waited alone."""
    order, names = tmp_path / "order", ("server", "learner", "joiner")
    waits_for_all = f"""
import pathlib, signal, sys, time
def stopped(*_):
    file = pathlib.Path(sys.argv[2])
    with file.open("a") as open_file:
        open_file.write(sys.argv[1] + " ")
    while len(file.read_text().split()) < {len(names)}:
        time.sleep(0.01)
    print("ended", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stopped)
print("ready", flush=True)
time.sleep(1000)
"""
    with Supervisor(tmp_path, command=PYTHON) as supervisor:
        for name in names:
            arguments = (waits_for_all, name, str(order))
            supervisor.start(SupervisedPart(name, arguments, grace_s=30.0))
        logs = [supervisor.log_path(name) for name in names]
        assert eventually(lambda: all("ready" in log.read_text() for log in logs))
    assert [log.read_text().split() for log in logs] == [["ready", "ended"]] * len(names)


def test_a_killed_server_returns_with_its_data_and_fails_when_it_keeps_dying(
    tmp_path: Path,
) -> None:
    told: queue.SimpleQueue[Restart] = queue.SimpleQueue()
    policy = RestartPolicy(first_pause_s=0.01, quick_s=1000.0, quick_failures=2)
    node = ValkeyNode(tmp_path / "valkey")
    with running_server(node), Supervisor(tmp_path, on_restart=told.put) as supervisor:
        supervisor.adopt(node, policy)
        assert node.call("SET", "key", "kept") == "OK"
        os.kill(node.pid, signal.SIGKILL)
        restart = told.get(timeout=ENDED_WITHIN_S)
        node.wait_ready()
        assert (restart.part, restart.pid) == ("valkey-server", node.pid)
        assert node.call("GET", "key") == "kept"
        supervisor.check()

        os.kill(node.pid, signal.SIGKILL)
        message = failure_of(supervisor)

        assert "valkey-server died 2 times" in message
        assert str(tmp_path / "valkey" / "valkey.log") in message
    assert told.empty()
    node.launch()  # of its owner: nothing else starts or stops it after the supervisor
    node.wait_ready()
    node.stop()
