"""Searches the simulation for a seed that breaks exactly-once."""

import logging
from collections import deque
from collections.abc import Iterator

import pytest

from tests.simulation.kinds import draw_plan
from tests.simulation.search import search
from tests.simulation.world import run


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_no_seed_of_the_simulation_breaks_an_invariant(first: int) -> None:
    for seed in range(first, first + 10):
        run(seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_ten_thousand_seeds_of_the_simulation_break_no_invariant() -> None:
    for outcome in search(range(10_000)):
        assert not outcome.failure, outcome.failure


def test_a_simulation_repeats_from_its_seed_with_the_same_log() -> None:
    histories = []
    for _ in range(2):
        journal: deque[str] = deque()
        tally = run(7, journal)
        histories.append((tally, list(journal)))
    assert histories[0] == histories[1]
    assert len(histories[0][1]) >= histories[0][0]["pushes applied"] > 0


def test_every_simulated_fault_happens_in_some_worlds_and_not_in_others() -> None:
    weathers = [draw_plan(seed).weather for seed in range(100)]
    for name in weathers[0].__slots__:
        chances = {getattr(weather, name) for weather in weathers}
        assert 0.0 in chances and len(chances) >= 3, name
