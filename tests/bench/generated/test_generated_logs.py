"""The generated logs are what their plans say, and the figures are those of known scores."""

import numpy as np
import pytest

from tests.bench.generated.generated_logs import QUICK, entropy, figures
from tests.bench.generated.log_generator import generate, plans


@pytest.mark.parametrize("number", [3, 8, 10])
def test_a_generated_log_has_the_properties_of_its_plan(number: int) -> None:
    plan = plans()[number]
    log = generate(plan, 6_000)
    rate = plan.base_rate
    assert log.truth.mean() == pytest.approx(rate, rel=1e-6)
    assert abs(log.labels.mean() - rate) < 5.0 * np.sqrt(rate / len(log))
    assert (log.ids.max(axis=0) < plan.cardinalities).all()
    assert (np.diff(log.shown_ms) >= 0).all()
    assert (np.unique(log.requests, return_counts=True)[1] == plan.candidates).all()
    if plan.bag_items:
        assert np.diff(log.bag_offsets).max() == plan.bag_items
    again = generate(plan, 6_000)
    assert all((one == other).all() for one, other in zip(log[1:], again[1:], strict=True))


def test_a_constant_that_knows_the_rate_has_a_normalized_entropy_of_one() -> None:
    log = generate(plans()[10], 6_000)
    rate = log.labels[2_000:].mean()
    found = figures(log, np.full(len(log), rate), QUICK)
    assert found["ne"] == pytest.approx(1.0)
    assert 1.0 <= found["worst_ne"] < 1.2
    assert np.isnan(entropy(np.zeros(5, np.int8)))
