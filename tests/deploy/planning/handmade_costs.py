"""Round constants, so that a test can compute a plan by hand."""

from __future__ import annotations

from headrace.deploy.operations.planning.unit_costs import LinearCost, LogCost, UnitCosts


def round_costs() -> UnitCosts:
    """Return constants of a whole microsecond or ten."""
    one = LinearCost(1.0, 0.0)
    return UnitCosts(
        source="a test",
        join=LinearCost(10.0, 0.0),
        learn={"deepfm": LinearCost(100.0, 0.0), "logistic_regression": LinearCost(5.0, 0.0)},
        score={"deepfm": LinearCost(10.0, 0.0), "logistic_regression": one},
        request_us=100.0,
        push=_log_cost(0.1, 10.0),
        follow=_log_cost(0.5, 20.0),
        refresh=_log_cost(0.5, 0.0),
        store_push=_log_cost(0.2, 10.0),
        keep=one,
        store_read=_log_cost(0.1, 5.0),
        store_fold=one,
        stored_bytes=LinearCost(60.0, 4.0),
    )


def _log_cost(row_us: float, entry_us: float) -> LogCost:
    return LogCost(LinearCost(row_us, 0.0), entry_us)
