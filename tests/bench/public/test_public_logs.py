"""A rival learns a label when it is known, and a request after it was scored."""

import numpy as np
import pandas as pd
import pytest

from tests.bench.public.log_files import PublicLog
from tests.bench.public.public_logs import main, moments


def log_of(shown: list[float], known: list[float], requests: list[int]) -> PublicLog:
    labels = np.zeros(len(shown), np.bool_)
    times = np.array(shown), np.array(known)
    return PublicLog("x", pd.DataFrame(), "", [], [], [], labels, *times, np.array(requests))


def test_labels_come_when_they_are_known() -> None:
    found = list(moments(log_of([0.0, 1.0, 2.0, 9.0], [5.0, 1.5, 8.0, 9.0], [-1] * 4)))
    assert found == [
        (False, 0),
        (False, 1),
        (True, 1),
        (False, 2),
        (True, 0),
        (True, 2),
        (False, 3),
    ]


def test_a_request_is_scored_before_any_of_it_is_learned() -> None:
    found = list(moments(log_of([0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [4, 4, 5])))
    assert found == [(False, 0), (False, 1), (True, 0), (True, 1), (False, 2)]


def test_without_the_logs_nothing_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick", "--json", "--data", "no-such-folder"])
    assert "not measured: no swissmetro.csv" in capsys.readouterr().err
