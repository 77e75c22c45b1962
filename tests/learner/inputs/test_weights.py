"""An example of weight k moves a model as k examples would, and counts as one."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.ingest.examples.batch import Examples, Kind, concatenate
from headrace.ingest.features.spec_text import SpecError
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from tests.learner.models.slow_factorization import SlowFactorization
from tests.learner.models.slow_logistic import SlowLogistic
from tests.learner.streams import BUCKETS, FIELDS, Bench, part, random_examples, random_spec

MACHINE = 'architecture = "factorization_machine"\ndimensions = 3\ninit_scale = 0.1\n'
ADAGRAD = '[optimizer.embeddings]\nname = "adagrad"\nalpha = 0.1\nepsilon = 0.1\n'
DEEP = 'architecture = "wide_and_deep"\ndimensions = 3\nlayers = [6]\nmini_batch = 256\n'
SGD = '[optimizer]\nname = "sgd"\nalpha = 0.05\n'


def _weighed(examples: Examples, weights: np.ndarray) -> Examples:
    return replace(examples, weights=np.asarray(weights, np.float32))


def _random_weights(random: np.random.Generator, count: int) -> np.ndarray:
    return random.choice([0.0, 0.5, 1.0, 2.0, 10.0], count)


def _plain(text: str, policy: str = "window", model: str = "") -> ModelSpec:
    fields = FIELDS.format(policy=policy).replace("[model]", "[model]\n" + model)
    return parse_spec(fields + text, "test.toml")


@pytest.mark.parametrize("policy", ["immediate", "window"])
@pytest.mark.parametrize("machine", [False, True])
def test_weighed_examples_give_the_rows_of_a_slow_reference(policy: str, machine: bool) -> None:
    random = np.random.default_rng(5)
    growth, model = (ADAGRAD, MACHINE) if machine else ("", "")
    spec = random_spec(random, policy, True, growth, model)
    examples = random_examples(random, spec, 300, closed=policy == "window")
    examples = _weighed(examples, _random_weights(random, len(examples)))
    slow = (SlowFactorization if machine else SlowLogistic)(spec, BUCKETS)
    bench = Bench(spec)
    expected = slow.learn(examples)
    np.testing.assert_allclose(bench.learn(examples), expected, rtol=5e-3, atol=1e-3)
    rows = bench.rows()
    assert rows.shows.tolist() == [slow.rows[row_id].shows for row_id in sorted(slow.rows)]
    assert np.nanstd(expected) > 0.02


@pytest.mark.parametrize("weight", [0.0, 0.25, 7.0])
def test_a_weight_scales_the_gradient_step(weight: float) -> None:
    random, spec = np.random.default_rng(3), _plain(SGD)
    examples = random_examples(random, spec, 1, closed=True)
    one, many = Bench(spec), Bench(spec)
    one.learn(examples)
    many.learn(_weighed(examples, np.array([weight])))
    expected = np.float32(weight) * one.rows().values
    np.testing.assert_allclose(many.rows().values, expected, rtol=1e-6)
    assert np.any(one.rows().values)


@pytest.mark.parametrize("dense", ["sgd", "adagrad", "adam"])
def test_weight_three_equals_three_copies_in_a_mini_batch(dense: str) -> None:
    pytest.importorskip("torch", reason="deep models are an extra")
    random = np.random.default_rng(4)
    optimizer = "[optimizer]\n" + ADAGRAD + f'[optimizer.dense]\nname = "{dense}"\n'
    spec = _plain(optimizer, model=DEEP)
    batch = random_examples(random, spec, 8, closed=True)
    thrice, weighed = Bench(spec), Bench(spec)
    copies = concatenate([batch] * 3)
    found = weighed.learn(_weighed(batch, np.full(8, 3.0)))
    np.testing.assert_allclose(found, thrice.learn(copies)[:8], rtol=1e-6)
    rows, other = thrice.rows(), weighed.rows()
    assert rows.ids.tolist() == other.ids.tolist()
    np.testing.assert_allclose(other.values, rows.values, rtol=1e-4, atol=1e-6)
    assert rows.shows.sum() == 3 * other.shows.sum()


@pytest.mark.parametrize("model", ["", MACHINE])
def test_weight_zero_learns_nothing_and_counts(model: str) -> None:
    random = np.random.default_rng(6)
    spec = random_spec(random, "immediate", True, ADAGRAD if model else "", model)
    examples = random_examples(random, spec, 200, closed=False)
    bench, whole = Bench(spec), Bench(spec)
    bench.learn(_weighed(examples, np.zeros(len(examples))))
    whole.learn(examples)
    found, expected = bench.rows(), whole.rows()
    assert not found.values.any()
    assert expected.values.any()
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.shows.tolist() == expected.shows.tolist()
    assert found.clicks.tolist() == expected.clicks.tolist()


def test_weights_of_one_equal_no_weights_bit_for_bit() -> None:
    random = np.random.default_rng(8)
    spec = random_spec(random, "immediate", statistics=True)
    examples = random_examples(random, spec, 300, closed=False)
    bare, weighed = Bench(spec), Bench(spec)
    bare.learn(examples)
    for begin in range(0, len(examples), 70):
        weighed.learn(part(_weighed(examples, np.ones(len(examples))), begin, begin + 70))
    for mine, other in zip(bare.rows(), weighed.rows(), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_a_click_of_weight_three_balances_three_shows() -> None:
    """In expectation: where p is the rate, the weighed slopes of shows and clicks cancel."""
    random, spec = np.random.default_rng(9), _plain(SGD, policy="immediate")
    examples = random_examples(random, spec, 3000, closed=False)
    clicks = examples.kinds == Kind.CLICKED
    bench = Bench(spec)
    scores = bench.learn(_weighed(examples, np.where(clicks, 0.5, 1.0)))
    late = scores[~clicks][-1000:]
    rate = 0.33
    assert 0.5 * rate * 0.75 < late.mean() < 0.5 * rate * 1.25


def test_rows_statistics_are_refused_with_down_sampling() -> None:
    text = FIELDS.format(policy="window") + "[examples]\nnegative_rate = 0.1\n"
    assert parse_spec(text, "test.toml").fields.weights.negative_rate == 0.1
    text += '[statistics.rate]\nnumber = 40\nstatistic = "rate"\nof = "item"\n'
    with pytest.raises(SpecError, match=r"negative_rate beside \[statistics"):
        parse_spec(text, "test.toml")
