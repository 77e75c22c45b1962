"""Progress without a terminal: no rate of nothing, and no examples while they are staged."""

import io
import logging
import math

import pytest
from rich.console import Console

from headrace.deploy.terminal.progress_bars import ShownRate, StepView
from headrace.learner.batch.trainer import FitProgress
from headrace.pserver.snapshots.writer import SnapshotProgress


class Clock:
    """Seconds that a test moves on."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def told(
    caplog: pytest.LogCaptureFixture, progress: list[FitProgress], epochs: int = 1
) -> list[str]:
    """Return what a fit without a terminal logs, with eleven seconds before each progress."""
    clock = Clock()
    caplog.set_level(logging.INFO)
    with StepView(Console(file=io.StringIO()), clock) as view:
        tell = view.fit("fitting shop", epochs)
        for each in progress:
            clock.now_s += 11.0
            tell(each)
    return [record.getMessage() for record in caplog.records]


def test_a_fit_of_one_block_has_the_rate_since_its_begin(caplog: pytest.LogCaptureFixture) -> None:
    begun, done = FitProgress(0, 0.0, 0, math.nan), FitProgress(0, 1.0, 2_200, 0.9)
    assert told(caplog, [begun, done]) == [
        "fitting shop: 0 % 0 examples",
        "fitting shop: 100 % 2,200 examples, 200 examples/s, normalized entropy 0.9000",
    ]


def test_work_on_buckets_is_logged_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    caplog.set_level(logging.INFO)
    with StepView(Console(file=io.StringIO()), clock) as view:
        tell = view.buckets("copying shop")
        for done in range(1, 8):
            clock.now_s += 4.0
            tell(SnapshotProgress(done, 64, 100 * done, 1_000_000 * done))
    assert [record.getMessage() for record in caplog.records] == [
        "copying shop: 3/64 buckets, 300 rows, 3.0 MB, 25 rows/s",
        "copying shop: 6/64 buckets, 600 rows, 6.0 MB, 25 rows/s",
    ]


def test_a_rate_begins_when_the_count_has_first_grown() -> None:
    clock = Clock()
    rate = ShownRate(clock, 500)
    assert rate.text(500, "rows/s") == ""
    clock.now_s += 60.0  # compiles
    assert rate.text(1_100, "rows/s") == ", 10 rows/s"
    clock.now_s += 1.0
    assert rate.text(4_100, "rows/s") == ", 3,000 rows/s"
    assert rate.text(400, "rows/s") == "", "a count that was set back has no rate"
