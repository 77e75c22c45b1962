"""Uncertainty falls with what was seen, and bounds the effect of one more outcome."""

import math

import numpy as np
import pytest

from headrace.ingest.features.encoder import Encoder
from headrace.learner.errors import NoUncertainty
from headrace.learner.inputs.example_inputs import INTERCEPT
from headrace.learner.spec.model_spec import parse_spec
from tests.learner.streams import (
    COUNT,
    FIELDS,
    START_MS,
    Bench,
    of_ids_alone,
    part,
    random_examples,
    random_spec,
)

MACHINE = 'architecture = "factorization_machine"\ndimensions = 3\n'
DEEP = 'architecture = "wide_and_deep"\ndimensions = 3\nlayers = [4]\n'
FTRL = '[optimizer]\nname = "ftrl"\nalpha = 0.2\nbeta = 1.5\nl1 = 0.0\nl2 = 0.0\n'
ADAGRAD = '[optimizer]\nname = "adagrad"\nalpha = 0.2\nepsilon = 0.01\n'
COIN = '[optimizer]\nname = "coin"\nalpha = 0.2\nbeta = 1.5\n'


def _bench(optimizer: str, model: str = "") -> Bench:
    if model == DEEP:
        pytest.importorskip("torch", reason="deep models are an extra")
    fields = FIELDS.format(policy="window").replace("[model]", "[model]\n" + model)
    text = fields + optimizer
    return Bench(parse_spec(of_ids_alone(text) if optimizer == COIN else text, "test.toml"))


@pytest.mark.parametrize("model", ["", MACHINE, DEEP])
@pytest.mark.parametrize("optimizer", [FTRL, ADAGRAD, COIN])
def test_uncertainty_is_the_sum_of_the_rates_of_all_inputs(optimizer: str, model: str) -> None:
    bench = _bench(optimizer, model)
    examples = random_examples(np.random.default_rng(1), bench.spec, 60, closed=True)
    bench.learn(examples)
    rows = bench.rows()
    seen = dict(zip(rows.ids.tolist(), rows.values[:, 1].tolist(), strict=True))

    def rate(row_id: int) -> float:
        n = seen.get(row_id, 0.0)  # of coin the sizes of gradients
        if optimizer == FTRL:
            return 0.2 / (1.5 + math.sqrt(n))
        if optimizer == COIN:
            return 0.2 / (1.5 + math.sqrt(n / 2.0))
        return 0.2 / (math.sqrt(n + 1.0) + 0.01)

    asked = random_examples(np.random.default_rng(2), bench.spec, 20, closed=True)
    features, expected = asked.features, []
    prices = bench.spec.fields.number_ids.tolist()  # none of coin
    for i in range(len(asked)):
        items = features.bag_ids[features.bag_offsets[2 * i] : features.bag_offsets[2 * i + 2]]
        ids = [INTERCEPT, *features.ids[i].tolist(), *items.tolist()]
        numbers = zip(prices, features.numbers[i].tolist(), strict=True)
        expected.append(sum(map(rate, ids)) + sum(rate(row) * abs(x) for row, x in numbers))
    before = len(bench.view)
    found = bench.model.uncertainty(bench.view, features, asked.event_ms)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert len(bench.view) == before


@pytest.mark.parametrize("optimizer", [FTRL, ADAGRAD])
def test_no_outcome_moves_the_log_odds_beyond_the_uncertainty(optimizer: str) -> None:
    bench = _bench(optimizer)
    examples = random_examples(np.random.default_rng(3), bench.spec, 300, closed=True)
    moved = []
    for i in range(len(examples)):
        one = part(examples, i, i + 1)
        if np.unique(one.features.bag_ids).shape != one.features.bag_ids.shape:
            bench.learn(one)  # what is in it twice steps twice and counts twice
            continue
        bound = bench.model.uncertainty(bench.view, one.features, one.event_ms)[0]
        largest = max(1.0, abs(float(one.features.numbers[0, 0])))
        before = bench.learn(one)[0]
        after = bench.model.predict(bench.view, one.features, one.event_ms)[0]
        step = abs(math.log(after / (1 - after)) - math.log(before / (1 - before)))
        assert step <= bound * largest * 1.001
        moved.append(step / bound)
    assert max(moved) > 0.3
    assert len(moved) > 100


def test_uncertainty_falls_with_examples_with_statistics_and_admission() -> None:
    spec = random_spec(np.random.default_rng(4), "window", True, COUNT + "fields = ['item']\n")
    bench = Bench(spec)
    examples = random_examples(np.random.default_rng(5), spec, 400, closed=True)
    events = [{"item": 1, "user": "u1"}, {"item": 99, "user": "nobody"}]
    asked = Encoder(spec.fields).encode(events)
    times = np.full(2, START_MS + 3_600_000, np.int64)
    unlearned = bench.model.uncertainty(bench.view, asked, times)
    bench.learn(examples)
    seen, new = bench.model.uncertainty(bench.view, asked, times)
    assert seen < new < unlearned[1]


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_uncertainty_of_sgd_and_adam_is_refused_by_name(name: str) -> None:
    bench = _bench(f'[optimizer]\nname = "{name}"\n')
    asked = Encoder(bench.spec.fields).encode([{}])
    with pytest.raises(NoUncertainty, match=f'model "test".*"{name}"'):
        bench.model.uncertainty(bench.view, asked, np.zeros(1, np.int64))
