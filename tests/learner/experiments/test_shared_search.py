"""A search that machines share decides as the serial runner, whichever machine learned an arm."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from headrace.learner.experiments.executors.shared_task import ChunkSums
from headrace.learner.experiments.executors.study_storage import StudyAddress, open_storage
from headrace.learner.experiments.run_folder import read_history
from tests.learner.experiments.experiment_runs import FILE, log_of, run_stopped, write_files
from tests.learner.experiments.shared_runs import Killed, Machine, run_together

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("optuna")

STORAGES = {"journal": "{}/search.journal", "sqlite": "sqlite:///{}/search.db"}


@pytest.fixture(params=list(STORAGES.values()), ids=list(STORAGES))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of a storage."""
    return str(request.param).format(tmp_path)


@pytest.mark.parametrize("policy", ["immediate", "window"])
def test_two_machines_write_the_history_of_the_serial_runner(
    tmp_path: Path, url: str, policy: str
) -> None:
    experiment = write_files(tmp_path, policy=policy)
    log = log_of(experiment)
    serial = run_stopped(experiment, log, tmp_path / "serial", [])[2]
    machines = [Machine(experiment, log, tmp_path / name, url) for name in ("one", "two")]
    assert run_together(machines) == [serial, serial]
    first, second = (set(machine.learned) for machine in machines)
    assert first
    assert second
    assert not first & second, "both machines learned the same chunk of an arm"


def arms_of(machine: Machine) -> set[str]:
    """Return the arms that a machine learned."""
    return {path.split("/")[1] for path in machine.learned}


def test_the_arms_of_a_killed_machine_are_learned_by_another(tmp_path: Path, url: str) -> None:
    experiment = write_files(tmp_path)
    log = log_of(experiment, 600)
    serial = run_stopped(experiment, log, tmp_path / "serial", [])[2]
    killed = Machine(experiment, log, tmp_path / "killed", url, lease_s=0.5)
    with pytest.raises(Killed):
        killed.run_killed(after=9)
    assert killed.learned
    other = Machine(experiment, log, tmp_path / "other", url, lease_s=0.5)
    assert other.run() == serial
    assert arms_of(killed) & arms_of(other), "the other machine took no arm over"
    again = Machine(experiment, log, tmp_path / "killed", url, lease_s=0.5)
    assert again.run() == serial
    assert not again.learned, "a machine that starts again reads what the other one learned"


def test_a_machine_that_starts_again_goes_on_with_its_own_arms(tmp_path: Path, url: str) -> None:
    experiment = write_files(tmp_path)
    log = log_of(experiment, 600)
    serial = run_stopped(experiment, log, tmp_path / "serial", [])[2]
    learned: list[str] = []
    for blocks in (3, 9):
        machine = Machine(experiment, log, tmp_path / "machine", url)
        with pytest.raises(Killed):
            machine.run_killed(blocks)
        learned += machine.learned
    machine = Machine(experiment, log, tmp_path / "machine", url)
    assert machine.run() == serial
    learned += machine.learned
    assert len(learned) == len(set(learned)), "a chunk was learned again"


def test_a_slow_machine_cannot_publish_after_its_arm_was_taken_over(
    tmp_path: Path, url: str
) -> None:
    experiment = write_files(tmp_path)
    plan, sums = experiment.plan(1), ChunkSums(7, [np.array([0.1, 0.2]), np.zeros(0)])
    slow, other = (
        Machine(experiment, log_of(experiment, 50), tmp_path / name, url) for name in ("a", "b")
    )
    slow_study, other_study = slow.open("slow"), other.open("other")
    slow_study.refresh()
    assert slow_study.claim([plan], 1) == [1]
    other_study.refresh()
    assert not other_study.claim([plan], 1), "two machines have one arm"
    slow_study.close()
    other_study.refresh()
    assert other_study.claim([plan], 1) == [1]
    slow_study.publish(1, 0, sums)
    other_study.refresh()
    assert other_study.published(plan, 0) is None
    other_study.publish(1, 0, sums)
    slow_study.refresh()
    found = slow_study.published(plan, 0)
    assert found is not None
    assert found.checksum == 7
    assert [block.tolist() for block in found.blocks] == [[0.1, 0.2], []]
    other_study.close()


def test_the_study_has_the_arms_as_trials_with_their_ends(tmp_path: Path, url: str) -> None:
    import optuna

    # a slot for each arm: with fewer, arms that wait may not begin before the log ends
    experiment = write_files(tmp_path, FILE.replace("slots = 4", "slots = 7"))
    machine = Machine(experiment, log_of(experiment, 600), tmp_path / "one", url)
    machine.run()
    storage = open_storage(StudyAddress(url))
    study = optuna.load_study(study_name="rates", storage=storage)
    arms = {trial.user_attrs["name"]: trial for trial in study.trials}
    assert set(arms) == {"control", "slow", "fewer", *(f"arm{number}" for number in range(3, 8))}
    assert arms["control"].state is optuna.trial.TrialState.COMPLETE
    assert all("optimizer.alpha" in arms[f"arm{number}"].params for number in range(3, 8))
    history = read_history(tmp_path / "one")
    ended = {each.name: each for each in history if each.kind in ("ended", "stopped", "eliminated")}
    for name, trial in arms.items():
        assert trial.state.is_finished()
        assert (trial.state is optuna.trial.TrialState.COMPLETE) == (ended[name].kind == "ended")
        if ended[name].kind == "ended":
            assert trial.value == ended[name].difference


def test_optuna_suggests_the_same_arms_on_all_machines(tmp_path: Path, url: str) -> None:
    text = FILE.replace('control = "control.toml"', 'control = "control.toml"\nsampler = "optuna"')
    experiment = write_files(tmp_path, text)
    log = log_of(experiment, 600)
    serial = run_stopped(experiment, log, tmp_path / "serial", [])[2]
    machines = [Machine(experiment, log, tmp_path / name, url) for name in ("one", "two")]
    assert run_together(machines) == [serial, serial]


def test_a_machine_that_was_stopped_at_the_end_of_the_log_ends_when_it_starts_again(
    tmp_path: Path, url: str
) -> None:
    experiment = write_files(tmp_path)
    log = log_of(experiment, 300)
    serial = run_stopped(experiment, log, tmp_path / "serial", [])[2]
    Machine(experiment, log, tmp_path / "one", url).run_stopped(threading.Event())
    assert Machine(experiment, log, tmp_path / "one", url).run() == serial


def test_a_machine_that_waits_for_another_can_be_stopped(tmp_path: Path, url: str) -> None:
    experiment = write_files(tmp_path)
    log = log_of(experiment, 300)
    other = Machine(experiment, log, tmp_path / "other", url).open("other")
    plans = [experiment.plan(number) for number in range(experiment.slots + 1)]
    assert len(other.claim(plans, len(plans))) == len(plans)
    waiting = Machine(experiment, log, tmp_path / "waiting", url)
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    waiting.run_stopped(stop)
    assert not waiting.learned
    other.close()
