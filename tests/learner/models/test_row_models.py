"""Row models equal a slow reference with every optimizer; their counters are exact."""

import numpy as np
import pytest

from headrace.ingest.examples.batch import Examples, Kind
from headrace.learner.models.factory import open_model
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from tests.learner.models.model_laws import check_batches_do_not_matter, check_scores_are_answers
from tests.learner.models.slow_factorization import SlowFactorization
from tests.learner.models.slow_logistic import SlowLogistic
from tests.learner.row_comparison import assert_same_rows
from tests.learner.streams import (
    BUCKETS,
    COUNT,
    PROBABILITY,
    Bench,
    counted,
    in_requests,
    of_ids_alone,
    part,
    random_examples,
    random_spec,
)

MACHINE = 'architecture = "factorization_machine"\ndimensions = 3\ninit_scale = 0.1\nseed = 7\n'
OPTIMIZERS = {
    "sgd": "alpha = 0.05\ndecay_per_day = 10.0",
    "adagrad": "alpha = 0.1\nepsilon = 0.1\ndecay_per_day = 5.0",
    "ftrl": "alpha = 0.1\nl1 = 0.05",
    "adam": "alpha = 0.01\nepsilon = 0.01\ndecay_per_day = 2.0",
    "coin": "alpha = 0.05\nbeta = 1.0",
}


def _spec(
    random: np.random.Generator,
    policy: str = "immediate",
    statistics: bool = True,
    kinds: str = "ftrl adagrad",
    growth: str = "",
) -> ModelSpec:
    """kinds: optimizers of weights and of vectors; of weights alone: logistic regression."""
    weights, *embeddings = kinds.split()
    section = "".join(
        f'[optimizer.embeddings]\nname = "{name}"\n{OPTIMIZERS[name]}\n' for name in embeddings
    )
    model = MACHINE if embeddings else ""
    text = random_spec(random, policy, statistics, section + growth, model).text
    if weights != "ftrl":
        start, _, rest = text.partition("[optimizer]")
        later = rest.find("\n[")
        own = f'[optimizer]\nname = "{weights}"\n{OPTIMIZERS[weights]}\n'
        text = start + own + (rest[later:] if later >= 0 else "")
    return parse_spec(of_ids_alone(text) if "coin" in kinds else text, "test.toml")


def _learned_as_slowly(
    random: np.random.Generator, spec: ModelSpec, kinds: str, examples: Examples
) -> Bench:
    """Learn the examples, some buckets at a time, and compare with a slow reference."""
    slow = (SlowLogistic if kinds == "ftrl" else SlowFactorization)(spec, BUCKETS)
    bench = Bench(spec)
    for begin in range(0, len(examples), 50):
        batch = part(examples, begin, begin + 50)
        inactive = tuple(int(bucket) for bucket in random.choice(BUCKETS, 3, replace=False))
        found, expected = bench.learn(batch, inactive), slow.learn(batch, inactive)
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4)
    assert_same_rows(bench, slow, rtol=5e-3)
    return bench


@pytest.mark.parametrize(
    ("policy", "statistics", "kinds", "growth"),
    [
        ("immediate", False, "ftrl", ""),
        ("immediate", True, "ftrl", ""),
        ("window", True, "ftrl", ""),
        ("window", False, "sgd", ""),
        ("immediate", True, "adagrad", ""),
        ("window", True, "adam", ""),
        ("immediate", True, "coin", ""),
        ("immediate", True, "ftrl adagrad", ""),
        ("window", True, "sgd adagrad", ""),
        ("immediate", False, "ftrl sgd", ""),
        ("window", False, "adagrad ftrl", ""),
        ("immediate", True, "adam adam", ""),
        ("immediate", True, "ftrl adagrad", COUNT),
        ("immediate", False, "ftrl adagrad", PROBABILITY),
        ("immediate", True, "coin coin", ""),
        ("window", False, "ftrl coin", ""),
        ("window", True, "coin sgd", ""),
        ("immediate", False, "ftrl ftrl", ""),
        ("window", False, "ftrl adam", ""),
    ],
)
def test_rows_and_scores_equal_a_slow_reference(
    policy: str, statistics: bool, kinds: str, growth: str
) -> None:
    random = np.random.default_rng(len(kinds) + statistics)
    spec = _spec(random, policy, statistics, kinds, growth)
    examples = random_examples(random, spec, 300, closed=policy == "window")
    bench = _learned_as_slowly(random, spec, kinds, examples)
    for mine, view in zip(bench.gained(), bench.rows(), strict=True):
        np.testing.assert_array_equal(mine, view)


@pytest.mark.parametrize("policy", ["immediate", "window"])
@pytest.mark.parametrize(
    "kinds", ["ftrl", "coin", "adam", "ftrl adagrad", "coin ftrl", "sgd sgd", "ftrl adam"]
)
def test_a_row_that_a_request_shares_is_stepped_once_by_the_sum_of_its_gradients(
    policy: str, kinds: str
) -> None:
    random = np.random.default_rng(23)
    spec = _spec(random, policy, statistics=True, kinds=kinds)
    examples = in_requests(random_examples(random, spec, 300, closed=policy == "window"), 5)
    _learned_as_slowly(random, spec, kinds, examples)


@pytest.mark.parametrize("kinds", ["ftrl", "ftrl adagrad"])
@pytest.mark.parametrize("batch", [1, 7])
def test_rows_do_not_depend_on_the_batch_size(batch: int, kinds: str) -> None:
    random = np.random.default_rng(11)
    spec = _spec(random, kinds=kinds)
    examples = random_examples(random, spec, 500, closed=False)
    check_batches_do_not_matter(Bench(spec), Bench(spec), examples, batch)


@pytest.mark.parametrize(("kinds", "growth"), [("ftrl", ""), ("ftrl adagrad", COUNT)])
def test_a_model_scores_what_predict_would_have_answered(kinds: str, growth: str) -> None:
    random = np.random.default_rng(5)
    spec = _spec(random, kinds=kinds, growth=growth)
    examples = random_examples(random, spec, 200, closed=False)
    check_scores_are_answers(Bench(spec), examples)


@pytest.mark.parametrize("growth", ["", COUNT, PROBABILITY], ids=["all", "count", "probability"])
def test_counters_are_exact_after_a_restart_with_unequal_marks(growth: str) -> None:
    """Examples read again are decided anew, by an empty filter and without kept statistics."""
    random = np.random.default_rng(13)
    spec = random_spec(random, "immediate", statistics=True, growth=growth)
    examples = random_examples(random, spec, 600, closed=False)
    first, rest = part(examples, 0, 400), part(examples, 400, len(examples))
    have_it = (1, 4, 5, 9, 15)
    bench = Bench(spec)
    bench.learn(first, tuple(bucket for bucket in range(BUCKETS) if bucket not in have_it))
    bench.model = open_model(spec, BUCKETS)
    bench.learn(first, have_it)
    bench.model = open_model(spec, BUCKETS)
    bench.learn(rest)
    rows = bench.rows()
    numbers = rows.ids & np.uint64(1023)
    clicks = int(np.count_nonzero(examples.kinds == Kind.CLICKED))
    for name, number in counted(spec).items():
        assert rows.shows[numbers == number].sum() == 600, name
        assert rows.clicks[numbers == number].sum() == clicks, name


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
