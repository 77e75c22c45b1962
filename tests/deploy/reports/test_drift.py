"""The announcement of a demo, and its report of drift and recovery."""

import math

import numpy as np
import pytest

from headrace.deploy.reports.model_comparison import DriftReport, ModelComparison, observed_drift
from headrace.ingest.examples.batch import Kind
from tests.deploy.reports.handmade import examples, scores

AT_S = 30.0


def raced(right_by_second: dict[int, float]) -> ModelComparison:
    """Return a comparison with this AUC in each second."""
    comparison = ModelComparison()
    for second, right in right_by_second.items():
        count = 40
        names = [f"{second}/{i}" for i in range(2 * count)]
        shown = [(Kind.SHOWN, name, None) for name in names]
        comparison.add_examples(examples(shown), second + 0.5)
        clicked = [(Kind.CLICKED, name, None) for name in names[:count]]
        comparison.add_examples(examples(clicked), second + 0.6)
        ranks = np.where(np.arange(count) < right * count, 0.9, 0.1)
        comparison.add_scores(scores([*zip(names[:count], ranks, strict=True)]))
        comparison.add_scores(scores([(name, 0.5) for name in names[count:]]))
    return comparison


def test_the_drift_report_has_the_lowest_auc_and_the_time_of_recovery() -> None:
    course = dict.fromkeys(range(15, 30), 0.8)
    course |= dict.fromkeys(range(30, 33), 0.5)
    course |= dict.fromkeys(range(33, 39), 0.65)
    course |= dict.fromkeys(range(39, 50), 0.8)
    found = observed_drift(raced(course), AT_S)
    assert found is not None
    assert found.before == pytest.approx(0.8)
    assert found.lowest == pytest.approx(0.5)
    assert found.recovered_s == pytest.approx(12.0)
    assert "fell from 0.800 to 0.500 and was back after 12 s" in found.in_words()


def test_a_model_that_does_not_recover_from_drift_is_reported_so() -> None:
    course = {second: 0.8 if second < AT_S else 0.6 for second in range(15, 45)}
    found = observed_drift(raced(course), AT_S)
    assert found is not None
    assert found.recovered_s is None
    assert "had not fully recovered" in found.in_words()


@pytest.mark.parametrize("seconds", [range(15, 30), range(30, 45)])
def test_there_is_no_drift_report_if_only_one_side_was_observed(seconds: range) -> None:
    assert observed_drift(raced(dict.fromkeys(seconds, 0.8)), AT_S) is None


def test_the_drift_report_has_the_frozen_model_if_there_is_one() -> None:
    frozen = DriftReport(90, 0.75, 0.53, 0.51, 15).in_words()
    assert "back after 15 s; the frozen one stayed at 0.510" in frozen
    assert "frozen" not in DriftReport(90, 0.75, 0.53, math.nan, 15).in_words()
