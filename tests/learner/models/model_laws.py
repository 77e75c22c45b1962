"""Laws of every model: what it learns depends on the examples, and not on how they arrive."""

from typing import Protocol

import numpy as np
import pytest

from headrace.ingest.examples.batch import Examples, Kind
from tests.learner.streams import BUCKETS, Bench, part


class SlowModel(Protocol):
    """A plain implementation of the same model."""

    def learn(self, examples: Examples, inactive: tuple[int, ...] = ()) -> list[float]: ...


def check_batches_do_not_matter(whole: Bench, split: Bench, examples: Examples, batch: int) -> None:
    """Two models of one spec learn the examples: one at once, the other in batches."""
    scores = whole.learn(examples)
    made = [
        split.learn(part(examples, begin, begin + batch))
        for begin in range(0, len(examples), batch)
    ]
    np.testing.assert_array_equal(np.concatenate(made), scores)
    np.testing.assert_array_equal(np.isnan(scores), examples.kinds == Kind.CLICKED)
    for one, other in zip(whole.rows(), split.rows(), strict=True):
        np.testing.assert_array_equal(one, other)


def check_scores_are_answers(bench: Bench, examples: Examples, rel: float = 0.0) -> None:
    """A score is what `predict` answered before, which adds no row; a click has none.

    rel: the largest relative difference, for models that add floats in another order.
    """
    for i in range(len(examples)):
        one = part(examples, i, i + 1)
        rows = len(bench.view)
        answered = bench.model.predict(bench.view, one.features, one.event_ms)
        again = bench.model.predict(bench.view, one.features, one.event_ms)
        assert (len(bench.view), again) == (rows, answered)
        [score] = bench.learn(one)
        if one.kinds[0] == Kind.CLICKED:
            assert np.isnan(score)
        else:
            assert score == pytest.approx(answered[0], rel=rel, abs=0.0)


def check_learned_buckets_stay(
    bench: Bench, examples: Examples, random: np.random.Generator, slow: SlowModel | None = None
) -> None:
    """Buckets that have the examples of a batch stay as they are, row by row."""
    for begin in range(0, len(examples), 50):
        batch = part(examples, begin, begin + 50)
        inactive = tuple(int(bucket) for bucket in random.choice(BUCKETS, 5, replace=False))
        before, scores = bench.rows(), bench.learn(batch, inactive)
        if slow is not None:
            expected = slow.learn(batch, inactive)
            np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-4)
        after = bench.rows()
        left = np.isin(bench.shape.bucket_of(before.ids), inactive)
        still = np.isin(bench.shape.bucket_of(after.ids), inactive)
        for old, new in zip(before.chosen(left), after.chosen(still), strict=True):
            np.testing.assert_array_equal(old, new)
