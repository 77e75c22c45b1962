"""The rivals of the search get the same arms and end within the same budget."""

import pytest

from tests.bench.experiments.rung_rules import (
    Task,
    search_headrace,
    search_optuna,
    search_river,
    whole_losses,
)
from tests.bench.experiments.swinging_stream import swinging_spec, swinging_stream
from tests.bench.learner.stream import batches_of

RATES = (0.0001, 0.5, 0.001)
EXAMPLES, BLOCK = 1200, 100


@pytest.fixture(scope="module")
def task() -> Task:
    spec = swinging_spec(0.001)
    blocks = batches_of(spec, swinging_stream(EXAMPLES, 1), BLOCK)
    return Task(spec, blocks, RATES, first=200, factor=3, budget=2 * EXAMPLES)


def test_headrace_finds_the_only_rate_that_learns(task: Task) -> None:
    losses = whole_losses(task)
    assert min(losses, key=losses.__getitem__) == 0.5
    found = search_headrace(task, slots=len(RATES))
    assert (found.rate, found.arms) == (0.5, len(RATES))
    assert EXAMPLES < found.steps <= (1 + len(RATES)) * EXAMPLES


def test_river_ends_with_the_budget(task: Task) -> None:
    pytest.importorskip("river")
    found = search_river(task)
    assert found.rate in RATES
    assert EXAMPLES <= found.steps <= task.budget


@pytest.mark.parametrize("paired", [False, True])
def test_optuna_ends_with_the_budget(task: Task, paired: bool) -> None:
    pytest.importorskip("optuna")
    found = search_optuna(task, slots=2, paired=paired)
    assert found.rate in RATES
    assert found.steps <= task.budget


def test_the_pairs_that_automl_left_out_are_read_from_its_model() -> None:
    vowpal_automl = pytest.importorskip("tests.bench.experiments.vowpal_automl")
    lines = (
        *("_automl_config_manager_configs[1]_exclusions[0][0] = 65", ""),
        "_automl_config_manager_configs[3]_exclusions.size() = 1",
        "_automl_config_manager_configs[3]_exclusions[0].size() = 2",
        "_automl_config_manager_configs[3]_exclusions[0][0] = 65",
        "_automl_config_manager_configs[3]_exclusions[0][1] = 67",
    )
    assert vowpal_automl.left_out_pairs("\n".join(lines), 3) == {("A", "C")}
    assert vowpal_automl.left_out_pairs("\n".join(lines), 2) == frozenset()
