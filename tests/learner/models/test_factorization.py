"""The factorization machine equals a slow reference; its counters are exact."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.ingest.features.encoder import Encoder
from headrace.learner.models.factorization_machine import FactorizationMachine
from headrace.learner.models.factory import open_model
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from tests.learner.models.model_laws import check_batches_do_not_matter, check_scores_are_answers
from tests.learner.models.slow_factorization import SlowFactorization
from tests.learner.streams import (
    BUCKETS,
    COUNT,
    PROBABILITY,
    Bench,
    of_ids_alone,
    part,
    random_examples,
    random_spec,
)

MACHINE = 'architecture = "factorization_machine"\ndimensions = 3\ninit_scale = 0.1\nseed = 7\n'
EMBEDDINGS = {
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
    growth: str = "",
    embeddings: str = "adagrad",
) -> ModelSpec:
    section = f'[optimizer.embeddings]\nname = "{embeddings}"\n{EMBEDDINGS[embeddings]}\n'
    return random_spec(random, policy, statistics, section + growth, MACHINE)


def _assert_same_rows(bench: Bench, slow: SlowFactorization) -> None:
    rows = bench.rows()
    assert rows.ids.tolist() == sorted(slow.rows)
    expected = [slow.rows[row_id] for row_id in sorted(slow.rows)]
    assert rows.shows.tolist() == [row.shows for row in expected]
    assert rows.clicks.tolist() == [row.clicks for row in expected]
    assert rows.last_seen.tolist() == [row.last_seen for row in expected]
    kept = [slow.kept_in(row_id) for row_id in sorted(slow.rows)]
    np.testing.assert_allclose(rows.values, kept, rtol=5e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("seed", "policy", "statistics", "embeddings", "growth"),
    [
        (0, "immediate", True, "adagrad", ""),
        (1, "window", True, "adagrad", ""),
        (2, "immediate", False, "sgd", ""),
        (3, "window", False, "ftrl", ""),
        (4, "immediate", True, "adam", ""),
        (5, "immediate", True, "adagrad", COUNT),
        (6, "immediate", False, "adagrad", PROBABILITY),
        (7, "immediate", True, "coin", ""),
        (8, "window", False, "coin", ""),
        (9, "window", True, "sgd", ""),
        (10, "immediate", False, "ftrl", ""),
        (11, "window", False, "adam", ""),
    ],
)
def test_factorization_rows_and_scores_equal_a_slow_reference(
    seed: int, policy: str, statistics: bool, embeddings: str, growth: str
) -> None:
    random = np.random.default_rng(seed)
    spec = _spec(random, policy, statistics, growth, embeddings)
    examples = random_examples(random, spec, 300, closed=policy == "window")
    bench, slow = Bench(spec), SlowFactorization(spec, BUCKETS)
    for begin in range(0, len(examples), 50):
        batch = part(examples, begin, begin + 50)
        inactive = tuple(int(bucket) for bucket in random.choice(BUCKETS, 3, replace=False))
        found, expected = bench.learn(batch, inactive), slow.learn(batch, inactive)
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4)
    _assert_same_rows(bench, slow)
    gained = bench.gained()
    for mine, view in zip(gained, bench.rows(), strict=True):
        np.testing.assert_array_equal(mine, view)


@pytest.mark.parametrize("batch", [1, 7])
def test_factorization_rows_do_not_depend_on_the_batch_size(batch: int) -> None:
    random = np.random.default_rng(11)
    spec = _spec(random)
    examples = random_examples(random, spec, 500, closed=False)
    check_batches_do_not_matter(Bench(spec), Bench(spec), examples, batch)


@pytest.mark.parametrize("growth", ["", COUNT])
def test_a_factorization_machine_scores_what_predict_would_have_answered(growth: str) -> None:
    random = np.random.default_rng(5)
    spec = _spec(random, growth=growth)
    examples = random_examples(random, spec, 200, closed=False)
    check_scores_are_answers(Bench(spec), examples)


def test_a_factorization_machine_without_dimensions_is_logistic_regression() -> None:
    random = np.random.default_rng(3)
    spec = random_spec(random, "immediate", statistics=True)
    examples = random_examples(random, spec, 400, closed=False)
    # an item that is twice in a bag is stepped from one state there, and one after the other here
    examples.features.bag_offsets[:] = 0
    linear, machine = Bench(spec), Bench(spec)
    machine.model = FactorizationMachine(spec, BUCKETS)
    np.testing.assert_array_equal(linear.learn(examples), machine.learn(examples))
    for one, other in zip(linear.rows(), machine.rows(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("policy", ["immediate", "window"])
@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam", "coin"])
@pytest.mark.parametrize("machine", [False, True], ids=["logistic regression", "machine"])
def test_weights_may_have_any_optimizer(machine: bool, name: str, policy: str) -> None:
    random = np.random.default_rng(13)
    spec = _spec(random, policy) if machine else random_spec(random, policy, statistics=True)
    start, _, rest = spec.text.partition("[optimizer]")
    _, _, groups = rest.partition("[optimizer.embeddings]")
    text = f'{start}[optimizer]\nname = "{name}"\n{EMBEDDINGS[name]}\n'
    text += f"[optimizer.embeddings]{groups}" if machine else ""
    spec = parse_spec(of_ids_alone(text) if name == "coin" else text, "test.toml")
    assert spec.optimizers.weights.name == name
    examples = random_examples(random, spec, 200, closed=policy == "window")
    bench, slow = Bench(spec), SlowFactorization(spec, BUCKETS)
    np.testing.assert_allclose(bench.learn(examples), slow.learn(examples), rtol=2e-3, atol=2e-4)
    _assert_same_rows(bench, slow)


def test_a_pair_that_is_clicked_together_is_told_from_its_parts() -> None:
    """XOR of two fields: no sum of weights can tell it, one vector each does."""
    random = np.random.default_rng(17)
    text = (
        '[model]\nname = "xor"\narchitecture = "factorization_machine"\ndimensions = 4\n'
        'init_scale = 0.1\n[label]\npolicy = "window"\n[fields.a]\nnumber = 1\ntransform = "id"\n'
        '[fields.b]\nnumber = 2\ntransform = "id"\n[optimizer.embeddings]\nalpha = 0.2\n'
    )

    spec = parse_spec(text, "xor.toml")
    base = random_examples(random, random_spec(random, "window", False), 2000, closed=True)
    drawn = random.integers(0, 2, (2000, 2))
    events = [{"a": int(a), "b": int(b), "timestamp_ms": 0} for a, b in drawn]
    labels = (drawn[:, 0] != drawn[:, 1]).astype(np.uint8)
    examples = replace(base, features=Encoder(spec.fields).encode(events), labels=labels)
    bench = Bench(spec)
    bench.learn(examples)
    scores = bench.model.predict(bench.view, examples.features, examples.event_ms)
    assert scores[labels == 1].min() > 0.9
    assert scores[labels == 0].max() < 0.1


def test_an_initial_vector_depends_only_on_seed_and_row() -> None:
    random = np.random.default_rng(19)
    spec = _spec(random)
    examples = random_examples(random, spec, 50, closed=False)
    fresh = [open_model(spec), open_model(spec)]
    view = Bench(spec).view
    first, again = (each.predict(view, examples.features, examples.event_ms) for each in fresh)
    np.testing.assert_array_equal(first, again)

    other = parse_spec(spec.text.replace("seed = 7", "seed = 8"), "test.toml")
    found = open_model(other).predict(view, examples.features, examples.event_ms)
    assert (found != first).all()
    assert other.fingerprint != spec.fingerprint
