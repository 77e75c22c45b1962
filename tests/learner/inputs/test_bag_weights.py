"""Pooling, decay and a limit of the items of bags: equal to slow references, in every model."""

import numpy as np
import pytest

from headrace.ingest.features.encoder import Encoder
from headrace.learner.inputs.bag_weights import BagWeights
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from tests.learner.models.slow_factorization import SlowFactorization
from tests.learner.models.slow_logistic import SlowLogistic, item_weights
from tests.learner.row_comparison import assert_same_rows
from tests.learner.streams import BUCKETS, FIELDS, STATISTICS, Bench, part, random_examples

POOLINGS = ["sum", "mean", "sqrt"]
MACHINE = 'architecture = "factorization_machine"\ndimensions = 3\ninit_scale = 0.1\n'


def _spec(pooling: str, decay: float = 1.0, model: str = "") -> ModelSpec:
    pooled = f'transform = "bag"\npooling = "{pooling}"\ndecay = {decay}\n'
    text = FIELDS.format(policy="window") + STATISTICS.format(prior_clicks=0.9)
    text = text.replace("[model]", "[model]\n" + model).replace('transform = "bag"\n', pooled, 1)
    return parse_spec(text, "test.toml")


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_the_weights_of_items_are_those_of_the_definition(pooling: str, decay: float) -> None:
    spec = _spec(pooling, decay)
    tags: list[list[int]] = [[], [1], [1, 2, 1], list(range(50))]
    encoded = Encoder(spec.fields).encode([{"tags": each, "words": [7, 8]} for each in tags])
    expected = [
        x for each in tags for x in (*item_weights(spec.fields["tags"], len(each)), 1.0, 1.0)
    ]
    found = BagWeights(spec.fields.bags)(encoded)
    if pooling == "sum" and decay == 1.0:
        assert found.shape == (0,)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("model", ["", MACHINE])
def test_pooled_rows_and_scores_equal_a_slow_reference(pooling: str, model: str) -> None:
    spec = _spec(pooling, 0.7, model)
    examples = random_examples(np.random.default_rng(1), spec, 300, closed=True)
    bench = Bench(spec)
    slow = SlowFactorization(spec, BUCKETS) if model else SlowLogistic(spec, BUCKETS)
    parts = [bench.learn(part(examples, begin, begin + 60)) for begin in range(0, 300, 60)]
    np.testing.assert_allclose(np.concatenate(parts), slow.learn(examples), rtol=1e-3, atol=1e-4)
    if not model:
        assert_same_rows(bench, slow)


@pytest.mark.parametrize("architecture", ["deepfm", "dcn_v2", "wide_and_deep", "field_weighted_fm"])
def test_the_mean_of_a_bag_does_not_change_if_its_items_are_repeated(architecture: str) -> None:
    pytest.importorskip("torch")
    spec = _spec("mean", model=f'architecture = "{architecture}"\ndimensions = 4\n')
    model = InMemoryModel(spec)
    model.learn(random_examples(np.random.default_rng(1), spec, 300, closed=True))
    events = [{"item": 1, "user": "u1", "tags": tags} for tags in ([1, 2], [1, 2, 1, 2], [1])]
    encoded = Encoder(spec.fields).encode(events)
    once, twice, other = model.predict(encoded, np.full(3, 1_700_000_000_000))
    assert once == pytest.approx(twice, abs=1e-6)
    assert abs(once - other) > 1e-5


def test_only_the_last_items_of_a_bag_count() -> None:
    text = FIELDS.format(policy="window")
    spec = parse_spec(
        text.replace('transform = "bag"\n', 'transform = "bag"\nlast = 2\n', 1), "test.toml"
    )
    events = [{"tags": tags, "words": [1, 2, 3]} for tags in ([], [1], [1, 2, 3, 4], "5", None)]
    kept = [{"tags": tags, "words": [1, 2, 3]} for tags in ([], [1], [3, 4], "5", None)]
    encoder = Encoder(spec.fields)
    for found, expected in (
        (encoder.encode(events), encoder.encode(kept)),
        (encoder.encode_candidates(events[2], [{}, {}]), encoder.encode([kept[2]] * 2)),
        (encoder.encode_few(events[2:3]), encoder.encode(kept[2:3])),
    ):
        np.testing.assert_array_equal(found.bag_ids, expected.bag_ids)
        np.testing.assert_array_equal(found.bag_offsets, expected.bag_offsets)
