"""The autoscaler of `tests.bench.elastic` follows the chart and the rules of Kubernetes."""

import pytest

from headrace.deploy.models.shipped import path_of
from tests.bench.pipeline.scaling_rule import Autoscaler, ScalingRule, rule_of_chart

RULE = ScalingRule(1000, 500, 1, 4, 10.0, 300.0, 60.0, 15.0)


def test_the_rule_is_that_of_the_chart() -> None:
    assert rule_of_chart(path_of("demo"), 4, 4, 500) == RULE


@pytest.mark.parametrize(
    ("present", "lag", "rate", "wanted"),
    [
        (1, 0.0, 0.0, 1),
        (1, 10.0, 540.0, 1),  # within the tolerance
        (1, 10.0, 600.0, 2),
        (1, 2500.0, 400.0, 3),  # by the lag
        (2, 10.0, 1600.0, 4),
        (2, 99_999.0, 0.0, 4),  # the partitions bound it
    ],
)
def test_the_number_of_learners_follows_the_larger_of_lag_and_rate(
    present: int, lag: float, rate: float, wanted: int
) -> None:
    assert RULE.wanted(present, lag, rate) == wanted


def test_the_number_grows_at_once_and_shrinks_by_one_a_minute_after_the_window() -> None:
    scaler, present, changes = Autoscaler(RULE), 1, []
    for second in range(0, 1200, 10):
        rate = 1700.0 if 60 <= second < 660 else 400.0
        after = scaler.replicas(float(second), present, 0.0, rate)
        if after != present:
            changes.append((second, after))
        present = after
    # the last four were wanted at 650 s
    assert changes == [(60, 4), (960, 3), (1020, 2), (1080, 1)]
