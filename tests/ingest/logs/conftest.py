"""Fixtures of the tests of logs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


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
