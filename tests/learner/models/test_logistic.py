"""Logistic regression equals a slow reference; its counters are exact."""

import numpy as np
import pytest

from headrace.ingest.examples.batch import Kind
from headrace.learner.inputs.example_inputs import INTERCEPT
from tests.effort import seeds
from tests.learner.models.model_laws import (
    check_batches_do_not_matter,
    check_learned_buckets_stay,
    check_scores_are_answers,
)
from tests.learner.models.slow_logistic import SlowLogistic
from tests.learner.row_comparison import assert_same_rows
from tests.learner.streams import BUCKETS, Bench, counted, part, random_examples, random_spec

CASES = [
    (seed, policy, statistics)
    for seed in range(3)
    for policy in ("immediate", "window")
    for statistics in (False, True)
]


@pytest.mark.parametrize(("seed", "policy", "statistics"), CASES)
def test_logistic_rows_and_scores_equal_a_slow_reference(
    seed: int, policy: str, statistics: bool
) -> None:
    random = np.random.default_rng(seed)
    spec = random_spec(random, policy, statistics)
    examples = random_examples(random, spec, 400, closed=policy == "window")
    bench, slow = Bench(spec), SlowLogistic(spec, BUCKETS)
    scores = bench.learn(examples)
    np.testing.assert_allclose(scores, slow.learn(examples), rtol=1e-3, atol=1e-4)
    assert_same_rows(bench, slow)
    gained = bench.gained()
    for mine, view in zip(gained, bench.rows(), strict=True):
        np.testing.assert_array_equal(mine, view)


@pytest.mark.parametrize("seed", seeds(3))
def test_logistic_regression_leaves_buckets_alone_that_have_the_examples(seed: int) -> None:
    random = np.random.default_rng(seed)
    spec = random_spec(random, "immediate", statistics=True)
    examples = random_examples(random, spec, 400, closed=False)
    bench, slow = Bench(spec), SlowLogistic(spec, BUCKETS)
    check_learned_buckets_stay(bench, examples, random, slow)
    assert_same_rows(bench, slow)


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_logistic_rows_do_not_depend_on_the_batch_size(batch: int) -> None:
    random = np.random.default_rng(11)
    spec = random_spec(random, "immediate", statistics=True)
    examples = random_examples(random, spec, 1500, closed=False)
    check_batches_do_not_matter(Bench(spec), Bench(spec), examples, batch)


def test_logistic_regression_scores_what_predict_would_have_answered() -> None:
    random = np.random.default_rng(5)
    spec = random_spec(random, "immediate", statistics=True)
    examples = random_examples(random, spec, 300, closed=False)
    check_scores_are_answers(Bench(spec), examples)


def test_every_field_counts_every_impression_and_every_click() -> None:
    random = np.random.default_rng(7)
    spec = random_spec(random, "immediate", statistics=True)
    examples = random_examples(random, spec, 500, closed=False)
    bench = Bench(spec)
    bench.learn(examples)
    rows = bench.rows()
    numbers = rows.ids & np.uint64(1023)
    clicks = int(np.count_nonzero(examples.kinds == Kind.CLICKED))
    for number in (0, *counted(spec).values()):
        assert rows.shows[numbers == number].sum() == 500
        assert rows.clicks[numbers == number].sum() == clicks
    assert INTERCEPT in rows.ids


def test_counters_are_exact_when_some_buckets_lost_an_example_and_the_memory_is_gone() -> None:
    """A restart: some buckets applied the first half, all statistics are recomputed."""
    random = np.random.default_rng(13)
    spec = random_spec(random, "immediate", statistics=True)
    examples = random_examples(random, spec, 600, closed=False)
    first, rest = part(examples, 0, 400), part(examples, 400, len(examples))
    have_it = (1, 4, 5, 9, 15)
    bench = Bench(spec)
    bench.learn(first, tuple(bucket for bucket in range(BUCKETS) if bucket not in have_it))
    bench.model.forget()
    bench.learn(first, have_it)
    bench.model.forget()
    bench.learn(rest)
    rows = bench.rows()
    numbers = rows.ids & np.uint64(1023)
    clicks = int(np.count_nonzero(examples.kinds == Kind.CLICKED))
    for name, number in counted(spec).items():
        assert rows.shows[numbers == number].sum() == 600, name
        assert rows.clicks[numbers == number].sum() == clicks, name


def test_a_click_raises_the_prediction_and_shows_lower_it() -> None:
    random = np.random.default_rng(17)
    spec = random_spec(random, "immediate", statistics=False)
    examples = random_examples(random, spec, 50, closed=False)
    bench = Bench(spec)
    asked = part(examples, 0, 1)

    def answer() -> float:
        return float(bench.model.predict(bench.view, asked.features, asked.shown_ms)[0])

    start = answer()
    assert start == 0.5
    for _ in range(5):
        bench.learn(asked)
    assert answer() < start
    low = answer()
    clicked = part(examples, 0, 1)
    clicked.kinds.flags.writeable = True
    clicked.kinds[0], clicked.labels[0] = Kind.CLICKED, 1
    bench.learn(clicked)
    assert answer() > low


def test_after_a_burst_of_clicks_shows_bring_the_prediction_down_again() -> None:
    random = np.random.default_rng(19)
    spec = random_spec(random, "immediate", statistics=False)
    bench = Bench(spec)
    one = part(random_examples(random, spec, 5, closed=False), 0, 1)
    one.kinds[0], one.labels[0] = Kind.CLICKED, 1
    for _ in range(300):
        bench.learn(one)
    assert bench.model.predict(bench.view, one.features, one.shown_ms)[0] > 0.9
    one.kinds[0], one.labels[0] = Kind.SHOWN, 0
    for _ in range(3000):
        bench.learn(one)
    assert bench.model.predict(bench.view, one.features, one.shown_ms)[0] < 0.2


@pytest.mark.thorough
def test_the_expected_step_is_zero_at_the_true_rate() -> None:
    """Shown 20,000 times and clicked at 10 %, one impression's prediction settles at 0.1."""
    random = np.random.default_rng(23)
    spec = random_spec(random, "immediate", statistics=False)
    bench = Bench(spec)
    one = part(random_examples(random, spec, 5, closed=False), 0, 1)
    answers = []
    for clicked in random.random(20_000) < 0.1:
        one.kinds[0], one.labels[0] = Kind.SHOWN, 0
        answers.append(bench.learn(one)[0])
        if clicked:
            one.kinds[0], one.labels[0] = Kind.CLICKED, 1
            bench.learn(one)
    assert np.mean(answers[10_000:]) == pytest.approx(0.1, rel=0.1)
