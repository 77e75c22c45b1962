"""The live model and the frozen one, compared on the same impressions."""

import math

import numpy as np
import pytest

from headrace.deploy.reports.model_comparison import ModelComparison
from headrace.ingest.examples.batch import Kind
from tests.deploy.reports.handmade import examples, scores

SHOWN, CLICKED = Kind.SHOWN, Kind.CLICKED


def test_the_demo_shows_only_the_live_model_before_the_freeze() -> None:
    comparison = ModelComparison()
    comparison.add_examples(
        examples([(SHOWN, "a", None), (SHOWN, "b", None), (CLICKED, "b", None)]), 1
    )
    comparison.add_scores(scores([("a", 0.1), ("b", 0.2)]))
    snapshot = comparison.snapshot(0, 10)
    assert snapshot.live == 1.0
    assert math.isnan(snapshot.frozen)
    assert math.isnan(snapshot.truth)
    assert (comparison.scored, comparison.examples) == (2, 3)


def test_live_and_frozen_model_are_compared_on_impressions_that_both_have_scored() -> None:
    comparison = ModelComparison()
    comparison.add_examples(examples([(SHOWN, "early", None), (CLICKED, "early", None)]), 1)
    comparison.frozen = lambda features, _: np.linspace(0.9, 0.1, len(features))
    comparison.add_examples(examples([(SHOWN, "a", None), (SHOWN, "b", None)]), 5)
    comparison.add_examples(examples([(CLICKED, "b", None)]), 6)
    comparison.add_scores(scores([("early", 0.01), ("a", 0.1), ("b", 0.2)]))
    comparison.add_truth(["b", "a", "early"], np.array([0.8, 0.2, 0.5]))
    snapshot = comparison.snapshot(0, 10)
    assert snapshot[:4] == (1.0, 0.0, 1.0, 2)
    live, frozen = [0.1, 0.2], [0.9, 0.1]
    for found, (a, b) in ((snapshot.live_loss, live), (snapshot.frozen_loss, frozen)):
        assert found == pytest.approx(-(math.log(1 - a) + math.log(b)) / 2)


def test_a_model_comparison_counts_only_impressions_of_its_window() -> None:
    comparison = ModelComparison()
    for second, name in enumerate("abcd"):
        comparison.add_examples(examples([(SHOWN, name, None)]), second)
    comparison.add_examples(examples([(CLICKED, "b", None), (CLICKED, "d", None)]), 9)
    comparison.add_scores(scores([("a", 0.1), ("b", 0.2), ("c", 0.9), ("d", 0.8)]))
    assert comparison.snapshot(0, 2).live == 1.0
    assert comparison.snapshot(2, 4).live == 0.0
    assert comparison.snapshot(4, 9).impressions == 0
    assert math.isnan(comparison.snapshot(4, 9).live)


def test_the_first_score_of_an_impression_counts_in_either_order_of_arrival() -> None:
    comparison = ModelComparison()
    comparison.add_scores(scores([("a", 0.9)]))
    comparison.add_scores(scores([("a", 0.1)]))
    comparison.add_examples(
        examples([(SHOWN, "a", None), (SHOWN, "b", None), (CLICKED, "a", None)]), 0
    )
    comparison.add_scores(scores([("b", 0.5)]))
    assert comparison.snapshot(0, 1).live == 1.0
    assert comparison.scored == 2
