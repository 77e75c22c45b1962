"""Early stopping of a fit into a parameter server: one decision, and every row once."""

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from headrace.ingest.examples.batch import Examples
from headrace.learner.batch.held_out_epochs import EpochDecision
from headrace.learner.batch.sources import UnreadableData
from headrace.learner.batch.store_fit import store_trainer
from headrace.learner.batch.store_fit.partition_tasks import LearnTask
from headrace.learner.batch.store_fit.staged_run import StageFolder
from headrace.learner.batch.store_fit.store_trainer import StoreTrainer, Worker
from headrace.learner.batch.trainer import FitSummary
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.pserver.errors import MissingModel
from tests.learner.batch.staged_files import Ended, one_pass, one_store, run_here
from tests.learner.batch.store_fits import SPEC, counted, run, trainer
from tests.learner.shop import shop_rows

ROWS, SHARE = 50_000, 0.25
HELD_OUT: dict[str, Any] = {"holdout": SHARE, "rows_a_file": 16_000}  # two files for each epoch
Counters = dict[int, tuple[int, int]]


class Killed(BaseException):
    """Stands for a SIGKILL of the process."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    pq.write_table(shop_rows(ROWS), path)
    return path


@pytest.fixture(scope="module")
def parts(log: Path) -> tuple[Counters, Counters]:
    """Shows and clicks of one pass over the examples of an epoch, and over those held out."""
    to = log.parent / "staged"
    with pytest.raises(Killed):
        run(trainer(log, to, one_store()[1], killed_at_once, **HELD_OUT))
    folder = StageFolder(str(to), "shop")
    found = msgspec.json.decode((to / "_stage/shop/run.json").read_bytes(), type=dict)
    assert found["held_out"] > 0
    described = folder.read(SPEC, found["source"], SHARE)
    assert described is not None
    held_out = list(folder.held_out(described, SPEC))
    assert SHARE * ROWS <= sum(len(each) for each in held_out) < ROWS  # whole blocks
    everything = list(folder.held_out(msgspec.structs.replace(described, held_out=10**6), SPEC))
    return counts(everything[: -len(held_out)]), counts(held_out)


def counts(batches: Sequence[Examples]) -> Counters:
    total: Counters = {}
    for each in batches:
        total = added(total, one_pass(SPEC, each))
    return total


def added(some: Counters, more: Counters, times: int = 1) -> Counters:
    """Return some counters and so many times others."""
    found = dict(some)
    for row, (shows, clicks) in more.items():
        had = found.get(row, (0, 0))
        found[row] = had[0] + times * shows, had[1] + times * clicks
    return found


def killed_at_once(*_: object) -> Worker:
    raise Killed


class Losses:
    """Held-out losses by a script: the second epoch is the best of three."""

    def __init__(self, *losses: float) -> None:
        self.losses, self.epochs_seen = list(losses), list[int]()

    def __call__(self, model: InMemoryModel, blocks: Iterable[Examples]) -> float:
        shows = int(model.rows.shows.max())
        self.epochs_seen.append(shows)
        return self.losses[len(set(self.epochs_seen)) - 1]


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> Losses:
    script = Losses(0.5, 0.4, 0.45, 0.1)
    monkeypatch.setattr(store_trainer, "held_out_loss", script)
    return script


def check(to: Path, done: FitSummary | None, parts: tuple[Counters, Counters]) -> None:
    """The model is that of the second epoch, and has learned the held-out examples once."""
    assert done is not None
    assert (done.epochs, done.held_out_loss) == (2, 0.4)
    assert counted(to, done.snapshot) == added(parts[1], parts[0], times=2)
    assert [each.name for each in (to / "_stage").iterdir()] == []


def test_a_fit_returns_to_its_best_epoch_and_learns_the_held_out_rows_once(
    log: Path, tmp_path: Path, losses: Losses, parts: tuple[Counters, Counters]
) -> None:
    store, connect = one_store()
    done = run(trainer(log, tmp_path, connect, epochs=9, **HELD_OUT))
    check(tmp_path, done, parts)
    assert done is not None
    assert len(losses.epochs_seen) == 3  # and no fourth epoch
    with pytest.raises(MissingModel):
        store.shape()


def test_a_fit_of_as_many_epochs_as_allowed_keeps_the_last_if_it_is_the_best(
    log: Path, tmp_path: Path, losses: Losses, parts: tuple[Counters, Counters]
) -> None:
    check(tmp_path, run(trainer(log, tmp_path, one_store()[1], epochs=2, **HELD_OUT)), parts)


@pytest.mark.parametrize(
    ("of", "method", "before"),
    [
        (StageFolder, "decide", True),
        (StageFolder, "decide", False),
        (StoreTrainer, "_finish_held_out", False),
    ],
)
def test_a_fit_killed_around_each_decision_decides_the_same(
    of: type,
    method: str,
    before: bool,
    log: Path,
    tmp_path: Path,
    losses: Losses,
    parts: tuple[Counters, Counters],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = one_store()[1]
    real: Callable[..., object] = getattr(of, method)

    def kill(*arguments: object) -> object:
        if not before:
            real(*arguments)
        raise Killed

    for _ in range(2):
        monkeypatch.setattr(of, method, kill)
        with pytest.raises(Killed):
            run(trainer(log, tmp_path, connect, epochs=9, **HELD_OUT))
        monkeypatch.setattr(of, method, real)
    check(tmp_path, run(trainer(log, tmp_path, connect, epochs=9, **HELD_OUT)), parts)


@pytest.mark.thorough
def test_a_second_machine_learns_no_epoch_before_the_first_has_decided(
    log: Path, tmp_path: Path, losses: Losses, parts: tuple[Counters, Counters]
) -> None:
    connect = one_store()[1]
    with pytest.raises(Killed):  # the examples are staged
        run(trainer(log, tmp_path, connect, killed_at_once, epochs=9, **HELD_OUT))
    own: list[int] = []

    def start(task: LearnTask, numbers: Sequence[int]) -> Worker:
        own.extend(task.places[number].number for number in numbers)
        decided = tmp_path / "_stage/shop/decision.json"
        epochs = msgspec.json.decode(decided.read_bytes())["decided"] if decided.exists() else 0
        assert {each // len(task.places) for each in own} <= set(range(epochs + 1))
        return run_here(task, numbers)

    second = trainer(log, tmp_path, connect, start, epochs=9, **HELD_OUT, part=2, parts=2)
    ended: list[object] = []
    other = threading.Thread(target=lambda: ended.append(run(second)))
    other.start()
    done = run(trainer(log, tmp_path, connect, epochs=9, **HELD_OUT, parts=2))
    other.join(60)
    assert ended == [None]
    assert own
    check(tmp_path, done, parts)


def test_a_machine_whose_processes_fail_after_the_end_of_the_fit_ends_without_an_error(
    log: Path, tmp_path: Path, losses: Losses, parts: tuple[Counters, Counters]
) -> None:
    connect = one_store()[1]
    with pytest.raises(Killed):
        run(trainer(log, tmp_path, connect, killed_at_once, **HELD_OUT, epochs=9))
    found: list[FitSummary | None] = []

    def late(task: LearnTask, numbers: Sequence[int]) -> Worker:
        found.append(run(trainer(log, tmp_path, connect, **HELD_OUT, epochs=9, parts=2)))
        return Ended(1)

    second = trainer(log, tmp_path, connect, late, **HELD_OUT, epochs=9, part=2, parts=2)
    assert run(second) is None
    check(tmp_path, found[0], parts)


def test_a_second_process_of_the_first_part_takes_over_the_decision_of_the_other(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: tuple[Counters, Counters]
) -> None:
    connect = one_store()[1]
    folder = StageFolder(str(tmp_path), "shop")
    saved: list[str] = []

    def other_decides(model: InMemoryModel, _: object) -> float:
        if not saved:
            saved.append(folder.save(model))
            folder.decide(EpochDecision(1, 1, 0.3, saved[0]))
            return 0.7
        return 0.9

    monkeypatch.setattr(store_trainer, "held_out_loss", other_decides)
    done = run(trainer(log, tmp_path, connect, epochs=9, **HELD_OUT))
    assert done is not None
    assert (done.epochs, done.held_out_loss) == (1, 0.3)
    assert counted(tmp_path, done.snapshot) == added(parts[1], parts[0])


def test_another_held_out_share_is_refused(log: Path, tmp_path: Path) -> None:
    connect = one_store()[1]
    with pytest.raises(Killed):
        run(trainer(log, tmp_path, connect, killed_at_once, **HELD_OUT))
    with pytest.raises(UnreadableData, match=r"expected .* with --holdout 0.1, got one with 0.25"):
        trainer(log, tmp_path, connect, holdout=0.1)
