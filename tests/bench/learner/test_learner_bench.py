"""Tests the output of `tests.bench.learner`, and the interval in which it measures `steady_lr`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.learner.durable import (
    BUCKETS,
    STEADY_KEEP_BYTES,
    STEADY_LOG_BYTES,
    Look,
    steady_window,
    when_held_up,
)

ROOT = Path(__file__).parents[3]
RATES = (
    *("core_lr", "durable_lr", "steady_lr", "durable_fm", "durable_deepfm"),
    *("vowpal_wabbit_learn", "vowpal_wabbit_file", "river"),
)
RATIOS = {
    "durable_lr_to_vw": ("durable_lr", "vowpal_wabbit_learn"),
    "core_lr_to_vw_file": ("core_lr", "vowpal_wabbit_file"),
    "durable_lr_to_river": ("durable_lr", "river"),
}


def looks(*lengths: float) -> list[Look]:
    """Look every second at logs of so many times their bound, ten examples learned in between."""
    full = STEADY_LOG_BYTES * BUCKETS
    return [Look(k, 10.0 * k, round(full * each), done=False) for k, each in enumerate(lengths)]


def times(window: tuple[Look, Look] | None) -> tuple[float, float] | None:
    return None if window is None else (window[0].at_s, window[1].at_s)


def test_a_steady_learner_is_measured_from_full_logs_to_full_logs() -> None:
    seen = looks(0.0, 0.5, 0.95, 0.7, 1.1, 0.6, 0.92, 0.8)
    assert times(when_held_up(seen, 2.0)) == (2, 6)
    assert times(when_held_up(seen[:5], 2.0)) == (2, 4)
    assert when_held_up(seen[:4], 2.0) is None  # full once
    assert when_held_up(seen, 5.0) is None
    assert times(steady_window(seen, 4.0)) == (2, 6)
    assert times(steady_window(seen, 8.0)) == (2, 6)  # half of what was wanted will do


def test_a_learner_that_hardly_waits_is_measured_from_the_first_trimmable_entry() -> None:
    kept = STEADY_KEEP_BYTES / STEADY_LOG_BYTES
    seen = looks(0.0, kept / 2, kept, 0.8, 0.95, 0.5)
    first, last = steady_window(seen, 4.0)
    assert (first.at_s, last.at_s) == (2, 5)
    assert first.bytes_an_example == pytest.approx(STEADY_KEEP_BYTES * BUCKETS / 20.0)
    with pytest.raises(ValueError, match=r"expected more examples, found .*nothing had to be"):
        steady_window(seen[:2], 4.0)


@pytest.mark.long
def test_a_quick_run_prints_one_object_with_every_figure_as_its_last_line() -> None:
    command = [sys.executable, "-m", "tests.bench.learner", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert all(found[rate] > 0 for rate in RATES)
    for ratio, (one, other) in RATIOS.items():
        assert found[ratio] == pytest.approx(found[one] / found[other], rel=0.01)
