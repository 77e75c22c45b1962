"""Tests that the simulation notices each removed check, 200 seeds from the one that found it."""

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.mutant import Mutant
from tests.simulation.mutant_seeds import first_seeds, seed_that_notices
from tests.simulation.mutants import MUTANTS


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_simulation_notices_a_removed_check(mutant: Mutant) -> None:
    first = first_seeds()[mutant.name]
    assert seed_that_notices(mutant, first) is not None, f"not noticed from seed {first} on"


def test_every_mutant_has_a_seed_and_every_seed_a_mutant() -> None:
    assert list(first_seeds()) == [mutant.name for mutant in MUTANTS], (
        "run python -m tests.simulation.mutant_seeds --only NAME for a new one"
    )
