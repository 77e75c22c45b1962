"""An example of weight k moves a model as k examples would, and counts as one."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.ingest.examples.batch import Examples, concatenate
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from tests.learner.models.slow_factorization import SlowFactorization
from tests.learner.models.slow_logistic import SlowLogistic
from tests.learner.row_comparison import assert_same_rows
from tests.learner.streams import BUCKETS, FIELDS, Bench, part, random_examples, random_spec

MACHINE = 'architecture = "factorization_machine"\ndimensions = 3\ninit_scale = 0.1\n'
ADAGRAD = '[optimizer.embeddings]\nname = "adagrad"\nalpha = 0.1\nepsilon = 0.1\n'
DEEP = 'architecture = "wide_and_deep"\ndimensions = 3\nlayers = [6]\nmini_batch = 256\n'


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
    assert_same_rows(bench, slow, rtol=1e-2)
    assert np.nanstd(expected) > 0.02


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
