"""The joiner core makes the examples of a slow and obvious reference, also across restarts."""

import pytest

from headrace.ingest.features.fields import Policy
from headrace.ingest.joiner.core import join
from headrace.ingest.joiner.core import window_state as window
from tests.effort import seeds
from tests.ingest.joiner.partition import WINDOW_MS
from tests.ingest.simulation.world import run


@pytest.fixture(autouse=True)
def _small_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    # small rings grow, wrap and are marked often
    monkeypatch.setattr(window, "_SMALLEST", 2)
    monkeypatch.setattr(window, "_SMALLEST_ARENA", 64)
    monkeypatch.setattr(join, "_MARK_ROWS", 2)


_POLICIES = [(policy, 0) for policy in Policy] + [
    (Policy.IMMEDIATE, wait_ms) for wait_ms in (40, WINDOW_MS)
]


@pytest.mark.parametrize(("policy", "wait_ms"), _POLICIES)
@pytest.mark.parametrize("seed", seeds(12))
def test_the_joiner_makes_exactly_the_examples_of_the_reference(
    seed: int, policy: Policy, wait_ms: int
) -> None:
    run(seed, policy, wait_ms)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("policy", "wait_ms"), _POLICIES)
def test_examples_are_exactly_those_of_the_reference_for_a_thousand_seeds(
    policy: Policy, wait_ms: int
) -> None:
    for seed in range(1_000, 2_000):
        run(seed, policy, wait_ms)
