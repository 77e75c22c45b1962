"""Compares the rows of two models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tests.learner.models.slow_logistic import SlowLogistic
    from tests.learner.streams import Bench


def assert_same_rows(bench: Bench, slow: SlowLogistic, rtol: float = 2e-3) -> None:
    """Counters to the unit, values as far as single precision allows."""
    rows = bench.rows()
    expected = [slow.rows[row_id] for row_id in sorted(slow.rows)]
    assert rows.ids.tolist() == sorted(slow.rows)
    assert rows.shows.tolist() == [row.shows for row in expected]
    assert rows.clicks.tolist() == [row.clicks for row in expected]
    assert rows.first_seen.tolist() == [row.first_seen for row in expected]
    assert rows.last_seen.tolist() == [row.last_seen for row in expected]
    values = [slow.kept_in(row_id) for row_id in sorted(slow.rows)]
    np.testing.assert_allclose(rows.values, values, rtol=rtol, atol=2e-3)
