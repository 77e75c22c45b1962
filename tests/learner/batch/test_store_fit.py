"""A fit into a parameter server: every row once, however its processes and machines end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from headrace.ingest.logs import parse_layout
from headrace.learner.batch import (
    BatchTrainer,
    FitFolder,
    FitSettings,
    StageFolder,
    StoreFitSettings,
    StoreTrainer,
    TableSource,
    UnreadableData,
    WorkerFailed,
)
from headrace.learner.batch.store_trainer import learn_files
from headrace.learner.local.in_memory_model import InMemoryModel
from tests.learner.batch.staged_files import Ended, counters, one_store, run_here
from tests.learner.shop import CROSS, shop_rows, shop_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.learner.batch import FitSummary, LearnTask
    from headrace.learner.batch.store_trainer import Worker
    from headrace.pserver import Store

LAYOUT = '[event]\ntimestamp = "timestamp_ms"\n[click]\ncolumn = "clicked"\n'
ROWS, SPEC = 60_000, shop_spec(CROSS)
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    pq.write_table(shop_rows(ROWS), path)
    return path


@pytest.fixture(scope="module")
def expected(log: Path) -> dict[int, tuple[int, int]]:
    """Shows and clicks of one pass in this process."""
    to = log.parent / "alone"
    trainer = BatchTrainer(SPEC, source(log), FitFolder(str(to), "shop"), FitSettings())
    return counted(to, trainer.run(threading.Event(), lambda _: None))


def source(log: Path) -> TableSource:
    return TableSource([str(log)], parse_layout(LAYOUT, "layout"), SPEC)


def trainer(
    log: Path,
    to: Path,
    connect: Callable[[str], Store],
    start: Callable[[LearnTask, Sequence[int]], Worker] = run_here,
    **settings: int,
) -> StoreTrainer:
    folders = FitFolder(str(to), "shop"), StageFolder(str(to), "shop")
    chosen = StoreFitSettings(**{"rows_a_file": 17_000, "workers": 2, **settings})
    return StoreTrainer(SPEC, source(log), folders, connect, chosen, start)


def counted(to: Path, done: FitSummary | None) -> dict[int, tuple[int, int]]:
    assert done is not None
    assert done.examples % ROWS == 0
    return counters(InMemoryModel.load(to, done.snapshot).rows)


def run(fit: StoreTrainer) -> FitSummary | None:
    return fit.run(threading.Event(), lambda _: None)


def test_two_workers_count_every_row_once_and_leave_nothing(
    log: Path, tmp_path: Path, expected: dict[int, tuple[int, int]]
) -> None:
    store, connect = one_store()
    assert counted(tmp_path, run(trainer(log, tmp_path, connect))) == expected
    assert not list((tmp_path / "_stage").iterdir())
    with pytest.raises(Exception, match="holds no model"):
        store.shape()


def test_epochs_count_every_row_again(
    log: Path, tmp_path: Path, expected: dict[int, tuple[int, int]]
) -> None:
    found = counted(tmp_path, run(trainer(log, tmp_path, one_store()[1], epochs=2)))
    assert found == {row: (2 * shows, 2 * clicks) for row, (shows, clicks) in expected.items()}


@pytest.mark.parametrize("seed", range(3))
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


def test_the_command_killed_and_started_again_counts_every_row_once(
    log: Path, tmp_path: Path, valkey_node: str, expected: dict[int, tuple[int, int]]
) -> None:
    (tmp_path / "shop.toml").write_text(SPEC.text)
    (tmp_path / "layout.toml").write_text(LAYOUT)
    command = [
        *(sys.executable, "-m", "headrace", "fit", "--model", "shop.toml", "--data", str(log)),
        *("--layout", "layout.toml", "--to", "models", "--store", valkey_node, "--workers", "2"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
        )

    killed = start()
    run_file = tmp_path / "models/_stage/shop/run.json"
    while not run_file.exists() and killed.poll() is None:
        threading.Event().wait(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    again = start()  # while workers of the first may still learn
    printed, _ = again.communicate(timeout=300)
    assert again.returncode == 0
    name = printed.partition(":")[0]
    assert counters(InMemoryModel.load(tmp_path / "models", name).rows) == expected
