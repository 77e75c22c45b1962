"""The promise of exactly once, searched for a way to break it."""

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.world import Broken, Plan, World, run


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def _run_all(seeds: range) -> None:
    for seed in seeds:
        run(seed)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_no_seed_breaks_a_promise(first: int) -> None:
    _run_all(range(first, first + 10))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_thousand_seeds_break_no_promise() -> None:
    _run_all(range(1000, 3000))


def test_a_run_repeats_from_its_seed() -> None:
    histories = []
    for _ in range(2):
        world = World(Plan.draw(7))
        world.storm()
        answers = world.store.marks(range(world.plan.buckets))
        histories.append((world.clock_ms, world.produced, repr(answers)))
    assert histories[0] == histories[1]


def test_a_learner_that_ignores_its_cursors_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything_counts(self: object, source: str, offset: int) -> object:
        return self._cursors[source] <= self._cursors[source].max()  # type: ignore[attr-defined]

    monkeypatch.setattr("learner.cursors.Cursors.active", everything_counts)
    with pytest.raises(Broken):
        _run_all(range(200))
