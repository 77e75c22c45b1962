"""The count, the quantiles and the memory bound at the end of a chaos run."""

from dataclasses import replace

import pytest

from tests.chaos.accounting import (
    LIFE_S,
    MOST_GROWTH_MB,
    MOST_SLOPE_MB_H,
    WARM_S,
    Counted,
    differences,
    freshness,
    growth,
    quantile_ms,
)
from tests.chaos.sampler import Moment, read_metrics

EXACT = Counted(
    impressions=100,
    clicks=10,
    impressions_in_kafka=100,
    clicks_in_kafka=10,
    late_clicks=1,
    unmatched_clicks=0,
    dead_letters=0,
    held_examples=0,
    shows_by_field={"user": 100, "item": 100},
    clicks_by_field={"user": 9, "item": 9},
)


def test_rows_that_hold_every_event_once_have_no_difference() -> None:
    assert differences(EXACT) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (replace(EXACT, shows_by_field={"user": 100, "item": 101}), "shows of field item"),
        (replace(EXACT, clicks_by_field={"user": 10, "item": 9}), "clicks of field user"),
        (replace(EXACT, late_clicks=0), "clicks of field user: expected 10, got 9 (-1)"),
        (replace(EXACT, impressions=101), "impressions: sent 101, in Kafka 100 (-1)"),
        (replace(EXACT, clicks_in_kafka=11), "clicks: sent 10, in Kafka 11 (+1)"),
        (replace(EXACT, unmatched_clicks=1), "clicks without their impression: expected none"),
        (replace(EXACT, dead_letters=1), "dead letters: expected none, got 1"),
        (replace(EXACT, held_examples=2), "quarantined examples: expected none, got 2"),
        (
            replace(EXACT, parked=["parked at 3@7 in 2 of 8 buckets"]),
            "parked at 3@7 in 2 of 8 buckets: expected in all or in none",
        ),
    ],
)
def test_each_count_that_differs_is_named_with_both_figures(changed: Counted, words: str) -> None:
    assert any(words in line for line in differences(changed))


def test_quantiles_of_delays_are_linear_within_an_interval() -> None:
    delays = {0.1: 50.0, 0.2: 50.0}
    assert quantile_ms(delays, 0.5) == pytest.approx(100)
    assert quantile_ms(delays, 0.75) == pytest.approx(150)
    assert quantile_ms({}, 0.5) is None


def test_freshness_sums_the_delays_of_all_samples() -> None:
    moments = [Moment(1.0, 0.1, True, {0.1: 3.0}), Moment(2.0, 0.1, True, {0.1: 1.0, 0.4: 4.0})]
    assert freshness(moments).clicks == 8
    assert freshness(moments).p50_ms == pytest.approx(100)


def life(
    pid: int, begin_s: float, seconds: float, slope_mb_h: float
) -> list[tuple[float, int, float]]:
    count = int(seconds / 2)
    return [(begin_s + 2 * n, pid, 300 + slope_mb_h * 2 * n / 3600) for n in range(count)]


def test_a_process_that_grows_steadily_breaks_the_memory_bound() -> None:
    found = growth("learner", life(7, 0, 1800, 3 * MOST_SLOPE_MB_H))
    assert found.slope_mb_h == pytest.approx(3 * MOST_SLOPE_MB_H)
    assert not found.bounded


def test_a_process_with_a_ceiling_may_grow_up_to_it() -> None:
    steep = life(7, 0, 600, 3 * MOST_SLOPE_MB_H)
    assert growth("broker-1", steep, ceiling_mb=500).bounded
    assert not growth("broker-1", steep, ceiling_mb=400).bounded


def test_memory_of_a_process_that_restarts_is_judged_by_each_life() -> None:
    lives = [sample for n in range(6) for sample in life(n, 600 * n, 500, 10)]
    found = growth("learner", lives)
    assert found.lives == 6
    assert found.slope_mb_h == pytest.approx(10)
    assert found.bounded


def test_a_single_step_counts_with_its_height() -> None:
    step = MOST_GROWTH_MB - 4
    flat = life(1, 0, WARM_S + 500, 0)
    lives = [(at, pid, mb + (step if at > WARM_S + 250 else 0)) for at, pid, mb in flat]
    found = growth("joiner-1", lives)
    assert found.grown_mb == pytest.approx(step)
    assert found.bounded
    assert not growth("joiner-1", [(at, pid, mb + at / 4) for at, pid, mb in lives]).bounded


def test_memory_that_an_outage_takes_for_a_while_is_no_growth() -> None:
    steps = [(at, pid, mb + at / 8) for at, pid, mb in life(1, 0, WARM_S + LIFE_S + 40, 0)]
    outage_s = WARM_S + LIFE_S
    taken = [(at, pid, mb + 200 * (at > outage_s)) for at, pid, mb in steps]
    assert growth("joiner-1", taken).bounded


def test_a_life_too_short_has_no_slope() -> None:
    found = growth("learner", life(1, 0, WARM_S + LIFE_S / 2, 9000))
    assert found.slope_mb_h is None
    assert found.bounded


def test_growth_while_a_process_warms_up_is_left_out() -> None:
    steep = [(at, pid, 100 + 5 * at) for at, pid, _ in life(1, 0, WARM_S, 0)]
    flat = [(at + WARM_S, pid, 400.0) for at, pid, _ in life(1, 0, 900, 0)]
    assert growth("joiner", steep + flat).slope_mb_h == pytest.approx(0)


def test_metrics_of_the_server_are_read_by_bucket_and_bound() -> None:
    text = """# TYPE headrace_server_age_seconds gauge
headrace_server_age_seconds{bucket="oldest",model="demo"} 0.25
headrace_server_freshness_seconds_bucket{le="0.1",model="demo"} 4.0
headrace_server_freshness_seconds_bucket{le="+Inf",model="demo"} 5.0
headrace_other 1.0
"""
    assert read_metrics(text) == {
        ("headrace_server_age_seconds", "oldest"): 0.25,
        ("headrace_server_freshness_seconds_bucket", "0.1"): 4.0,
        ("headrace_server_freshness_seconds_bucket", "+Inf"): 5.0,
    }


def test_parked_examples_are_counted_by_name_and_not_in_the_rows() -> None:
    fewer = {field: count - 3 for field, count in EXACT.shows_by_field.items()}
    parked = replace(EXACT, parked=["parked at 3@7"], parked_shows=3, shows_by_field=fewer)
    assert differences(parked) == []
    assert differences(replace(parked, parked_shows=2)) != []
    assert differences(replace(parked, parked_clicks=1)) != []
