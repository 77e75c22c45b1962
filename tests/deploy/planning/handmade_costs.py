"""Round constants, so that a test can compute a plan by hand."""

from __future__ import annotations

from headrace.deploy.operations.planning.unit_costs import LinearCost, UnitCosts


def round_costs() -> UnitCosts:
    """Return constants of a whole microsecond or ten."""
    one = LinearCost(1.0, 0.0)
    return UnitCosts(
        source="a test",
        join=LinearCost(10.0, 0.0),
        learn={"deepfm": LinearCost(100.0, 0.0), "logistic_regression": LinearCost(5.0, 0.0)},
        score={"deepfm": LinearCost(10.0, 0.0), "logistic_regression": one},
        request_us=100.0,
        pack=LinearCost(0.1, 0.0),
        follow=LinearCost(0.5, 0.0),
        refresh=LinearCost(0.5, 0.0),
        store_push=LinearCost(0.2, 0.0),
        keep=one,
        store_fold=one,
        store_read_us_per_mb=100.0,
        stored_bytes=LinearCost(60.0, 4.0),
    )
