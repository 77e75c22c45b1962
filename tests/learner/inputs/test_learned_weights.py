"""Learned weights of bag items: their formula, their gradients, and the same in serving."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.encoder import Encoder
from headrace.learner.errors import NotExportable
from headrace.learner.kernels.row_values import parameters_of
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.local.onnx_export import export_onnx
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from tests.learner.kernels.slow_optimizers import Coordinate, kept
from tests.learner.models.slow_factorization import SlowFactorization
from tests.learner.models.slow_logistic import Row, Seen, item_weights, weight_of
from tests.learner.streams import (
    BUCKETS,
    FIELDS,
    START_MS,
    STATISTICS,
    Bench,
    part,
    random_examples,
)

POOLINGS = ["mean", "sqrt"]
MACHINE = 'architecture = "factorization_machine"\ndimensions = 3\ninit_scale = 0.1\n'
DEEP = 'architecture = "{}"\ndimensions = 4\ninit_scale = 0.3\n'
MODELS = {
    "logistic_regression": "",
    "factorization_machine": MACHINE,
    **{name: DEEP.format(name) for name in ("field_weighted_fm", "deepfm", "dcn_v2")},
}


def _spec(pooling: str, model: str = "", optimizers: str = "") -> ModelSpec:
    pooled = f'transform = "bag"\npooling = "{pooling}"\ndecay = 0.8\nlearned_weights = true\n'
    text = FIELDS.format(policy="window") + STATISTICS.format(prior_clicks=0.9) + optimizers
    text = text.replace("[model]", "[model]\n" + model).replace('transform = "bag"\n', pooled, 1)
    return parse_spec(text, "test.toml")


def _bench(model: str, pooling: str, optimizers: str = "") -> Bench:
    if model not in ("logistic_regression", "factorization_machine"):
        pytest.importorskip("torch")
    return Bench(_spec(pooling, MODELS[model], optimizers))


def _set_importances(bench: Bench, importances: list[float]) -> list[int]:
    """Write these floats as importances of items of `tags`, by ascending id; return the places.

    An importance is its first float, except with ftrl and coin.
    """
    number, offset = bench.spec.fields["tags"].number, parameters_of(bench.spec).items.offset
    ids = bench.view.ids
    of_tags = [k for k in np.argsort(ids) if int(ids[k]) & 1023 == number]
    places = [int(k) for k in of_tags[: len(importances)]]
    bench.view.columns.values[places, offset] = importances
    bench.view.changed()
    return places


@dataclass
class SlowWeights(SlowFactorization):
    """A factorization machine whose gradient by an importance is a difference of its log-odds."""

    importances: dict[int, Coordinate] = field(default_factory=dict)

    def _values(self, seen: Seen, given: list[float]) -> list[float]:
        """The values of all inputs, if the inputs had these importances."""
        fields = self.spec.fields
        values = [value for _, value in seen.inputs]
        items = [k for k, (row_id, _) in enumerate(seen.inputs)
                 if row_id & 1023 == fields["tags"].number]  # fmt: skip
        weights = item_weights(fields["tags"], len(items))
        weights = [w * math.exp(given[k]) for w, k in zip(weights, items, strict=True)]
        size = sum(weights) if fields["tags"].pooling == "mean" else math.hypot(*weights)
        for weight, k in zip(weights, items, strict=True):
            values[k] = weight / size
        return values

    def _log_odds(self, rows: list[list[float]], x: list[float]) -> float:
        y = sum(row[0] * value for row, value in zip(rows, x, strict=True))
        for f in range(1, len(rows[0])):
            own = [row[f] * value for row, value in zip(rows[1:], x[1:], strict=True)]
            y += (sum(own) ** 2 - sum(each * each for each in own)) / 2
        return y

    def _slopes(
        self, rows: list[list[float]], seen: Seen, given: list[float], slope: float
    ) -> list[float]:
        found, step = [], 1e-5
        for k in range(len(given)):
            more, less = ([*given[:k], given[k] + d, *given[k + 1 :]] for d in (step, -step))
            difference = self._log_odds(rows, self._values(seen, more))
            difference -= self._log_odds(rows, self._values(seen, less))
            found.append(slope * difference / (2 * step))
        return found

    def learn(self, examples: Examples, inactive: tuple[int, ...] = ()) -> list[float]:
        """Score, then learn, one by one; NaN for clicks."""
        return [self._learn_one(examples, i, inactive) for i in range(len(examples))]

    def _learn_one(self, examples: Examples, i: int, inactive: tuple[int, ...]) -> float:
        seen, number = self.seen(examples, i, inactive), self.spec.fields["tags"].number
        rows = [self._standing(row_id, seen.second) for row_id in seen.reads]
        given = [getattr(self.importances.get(each), "w", 0.0) for each in seen.reads]
        x = self._values(seen, given)
        p = 1.0 / (1.0 + math.exp(-self._log_odds(rows, x)))
        slope = self.slope(seen.kind, seen.label, p) * weight_of(examples, i)
        slopes = self._slopes(rows, seen, given, slope)
        seen.inputs = [(row_id, value) for (row_id, _), value in zip(seen.inputs, x, strict=True)]
        totals = [sum(row[f] * value for row, value in zip(rows[1:], x[1:], strict=True))
                  for f in range(1, len(rows[0]))]  # fmt: skip
        for k, (row_id, value) in enumerate(seen.inputs):
            row = self.coordinates.setdefault(row_id, self._row(row_id))
            row[0].step(slope * value)
            for f, coordinate in enumerate(row[1:]) if k else ():
                coordinate.step(slope * value * (totals[f] - rows[k][f + 1] * value))
            if row_id & 1023 == number:
                of = Coordinate(self.spec.optimizers.weights)
                self.importances.setdefault(row_id, of).step(slopes[k])
            self.count(self.rows.setdefault(row_id, Row()), seen)
        return math.nan if seen.kind is Kind.CLICKED else p


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("model", ["", MACHINE])
def test_rows_and_scores_equal_a_slow_reference(pooling: str, model: str) -> None:
    spec = _spec(pooling, model)
    examples = random_examples(np.random.default_rng(3), spec, 200, closed=True)
    bench, slow = Bench(spec), SlowWeights(spec, BUCKETS)
    parts = [bench.learn(part(examples, begin, begin + 50)) for begin in range(0, 200, 50)]
    np.testing.assert_allclose(np.concatenate(parts), slow.learn(examples), rtol=1e-3, atol=1e-4)
    rows, offset = bench.rows(), parameters_of(spec).items.offset
    places = {int(row_id): k for k, row_id in enumerate(rows.ids)}
    assert len(slow.importances) > 3
    for row_id, coordinate in slow.importances.items():
        found = rows.values[places[row_id], offset : offset + 2]
        np.testing.assert_allclose(found, kept([coordinate]), rtol=1e-2, atol=1e-3)
    assert max(abs(each.w) for each in slow.importances.values()) > 1e-3


def _slate(spec: ModelSpec, seed: int) -> Examples:
    """One request of six candidates, two of them clicked."""
    examples = random_examples(np.random.default_rng(seed), spec, 6, closed=True)
    names = pa.array(["r"] * 6, pa.string())
    same = np.full(6, examples.shown_ms[0])
    return replace(examples, request_ids=names, event_ms=same, shown_ms=same, append_ms=same,
                   labels=np.array([1, 0, 0, 1, 0, 0], np.uint8))  # fmt: skip


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("model", MODELS)
def test_a_step_of_an_importance_is_the_slope_of_the_loss(model: str, pooling: str) -> None:
    deep = '[optimizer.dense]\nname = "sgd"\nalpha = 1e-6\n'
    deep = deep if model not in ("logistic_regression", "factorization_machine") else ""
    plain = f'[optimizer]\nname = "sgd"\nalpha = 0.02\n{deep}'
    bench = _bench(model, pooling, plain)
    for seed in range(3):
        bench.learn(random_examples(np.random.default_rng(seed), bench.spec, 60, closed=True))
    slate, offset = _slate(bench.spec, 9), parameters_of(bench.spec).items.offset
    begun = [0.5, -0.5, 1.0, 0.0, -1.0]
    places = _set_importances(bench, begun)

    def loss(importances: list[float]) -> float:
        _set_importances(bench, importances)
        scores = bench.model.predict(bench.view, slate.features, slate.event_ms)
        return float(-np.log(np.where(slate.labels == 1, scores, 1.0 - scores)).sum())

    expected, step = [], 0.02
    for k in range(len(begun)):
        more, less = ([*begun[:k], begun[k] + d, *begun[k + 1 :]] for d in (step, -step))
        expected.append(-0.02 * (loss(more) - loss(less)) / (2 * step))
    _set_importances(bench, begun)
    bench.learn(slate)
    found = bench.view.columns.values[places, offset] - np.array(begun, np.float32)
    np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-6)
    assert np.abs(found).max() > 2e-5


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("model", MODELS)
def test_a_learner_scores_as_a_server_of_the_same_rows(model: str, pooling: str) -> None:
    bench = _bench(model, pooling)
    for seed in range(3):
        bench.learn(random_examples(np.random.default_rng(seed), bench.spec, 60, closed=True))
    _set_importances(bench, [0.5, -0.5, 1.0, 0.0, -1.0])
    slate = _slate(bench.spec, 9)
    served = bench.model.predict(bench.view, slate.features, slate.event_ms)
    assert bench.learn(slate).tolist() == served.tolist()


def _part_of_tags(bench: Bench, places: list[int]) -> float:
    """Return the part of the log-odds of a bag of the items of these rows."""
    ids, count = bench.view.ids[places], len(places)
    empty = Encoder(bench.spec.fields).encode([{}])
    asked = replace(empty, bag_ids=ids, bag_offsets=np.array([0, count, count], np.int32))
    found = bench.model.explain(lambda *_: bench.view, asked, np.full(1, START_MS))
    return float(found.parts[0, found.names.index("tags")])


@pytest.mark.parametrize("pooling", POOLINGS)
def test_items_weigh_as_in_the_definition(pooling: str) -> None:
    bench = _bench("logistic_regression", pooling, '[optimizer]\nname = "adagrad"\n')
    bench.learn(random_examples(np.random.default_rng(1), bench.spec, 200, closed=True))
    importances = [0.7, -2.0, 1.3]
    places = _set_importances(bench, importances)
    weights = [_part_of_tags(bench, [place]) for place in places]
    factors = [0.8 ** (2 - k) * math.exp(u) for k, u in enumerate(importances)]
    size = sum(factors) if pooling == "mean" else math.hypot(*factors)
    expected = sum(w * f / size for w, f in zip(weights, factors, strict=True))
    assert _part_of_tags(bench, places) == pytest.approx(expected, rel=1e-4)


def test_the_uncertainty_weighs_items_as_the_score_does() -> None:
    bench = _bench("logistic_regression", "mean", '[optimizer]\nname = "adagrad"\n')
    bench.learn(random_examples(np.random.default_rng(1), bench.spec, 200, closed=True))
    places = _set_importances(bench, [9.0, -9.0])
    ids, empty = bench.view.ids[places], Encoder(bench.spec.fields).encode([{}])
    of = [
        replace(
            empty, bag_ids=chosen, bag_offsets=np.array([0, len(chosen), len(chosen)], np.int32)
        )
        for chosen in (ids, ids[:1])
    ]
    both, first = (bench.model.uncertainty(bench.view, each, np.full(1, START_MS)) for each in of)
    assert both == pytest.approx(first, rel=1e-4)


def test_a_model_with_learned_weights_is_saved_and_not_exported(tmp_path: Path) -> None:
    spec = parse_spec(_spec("mean", MACHINE).text.partition("[statistics.")[0], "test.toml")
    examples = random_examples(np.random.default_rng(1), spec, 100, closed=True)
    model = InMemoryModel(spec)
    model.learn(examples)
    model.save(tmp_path)
    again = InMemoryModel.load(tmp_path)
    expected = model.predict(examples.features, examples.event_ms).tolist()
    assert again.predict(examples.features, examples.event_ms).tolist() == expected
    with pytest.raises(NotExportable, match=r"bags without pooling, .* learned_weights"):
        export_onnx(model, tmp_path / "model.onnx")
