"""Scores joined with outcomes: what counts, what does not, whatever order they came in."""

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import roc_auc_score

from headrace.ingest.examples.batch import Kind
from headrace.learner.validation.outcomes import join_outcomes
from tests.deploy.reports.handmade import examples, scores
from tests.effort import seeds

SHOWN, CLICKED, CLOSED = Kind.SHOWN, Kind.CLICKED, Kind.CLOSED


def test_a_closed_window_carries_its_label_with_it() -> None:
    outcomes = join_outcomes(
        [examples([(CLOSED, "a", None), (CLOSED, "b", None)], labels=[1, 0])],
        [scores([("a", 0.7), ("b", 0.6)])],
    )
    assert outcomes.labels.tolist() == [1, 0]
    assert outcomes.figures().auc == 1.0


def test_an_impression_without_a_score_is_left_out() -> None:
    outcomes = join_outcomes(
        [examples([(SHOWN, "a", None), (SHOWN, "b", None)])], [scores([("b", 0.2), ("z", 0.3)])]
    )
    assert outcomes.impression_ids.to_pylist() == ["b"]


def test_the_accuracy_of_a_part_of_the_impressions_is_computed_alone() -> None:
    outcomes = join_outcomes(
        [examples([(SHOWN, name, None) for name in "abcd"] + [(CLICKED, "a", None)])],
        [scores([("a", 0.9), ("b", 0.1), ("c", 0.95), ("d", 0.2)])],
    )
    part = outcomes.named(pa.array(["a", "b", "never shown"], pa.large_string()))
    assert part.impression_ids.to_pylist() == ["a", "b"]
    assert part.figures().auc == 1.0
    assert outcomes.figures().auc == pytest.approx(2 / 3)


@pytest.mark.parametrize("seed", seeds(3))
def test_the_accuracy_of_a_log_equals_a_join_by_hand(seed: int) -> None:
    random = np.random.default_rng(seed)
    names = [f"i{number}" for number in random.permutation(500)]
    given = dict(zip(names, random.random(500).tolist(), strict=True))
    clicked = [name for name in names if random.random() < 0.3]
    batches = [examples([(SHOWN, name, None) for name in names[at : at + 50]]) for at in
               range(0, 500, 50)]  # fmt: skip
    batches.append(examples([(CLICKED, name, None) for name in clicked]))
    outcomes = join_outcomes(
        batches, [scores(list(given.items())), scores([(name, 0.5) for name in names[::3]])]
    )
    by_hand = roc_auc_score([name in set(clicked) for name in names], list(given.values()))
    assert outcomes.figures().auc == pytest.approx(by_hand), f"seed {seed}"
