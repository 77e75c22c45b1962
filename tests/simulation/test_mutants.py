"""Tests that the simulation notices each removed check, 200 seeds from the one that found it."""

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.mutant import Mutant
from tests.simulation.mutants import MUTANTS
from tests.simulation.search import outcome

SEEDS = 200


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_simulation_notices_a_removed_check(mutant: Mutant) -> None:
    with mutant.at_large():
        for seed in range(mutant.found_by, mutant.found_by + SEEDS):
            if outcome(seed, mutant.about).failure:
                return
    pytest.fail(f"{SEEDS} seeds do not notice")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_source_still_has_the_check_that_a_mutant_removes(mutant: Mutant) -> None:
    assert mutant.mutated()
