"""A fit into a parameter server: every row once, however its processes and machines end."""

import random
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest

from headrace.learner.batch.fit_folder import FitFolder
from headrace.learner.batch.sources import UnreadableData
from headrace.learner.batch.store_fit.partition_tasks import LearnTask
from headrace.learner.batch.store_fit.store_trainer import Worker, WorkerFailed, learn_files
from headrace.learner.batch.trainer import BatchTrainer, FitProgress, FitSettings, FitSummary
from tests.effort import seeds
from tests.learner.batch import store_fits
from tests.learner.batch.staged_files import Ended, one_store
from tests.learner.batch.store_fits import ROWS, SPEC, fit_command, run, source, trainer, wait_for
from tests.learner.shop import shop_rows


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    pq.write_table(shop_rows(ROWS), path)
    return path


@pytest.fixture(scope="module")
def alone(log: Path) -> FitSummary:
    """One pass in this process."""
    folder = FitFolder(str(log.parent / "alone"), "shop")
    done = BatchTrainer(SPEC, source(log), folder, FitSettings()).run(
        threading.Event(), lambda _: None
    )
    assert done is not None
    return done


@pytest.fixture(scope="module")
def expected(log: Path, alone: FitSummary) -> dict[int, tuple[int, int]]:
    """Shows and clicks of one pass in this process."""
    return counted(log.parent / "alone", alone)


def counted(to: Path, done: FitSummary | None) -> dict[int, tuple[int, int]]:
    assert done is not None
    assert done.examples % ROWS == 0
    return store_fits.counted(to, done.snapshot)


def test_two_workers_count_every_row_once_and_leave_nothing(
    log: Path, tmp_path: Path, expected: dict[int, tuple[int, int]]
) -> None:
    store, connect = one_store()
    assert counted(tmp_path, run(trainer(log, tmp_path, connect))) == expected
    assert not list((tmp_path / "_stage").iterdir())
    with pytest.raises(Exception, match="holds no model"):
        store.shape()


def test_a_fit_has_the_loss_before_learning_and_the_clicks_of_a_fit_in_one_process(
    log: Path, tmp_path: Path, alone: FitSummary
) -> None:
    told: list[FitProgress] = []
    fit = trainer(log, tmp_path, one_store()[1], workers=1)
    done = fit.run(threading.Event(), told.append)
    assert done is not None
    assert done.clicks == alone.clicks
    assert done.log_loss == pytest.approx(alone.log_loss, rel=0.01)
    assert done.normalized_entropy == pytest.approx(alone.normalized_entropy, rel=0.01)
    staging = [each for each in told if each.staging]
    begun, *learning = told[len(staging) :]
    assert all(each.staging for each in told[: len(staging)])
    assert begun[:3] == (0, 0.0, 0), "a rate begins here"
    assert learning[-1].examples == ROWS
    assert learning[-1].normalized_entropy == done.normalized_entropy


def test_epochs_count_every_row_again(
    log: Path, tmp_path: Path, expected: dict[int, tuple[int, int]]
) -> None:
    found = counted(tmp_path, run(trainer(log, tmp_path, one_store()[1], epochs=2)))
    assert found == {row: (2 * shows, 2 * clicks) for row, (shows, clicks) in expected.items()}


@pytest.mark.parametrize("seed", seeds(3))
def test_a_fit_whose_workers_fail_again_and_again_counts_every_row_once(
    seed: int, log: Path, tmp_path: Path, expected: dict[int, tuple[int, int]]
) -> None:
    dice, connect = random.Random(seed), one_store()[1]
    tried: list[int] = []

    def fail(task: LearnTask, numbers: Sequence[int]) -> Worker:
        tried.append(len(numbers))
        learned = len(numbers) if len(tried) > 4 else dice.randrange(len(numbers))
        learn_files(task, numbers[:learned])
        return Ended(0 if learned == len(numbers) else -9)

    for _ in range(2):  # both workers of each
        with pytest.raises(WorkerFailed):
            run(trainer(log, tmp_path, connect, fail))
    assert counted(tmp_path, run(trainer(log, tmp_path, connect, fail))) == expected


def test_the_first_part_learns_what_the_others_leave(
    log: Path, tmp_path: Path, expected: dict[int, tuple[int, int]]
) -> None:
    connect = one_store()[1]
    with pytest.raises(UnreadableData, match="expected the examples that part 1 stages"):
        run(trainer(log, tmp_path, connect, part=2, parts=2))
    stop = threading.Event()
    staged = trainer(log, tmp_path, connect, lambda *_: Ended(-9), parts=2)
    with pytest.raises(WorkerFailed):
        staged.run(stop, lambda _: None)
    second = trainer(log, tmp_path, connect, part=2, parts=3)
    assert second.resumed
    assert run(second) is None
    assert counted(tmp_path, run(trainer(log, tmp_path, connect, parts=3))) == expected


def test_a_fit_of_other_data_is_refused(log: Path, tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed):
        run(trainer(log, tmp_path, one_store()[1], lambda *_: Ended(1)))
    other = tmp_path / "other.parquet"
    pq.write_table(shop_rows(10), other)
    with pytest.raises(UnreadableData, match="unfinished fit of this data"):
        trainer(other, tmp_path, one_store()[1])


def test_a_log_that_is_mostly_refused_is_not_learned(tmp_path: Path) -> None:
    times = pa.compute.multiply(shop_rows(100)["timestamp_ms"], 1000)
    pq.write_table(shop_rows(100).set_column(4, "timestamp_ms", times), tmp_path / "log.parquet")
    store, connect = one_store()
    with pytest.raises(UnreadableData, match=r"100 rows are refused[\s\S]*looks like microseconds"):
        run(trainer(tmp_path / "log.parquet", tmp_path / "models", connect))
    assert not [path for path in (tmp_path / "models").rglob("*") if path.is_file()]
    with pytest.raises(Exception, match="holds no model"):
        store.shape()


def test_the_command_killed_and_started_again_counts_every_row_once(
    log: Path, tmp_path: Path, valkey_node: str, expected: dict[int, tuple[int, int]]
) -> None:
    killed = fit_command(log, tmp_path, valkey_node)
    wait_for(tmp_path / "models/_stage/shop/run.json", killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    again = fit_command(log, tmp_path, valkey_node)  # while workers of the first may still learn
    printed, _ = again.communicate(timeout=300)
    assert again.returncode == 0
    assert store_fits.counted(tmp_path / "models", printed.partition(":")[0]) == expected
