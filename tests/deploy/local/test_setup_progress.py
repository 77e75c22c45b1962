"""Progress of a start, as a user sees it on a terminal and in a log."""

import io

import pytest
from numba import njit
from rich.console import Console

from headrace.deploy.local.services.progress import SetupProgress
from headrace.runtime.kernels.kernel_cache import compilations_reported


def test_a_log_shows_every_ten_seconds_how_far_a_long_step_is() -> None:
    now_s = [0.0]
    text = io.StringIO()
    steps = SetupProgress(Console(file=text), lambda: now_s[0])
    steps.step("compiling kernels", long=True)
    for now_s[0], count in ((3.0, 1), (9.9, 2), (10.5, 3), (12.0, 4), (20.5, 5)):
        steps.at_work(f"{count} functions compiled")
    steps.step("logs in /tmp/x", long=True)
    now_s[0] = 31.0
    steps.at_work("waiting for server, learner")
    assert text.getvalue().splitlines() == [
        "compiling kernels",
        "  3 functions compiled, 10 s so far",
        "  5 functions compiled, 20 s so far",
        "logs in /tmp/x",
        "  waiting for server, learner, 10 s so far",
    ]


def test_every_compiled_function_is_reported_and_none_after_the_block() -> None:
    counts: list[int] = []
    twice = njit(lambda x: 2 * x)
    with compilations_reported(counts.append):
        twice(1)
        twice(2)
        twice(1.0)
    twice(1j)
    assert counts == [1, 2]
    with pytest.raises(ZeroDivisionError), compilations_reported(counts.append):
        raise ZeroDivisionError
    njit(lambda x: 3 * x)(1)
    assert counts == [1, 2]
