"""`doctor` reports missing and old snapshots."""

import pytest

from headrace.deploy.operations.model_checks import NewestSnapshot, check_snapshots
from headrace.pserver.inspection.model_survey import Survey


@pytest.mark.parametrize(
    ("begun_ms", "got"),
    [(0, "none"), (1_000, "one from 28 hours ago"), (10_000_000, "")],
)
def test_doctor_reports_a_missing_or_an_old_snapshot(begun_ms: int, got: str) -> None:
    looked = Survey("m", 28 * 3_600_000 + 1_000, [], [], None)
    found = list(check_snapshots(looked, NewestSnapshot("DIR", begun_ms)))
    assert [each.found for each in found] == ([got] if got else [])
