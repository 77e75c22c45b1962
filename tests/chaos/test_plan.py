"""The plan of a chaos run: the same for the same seed, and fair to every kind of fault."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.faults import LONGEST_STEP_S, step_of
from tests.chaos.plan import ALONE, KIND_BY_NAME, KINDS, steps

ROUND = len(KINDS)


@given(st.integers(0, 1 << 30))
def test_a_seed_gives_the_same_plan_again(seed: int) -> None:
    assert list(islice(steps(seed), 2 * ROUND)) == list(islice(steps(seed), 2 * ROUND))


@given(st.integers(0, 1 << 30))
def test_each_round_of_a_plan_has_every_kind_of_fault(seed: int) -> None:
    plan = list(islice(steps(seed), 2 * ROUND))
    for begin in (0, ROUND):
        assert {step.faults[0].kind for step in plan[begin : begin + ROUND]} == set(KIND_BY_NAME)


@given(st.integers(0, 1 << 30))
def test_two_faults_at_once_spare_one_kind_of_server(seed: int) -> None:
    for step in islice(steps(seed), 3 * ROUND):
        servers = [fault.servers for fault in step.faults if fault.servers]
        assert len(servers) == len(set(servers))
        if any(fault.kind in ALONE for fault in step.faults):
            assert len(step.faults) == 1


@given(st.integers(0, 1 << 30))
def test_faults_of_a_plan_stay_within_the_bounds_of_their_kind(seed: int) -> None:
    for step in islice(steps(seed), ROUND):
        assert step.pause_s > 0
        for fault in step.faults:
            kind = KIND_BY_NAME[fault.kind]
            assert kind.shortest_s <= fault.lasts_s <= kind.longest_s
            assert fault.target in kind.targets


@given(st.floats(-1, 1))
def test_a_step_of_a_clock_takes_a_second_to_an_hour_in_either_direction(amount: float) -> None:
    assert 1.0 <= abs(step_of(amount)) <= LONGEST_STEP_S
    assert amount == 0 or (step_of(amount) > 0) == (amount > 0)
