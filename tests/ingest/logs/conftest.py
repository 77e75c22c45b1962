"""Fixtures of the tests of logs."""

import time
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def far_from_utc() -> Iterator[None]:
    """Set the zone of this process to one that differs from UTC by 3:30 hours, or 2:30 in summer.

    Times in a file without a zone are in UTC, wherever they are read. In UTC, no test would fail if
    they were taken for local times.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "America/St_Johns")
        time.tzset()
        yield
    time.tzset()
