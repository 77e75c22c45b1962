"""The parts of a score's log-odds, by field."""

import numpy as np
import pytest

from headrace.learner.models.explanations import EXACT, LEAVE_ONE_OUT, log_odds_of
from headrace.learner.spec.model_spec import parse_spec
from tests.learner.streams import FIELDS, Bench, random_examples

MACHINE = 'architecture = "factorization_machine"\ndimensions = 3\n'
DEEP = 'architecture = "wide_and_deep"\ndimensions = 3\nlayers = [4]\n'
CHOICE = 'loss = "choice"\n'
PLATT = '[calibration]\nkind = "platt"\n'
FTRL = '[optimizer]\nname = "ftrl"\nalpha = 0.2\nbeta = 1.5\nl1 = 0.0\nl2 = 0.0\n'


def _bench(model: str, more: str = "") -> Bench:
    fields = FIELDS.format(policy="window").replace("[model]", "[model]\n" + model)
    bench = Bench(parse_spec(fields + FTRL + more, "test.toml"))
    bench.learn(random_examples(np.random.default_rng(1), bench.spec, 300, closed=True))
    return bench


@pytest.mark.parametrize("more", ["", PLATT])
@pytest.mark.parametrize(
    "model", ["", "base_rate = 0.05\n", MACHINE, MACHINE + "base_rate = 0.05\n", CHOICE]
)
def test_the_parts_of_a_sum_are_exact(model: str, more: str) -> None:
    bench = _bench(model, more)
    asked = random_examples(np.random.default_rng(2), bench.spec, 20, closed=True)
    before = len(bench.view)
    found = bench.model.explain(lambda *_: bench.view, asked.features, asked.event_ms)
    scores = bench.model.predict(bench.view, asked.features, asked.event_ms)
    np.testing.assert_allclose(found.log_odds, log_odds_of(scores), rtol=1e-4, atol=1e-5)
    total = found.parts.sum(axis=1) + found.pair_parts.sum(axis=1)
    np.testing.assert_allclose(found.log_odds, total, atol=1e-9)
    assert found.method == EXACT
    declared = [*bench.spec.fields.singles, *bench.spec.fields.bags, *bench.spec.fields.numbers]
    assert {each.name for each in declared} <= set(found.names)
    assert bool(found.pairs) == (MACHINE in model)
    assert ("calibration" in found.names) == bool(more or model == CHOICE)
    assert len(bench.view) == before


def test_the_part_of_a_single_field_is_the_weight_of_its_row() -> None:
    bench = _bench("")
    asked = random_examples(np.random.default_rng(2), bench.spec, 5, closed=True)
    field = bench.spec.fields.singles[0]
    found = bench.model.explain(lambda *_: bench.view, asked.features, asked.event_ms)
    place = bench.view.find(np.array(asked.features.ids[:, 0]))
    z, n = bench.view.columns.values[place, 0], bench.view.columns.values[place, 1]
    weights = np.where(place >= 0, -z / ((1.5 + np.sqrt(n)) / 0.2), 0.0)
    np.testing.assert_allclose(found.parts[:, found.names.index(field.name)], weights, rtol=1e-5)


def test_a_network_is_explained_by_leaving_one_field_out() -> None:
    pytest.importorskip("torch", reason="deep models are an extra")
    bench = _bench(DEEP)
    asked = random_examples(np.random.default_rng(2), bench.spec, 8, closed=True)
    found = bench.model.explain(lambda *_: bench.view, asked.features, asked.event_ms)
    scores = bench.model.predict(bench.view, asked.features, asked.event_ms)
    np.testing.assert_allclose(found.log_odds, log_odds_of(scores))
    assert found.method == LEAVE_ONE_OUT
    assert found.parts.shape == (8, len(bench.spec.fields))
    assert np.abs(found.parts).max() > 0.0
    assert not found.pairs
