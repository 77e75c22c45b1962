"""A plan follows its formulas: ceilings, monotone in the load, and the bottleneck by name."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.deploy.errors import DeployError
from headrace.deploy.operations.planning.cluster_plan import (
    greatest_load,
    longer_pushes,
    plan_cluster,
)
from headrace.deploy.operations.planning.distinct_values import ValueDistribution, values_of_fields
from headrace.deploy.operations.planning.relay_plan import relay_plans
from headrace.deploy.operations.planning.unit_costs import LinearCost
from headrace.deploy.operations.planning.workload import Assumptions, Machines, Prices, Workload
from tests.deploy.planning.handmade_costs import round_costs

SMALL = Workload(
    events_per_second=2_000.0,
    rows=1e6,
    fields=10,
    architecture="logistic_regression",
    width=2,
    requests_per_second=100.0,
)
COSTS = round_costs()


def test_a_small_load_needs_one_of_each_and_two_for_availability() -> None:
    plan = plan_cluster(Assumptions(SMALL), COSTS)
    counts = {part.name: part.count for part in plan.parts}
    assert counts == {"joiners": 1, "learners": 1, "shards": 2, "keepers": 2, "servers": 2}
    assert plan.feasible
    assert plan.cached_rows is None


def test_the_cores_of_a_learner_are_those_of_the_formula() -> None:
    plan = plan_cluster(Assumptions(SMALL), COSTS)
    pushed = ValueDistribution(1e6, 10, 1.1).distinct(100.0) * 20.0
    assert plan.pushed_rows_per_second == pytest.approx(pushed)
    entries = 64 * 20.0
    cores = 2_000 * 5e-6 + pushed * (0.1 + 0.5 + 0.5) * 1e-6 + entries * (10 + 20) * 1e-6
    assert plan.entries_per_second == entries
    assert plan.part("learners").cores == pytest.approx(cores)


def test_joiners_are_as_many_as_the_load_divided_by_the_used_share_of_a_core() -> None:
    for events, joiners in ((60_000.0, 1), (60_001.0, 2), (600_000.0, 10)):
        load = replace(SMALL, events_per_second=events, label_window_s=0.0)
        assert plan_cluster(Assumptions(load), COSTS).part("joiners").count == joiners


def test_each_region_has_its_own_servers() -> None:
    one, three = (
        plan_cluster(Assumptions(replace(SMALL, regions=regions)), COSTS) for regions in (1, 3)
    )
    assert (one.part("servers").count, three.part("servers").count) == (2, 6)
    assert one.region_mb_per_second == 0.0
    assert three.region_mb_per_second == pytest.approx(4 * three.log_mb_per_second)


def test_a_relay_carries_less_than_the_logs_of_pushes_that_are_shorter_than_its_interval() -> None:
    load = replace(SMALL, events_per_second=100_000.0)
    plan = plan_cluster(Assumptions(load), COSTS)
    assert 0.0 < plan.relay_mb_per_second < plan.log_mb_per_second
    # with one learner that pushes as often as a relay writes, both carry the same rows
    slow = plan_cluster(Assumptions(replace(SMALL, push_interval_ms=200.0)), COSTS)
    assert slow.part("learners").count == 1
    assert slow.relay_mb_per_second == pytest.approx(slow.log_mb_per_second)


def test_the_price_with_a_relay_is_that_of_the_formula() -> None:
    assumptions = Assumptions(replace(SMALL, regions=3))
    plan = plan_cluster(assumptions, COSTS)
    found = relay_plans(plan, assumptions, COSTS)
    load, prices = assumptions.workload, assumptions.prices
    # servers fold fewer rows, the store answers one follower in place of all servers
    entries = load.buckets / 0.2
    rows = (1e6 * plan.relay_mb_per_second - 250.0 * entries) / (24.0 + 4.0 * load.width)
    logs = 1e-6 * (0.5 * plan.pushed_rows_per_second + 20.0 * plan.entries_per_second)
    topic = 1e-6 * (0.5 * rows + 20.0 * entries)
    read = 1e-6 * (0.1 * plan.pushed_rows_per_second + 5.0 * plan.entries_per_second)
    encoded = 1e-6 * (0.1 * rows + 10.0 * entries)
    servers = plan.part("servers").count
    cores = logs + encoded - servers * (logs - topic) - (servers - 1) * read
    memory_gb = 0.3 + load.rows * (44.0 + 4.0 * load.width) / 1e9
    price = plan.price_per_hour + 0.04 * cores / 0.6 + 0.005 * memory_gb
    price -= prices.region_gb * 3.6 * (plan.region_mb_per_second - 2 * plan.relay_mb_per_second)
    assert found["all"].price_per_hour == pytest.approx(price)
    assert found["half"].price_per_hour < found["final"].price_per_hour < price


def test_a_load_that_no_number_of_learners_carries_names_following_as_the_bottleneck() -> None:
    load = replace(SMALL, events_per_second=1e6, rows=1e10, fields=40)
    plan = plan_cluster(Assumptions(load), COSTS)
    assert not plan.feasible
    assert plan.bottleneck.name == "every learner follows the logs of all learners"
    assert "1.00 us a row and 20 us an entry to follow in a learner" in plan.bottleneck.assumption


def test_the_greatest_load_is_feasible_and_a_tenth_more_is_not() -> None:
    assumptions = Assumptions(replace(SMALL, rows=1e10, fields=40))
    most = greatest_load(assumptions, COSTS)
    for times, feasible in ((1.0, True), (1.1, False)):
        load = replace(assumptions.workload, events_per_second=most * times)
        assert plan_cluster(replace(assumptions, workload=load), COSTS).feasible is feasible


def test_a_load_too_large_for_short_pushes_gets_longer_ones() -> None:
    load = replace(SMALL, events_per_second=100_000.0, rows=1e5, architecture="deepfm")
    short = Assumptions(load)
    assert not plan_cluster(short, COSTS).feasible
    longer = longer_pushes(short, COSTS)
    assert longer.workload.push_interval_ms > 50.0
    assert plan_cluster(longer, COSTS).feasible
    small = Assumptions(SMALL)
    assert longer_pushes(small, COSTS) == small


def test_rows_beyond_the_memory_of_a_machine_become_a_cache() -> None:
    plan = plan_cluster(Assumptions(replace(SMALL, rows=1e10)), COSTS)
    assert plan.cached_rows is not None
    assert plan.cached_rows < 1e10
    assert plan.part("shards").memory_gb == pytest.approx(2 * 1e10 * 68 / 1e9)


def test_rows_that_the_store_keeps_set_the_number_of_shards() -> None:
    plan = plan_cluster(Assumptions(replace(SMALL, rows=1e10)), COSTS)
    assert plan.part("shards").reason == "memory"
    assert plan.part("shards").count == 2 * math.ceil(680 / (32 * 0.6))


def test_prices_multiply_cores_and_memory() -> None:
    free = Prices(0.0, 0.0, 0.0)
    assert plan_cluster(Assumptions(SMALL, prices=free), COSTS).price_per_hour == 0.0
    plan = plan_cluster(Assumptions(SMALL, prices=replace(free, memory_gb_hour=1.0)), COSTS)
    assert plan.price_per_hour == pytest.approx(sum(part.memory_gb for part in plan.parts))


def test_an_architecture_without_constants_is_refused_by_name() -> None:
    with pytest.raises(DeployError, match=r"expected one of .* got 'din'"):
        plan_cluster(Assumptions(replace(SMALL, architecture="din")), COSTS)


def test_a_load_that_is_not_positive_is_refused_by_name() -> None:
    for load in ({"rows": 0.0}, {"fields": 0}, {"regions": 0}, {"events_per_second": -1.0}):
        [name] = load
        changed: dict[str, Any] = load
        with pytest.raises(DeployError, match=name.replace("_", " ")):
            replace(SMALL, **changed)


LOADS = st.floats(1.0, 1e7)


@given(LOADS, st.floats(1.0, 100.0), st.integers(1, 60), st.floats(1e3, 1e11))
def test_more_events_never_need_less(events: float, times: float, fields: int, rows: float) -> None:
    load = replace(SMALL, events_per_second=events, fields=fields, rows=rows)
    more = replace(load, events_per_second=events * times)
    less, larger = (plan_cluster(Assumptions(each), COSTS) for each in (load, more))
    assert larger.part("joiners").count >= less.part("joiners").count
    assert larger.part("joiners").cores >= less.part("joiners").cores
    if larger.feasible:
        assert less.feasible
        assert larger.part("learners").count >= less.part("learners").count
        assert larger.pushed_rows_per_second >= less.pushed_rows_per_second * (1 - 1e-9)
        assert larger.price_per_hour >= less.price_per_hour * (1 - 1e-3)


@given(LOADS, st.floats(1.0, 20.0))
def test_slower_steps_never_need_fewer_processes(events: float, times: float) -> None:
    def slower(cost: LinearCost) -> LinearCost:
        return LinearCost(cost.fixed_us * times, cost.each_us * times)

    load = Assumptions(replace(SMALL, events_per_second=events))
    learn = {name: slower(cost) for name, cost in COSTS.learn.items()}
    slow = type(COSTS)(
        **{name: getattr(COSTS, name) for name in COSTS.__struct_fields__ if name != "learn"},
        learn=learn,
    )
    before, after = plan_cluster(load, COSTS), plan_cluster(load, slow)
    if after.feasible:
        assert before.feasible
        assert after.part("learners").count >= before.part("learners").count


@given(LOADS, st.integers(1, 5), st.floats(0.2, 0.9))
def test_no_process_is_planned_beyond_the_used_share(
    events: float, regions: int, share: float
) -> None:
    load = replace(SMALL, events_per_second=events, regions=regions)
    machines = Machines(used_share=share)
    plan = plan_cluster(Assumptions(load, machines), COSTS)
    joiners, learners = plan.part("joiners"), plan.part("learners")
    assert joiners.cores <= joiners.count * share * (1 + 1e-6)
    if plan.feasible:
        assert learners.cores <= learners.count * share * (1 + 1e-6)
    assert plan.partitions >= max(joiners.count, learners.count)
    assert plan.partitions.bit_count() == 1


@given(st.floats(1.0, 1e9), st.floats(1.0, 1e3), st.floats(0.0, 2.0), st.integers(1, 50))
def test_distinct_rows_grow_with_examples_and_never_exceed_lookups_or_rows(
    examples: float, times: float, skew: float, fields: int
) -> None:
    values = ValueDistribution(1e7, fields, skew)
    few, many = values.distinct(examples), values.distinct(examples * times)
    assert few <= many * (1 + 1e-9)
    assert few <= fields * examples * (1 + 1e-9)
    assert many <= (1e7 + 2 * fields) * (1 + 1e-6)


@given(st.floats(1e3, 1e12), st.integers(1, 100))
def test_the_values_of_all_fields_add_up_to_the_rows(rows: float, fields: int) -> None:
    values = values_of_fields(rows, fields)
    assert len(values) == fields
    assert sum(values) == pytest.approx(rows, rel=1e-6)


def test_expected_distinct_rows_agree_with_draws() -> None:
    dice, values, skew = np.random.default_rng(3), 100_000.0, 1.1
    for draws in (100, 10_000, 300_000):
        uniform = dice.random(draws)
        most = values + 1.0
        ranks = ((most ** (1 - skew) - 1) * uniform + 1) ** (1 / (1 - skew))
        found = np.unique(ranks.astype(np.int64)).shape[0]
        expected = ValueDistribution(values, 1, skew).distinct(draws)
        assert found == pytest.approx(expected, rel=0.03)


def test_the_most_frequent_rows_cover_the_share_of_lookups() -> None:
    values = ValueDistribution(1e8, 20, 1.1)
    assert values.rows_for(0.9) < values.rows_for(0.99) < 1e8
