"""Executors: arms learned by tasks decide as in the serial runner, with kills and all."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from headrace.learner.experiments.executors.arm_task import (
    ArmTask,
    BlockScores,
    read_checkpoint_model,
    run_arm_task,
)
from headrace.learner.experiments.executors.execution import open_executor
from headrace.learner.experiments.executors.executor_kind import ExecutorKind
from headrace.learner.experiments.executors.staged_log import chunk_sizes
from headrace.learner.experiments.experiment_file import RungSection
from headrace.learner.experiments.history import ExperimentProgress
from tests.learner.experiments.executor_runs import remote_runner, run_remotely
from tests.learner.experiments.experiment_runs import log_of, run_stopped, write_files


class Killed(Exception):
    """The end of a process."""


def in_order(tasks: Sequence[ArmTask]) -> list[BlockScores]:
    """Run tasks in this process."""
    return [run_arm_task(task) for task in tasks]


@pytest.mark.parametrize("policy", ["immediate", "window"])
def test_arms_in_tasks_decide_bit_for_bit_as_in_the_serial_runner(
    tmp_path: Path, policy: str
) -> None:
    experiment = write_files(tmp_path, policy=policy)
    log = log_of(experiment)
    serial = run_stopped(experiment, log, tmp_path / "serial", [])[2]
    assert run_remotely(experiment, log, tmp_path / "tasks", in_order) == serial


def test_a_chunk_ends_at_the_next_rung_and_has_a_bound() -> None:
    size = chunk_sizes(RungSection(first=10_000, factor=4))
    assert [size(before) for before in (0, 10_000, 12_000, 40_000, 160_000, 360_000)] == [
        *(10_000, 30_000, 28_000, 120_000, 200_000, 200_000)
    ]


def test_a_run_killed_between_tasks_and_saves_goes_on_from_checkpoints(tmp_path: Path) -> None:
    experiment = write_files(tmp_path)
    log = log_of(experiment)
    serial = run_stopped(experiment, log, tmp_path / "serial", [])[2]
    learned: list[str] = []

    def counting(tasks: Sequence[ArmTask]) -> list[BlockScores]:
        learned.extend(str(task.after) for task in tasks if not task.after.exists())
        return in_order(tasks)

    for blocks, save_every_s in ((4, 0.0), (1, 0.0), (9, 1e9), (7, 0.0), (30, 0.0)):
        tell = _kill_after(blocks)
        with (
            remote_runner(experiment, log, tmp_path / "run", counting, save_every_s) as runner,
            pytest.raises(Killed),
        ):
            runner.run(threading.Event(), tell)
    assert run_remotely(experiment, log, tmp_path / "run", counting) == serial
    assert len(learned) == len(set(learned)), "a complete checkpoint was learned again"


def _kill_after(blocks: int) -> Callable[[ExperimentProgress], None]:
    done = 0

    def tell(_: ExperimentProgress) -> None:
        nonlocal done
        done += 1
        if done == blocks:
            raise Killed

    return tell


def test_the_best_arm_and_the_control_keep_checkpoints_and_others_keep_none(tmp_path: Path) -> None:
    experiment = write_files(tmp_path)
    log = log_of(experiment)
    with remote_runner(experiment, log, tmp_path / "run", in_order, 1e9) as runner:
        result = runner.run(threading.Event(), lambda _: None)
    assert result is not None
    kept = sorted((tmp_path / "run" / "arms").glob("arm-*/*"))
    assert len({path.parent for path in kept} - {tmp_path / "run" / "arms" / "arm-00000"}) == 1
    assert all(len(read_checkpoint_model(path)) > 0 for path in kept)
    assert f"arm-{result.best.number:05}" in {path.parent.name for path in kept}


class DyingOnce:
    """A model that kills the process of its task, unless a file says that it did before."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return _die_once, (str(self._marker),)


def _die_once(marker: str) -> None:
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_round_whose_process_is_killed_runs_again(tmp_path: Path) -> None:
    experiment = write_files(tmp_path)
    log = log_of(experiment, 300)
    serial = run_stopped(experiment, log, tmp_path / "serial", [])[2]
    marker = DyingOnce(tmp_path / "died")
    with open_executor(ExecutorKind.PROCESSES, 1) as execute:

        def deadly(tasks: Sequence[ArmTask]) -> list[BlockScores]:
            for task in tasks:
                object.__setattr__(task, "marker", marker)
            return execute(tasks)

        assert run_remotely(experiment, log, tmp_path / "run", deadly) == serial
    assert (tmp_path / "died").exists()
