"""Deep architectures answer as the formulas of their papers, written out in plain numbers."""

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="deep models are an extra: pip install headrace[deep]")

import torch

from headrace.ingest.features.encoder import Encoded
from headrace.learner.inputs.example_inputs import INTERCEPT
from headrace.learner.models.deep.deep_model import DeepModel
from headrace.learner.models.deep.device_module import DeviceModule
from headrace.learner.models.deep.networks.contract import NetworkBatch, NetworkShape
from headrace.learner.models.deep.networks.sequence import SequenceNetwork, latest
from headrace.learner.spec.architecture import Structure
from headrace.learner.spec.model_spec import ModelSpec
from tests.learner.models.deep.deep_architectures import LINES, MODULES, OPTIMIZERS
from tests.learner.models.deep.slow_architectures import ARCHITECTURES, Inputs, parameters_in
from tests.learner.models.slow_factorization import SlowFactorization
from tests.learner.streams import BUCKETS, Bench, part, random_examples, random_spec

FORMS = [
    NetworkShape(vectors=1, dimensions=1, layers=(1,), cross_layers=1, target=0),
    NetworkShape(vectors=4, dimensions=3, layers=(5,), cross_layers=2, target=1),
    NetworkShape(vectors=5, dimensions=11, layers=(6, 4, 3), cross_layers=3, target=4),
]
"""11: some floats are read eight at a time, some alone."""


def _dice(module: torch.nn.Module, dice: torch.Generator) -> dict[str, Any]:
    """Draw all parameters, biases too; return them."""
    with torch.no_grad():
        for each in module.parameters():
            each.normal_(0.0, 0.6, generator=dice)
    return parameters_in(module)


def _batch(form: NetworkShape, examples: int, longest: int, dice: torch.Generator) -> NetworkBatch:
    """Return random inputs; the places of items that are not there hold numbers too."""
    return NetworkBatch(
        torch.randn(examples, generator=dice),
        torch.randn(examples, form.vectors, form.dimensions, generator=dice),
        torch.randn(examples, longest, form.dimensions, generator=dice),
        torch.rand(examples, longest, generator=dice) < 0.5,
    )


def _expected(
    architecture: str, parameters: dict[str, Any], batch: NetworkBatch, form: NetworkShape
) -> list[float]:
    answers = []
    for i in range(batch.wide.shape[0]):
        there = batch.items[i][batch.present[i]].tolist()
        given = Inputs(float(batch.wide[i]), batch.vectors[i].tolist(), there, form.target)
        answers.append(ARCHITECTURES[architecture](parameters, given))
    return answers


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.vectors}x{form.dimensions}")
@pytest.mark.parametrize(("examples", "longest"), [(7, 4), (1, 3), (1, 0), (5, 0), (0, 0)])
@pytest.mark.parametrize("architecture", MODULES)
def test_log_odds_are_what_the_papers_formulas_say(
    architecture: str, examples: int, longest: int, form: NetworkShape
) -> None:
    dice = torch.Generator().manual_seed(form.dimensions)
    module = MODULES[architecture](form)
    parameters = _dice(module, dice)
    batch = _batch(form, examples, longest, dice)
    with torch.no_grad():
        found = module(batch)
    assert found.shape == (examples,)
    expected = _expected(architecture, parameters, batch, form)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["din", "gru", "attention"])
def test_padding_of_a_history_does_not_change_the_answer(architecture: str) -> None:
    form, dice = FORMS[1], torch.Generator().manual_seed(3)
    module = MODULES[architecture](form)
    _dice(module, dice)
    batch = _batch(form, 2, 6, dice)
    present = torch.tensor([[False] * 6, [True, False, True, True, False, False]])
    elsewhere = batch.items + 5.0 * ~present.unsqueeze(2)
    cut = batch.items[:, :0], present[:, :0]
    with torch.no_grad():
        found = module(batch._replace(present=present))
        moved = module(batch._replace(items=elsewhere, present=present))
        without = module(NetworkBatch(batch.wide, batch.vectors, *cut))
    torch.testing.assert_close(moved, found, rtol=0.0, atol=0.0)
    torch.testing.assert_close(found[0], without[0])
    assert abs(found[1] - without[1]) > 0.01


@pytest.mark.parametrize("encoder", ["gru", "attention"])
def test_a_sequence_network_reads_the_latest_items_of_a_history(encoder: str) -> None:
    form, dice = FORMS[1], torch.Generator().manual_seed(4)
    module = SequenceNetwork(form, Structure("m", encoder=encoder, history_length=3))
    _dice(module, dice)
    batch = _batch(form, 4, 6, dice)
    present = torch.arange(6) < torch.tensor([[6], [4], [2], [0]])
    batch = batch._replace(present=present)
    items, counts = latest(batch, 3)
    assert counts.tolist() == [3, 3, 2, 0]
    torch.testing.assert_close(items[0], batch.items[0, 3:])
    torch.testing.assert_close(items[1], batch.items[1, 1:4])
    torch.testing.assert_close(items[2, :2], batch.items[2, :2])
    with torch.no_grad():
        found = module(batch)
        older = batch.items.clone()
        older[0, :3] += 5.0
        older[1, 0] += 5.0
        torch.testing.assert_close(module(batch._replace(items=older)), found)
        turned = batch.items.clone()
        turned[0, 3:], turned[1, 1:4] = batch.items[0, 3:].flip(0), batch.items[1, 1:4].flip(0)
        assert (module(batch._replace(items=turned)) - found).abs().max() > 1e-3, "order counts"


_NAMES = {"gru": "sequence", "attention": "sequence"}
"""The architecture of a spec, where a test's name differs."""


def _without_items(features: Encoded) -> Encoded:
    none = np.zeros_like(features.bag_offsets)
    return replace(features, bag_ids=features.bag_ids[:0], bag_offsets=none)


class _Reader:
    """Reads a model's inputs from the rows that it has pushed, and its parameters from rows too."""

    def __init__(self, spec: ModelSpec, bench: Bench, second: int) -> None:
        assert isinstance(bench.model, DeepModel)
        self._spec, self._slow = spec, SlowFactorization(spec, BUCKETS)
        rows = bench.rows()
        self._values = dict(zip(rows.ids.tolist(), rows.values.tolist(), strict=True))
        own = DeviceModule(copy.deepcopy(bench.model._module), bench.model._layers)
        own.follow(bench.model._layers, bench.view, second)
        self.parameters = parameters_in(own.module)

    def _weight(self, row_id: int) -> float:
        z, n = self._values[row_id][:2] if row_id in self._values else (0.0, 0.0)
        optimizer = self._spec.optimizer
        rate = (optimizer.beta + math.sqrt(n)) / optimizer.alpha + optimizer.l2
        return -math.copysign(max(0.0, abs(z) - optimizer.l1), z) / rate

    def _vector(self, row_id: int, x: float) -> list[float]:
        d = self._spec.structure.dimensions
        gained = self._values[row_id][2 : 2 + d] if row_id in self._values else [0.0] * d
        return [x * (self._slow.begun(row_id, f) + gained[f]) for f in range(d)]

    def inputs(self, features: Encoded, i: int) -> Inputs:
        """Return those of example i: singles, numbers and bags, each by ascending number."""
        fields, structure = self._spec.fields, self._spec.structure
        fixed = [(int(each), 1.0) for each in features.ids[i]]
        values = features.numbers[i].tolist()
        fixed += [(int(n), x) for n, x in zip(fields.number_ids, values, strict=True)]
        first, bags = i * len(fields.bags), []
        for bag in range(len(fields.bags)):
            begin, end = features.bag_offsets[first + bag : first + bag + 2]
            bags.append(features.bag_ids[begin:end].tolist())
        wide = self._weight(INTERCEPT) + sum(self._weight(row_id) * x for row_id, x in fixed)
        wide += sum(self._weight(row_id) for bag in bags for row_id in bag)
        items = [[self._vector(row_id, 1.0) for row_id in bag] for bag in bags]
        none = [0.0] * structure.dimensions
        sums = [[sum(each) for each in zip(none, *bag, strict=True)] for bag in items]
        vectors = [self._vector(row_id, x) for row_id, x in fixed] + sums
        history = [each.name for each in fields.bags].index(structure.history or "words")
        target = [each.name for each in fields.singles].index(structure.target or "user")
        return Inputs(wide, vectors, items[history], target)


@pytest.mark.parametrize("architecture", LINES)
def test_predictions_of_a_deep_model_follow_its_papers_formulas(
    architecture: str,
) -> None:
    random = np.random.default_rng(17)
    name = _NAMES.get(architecture, architecture)
    form = f'architecture = "{name}"\ndimensions = 3\ninit_scale = 0.5\nmini_batch = 16\n'
    spec = random_spec(random, "window", False, OPTIMIZERS, form + LINES[architecture])
    examples = random_examples(random, spec, 160, closed=True)
    bench = Bench(spec)
    bench.learn(part(examples, 0, 130))
    some, one = part(examples, 130, 160).features, part(examples, 140, 141).features
    second = int(examples.event_ms.max()) // 1000
    reader = _Reader(spec, bench, second)
    for features in (some, one, _without_items(some)):
        event_ms = np.full(len(features), 1000 * second)
        found = bench.model.predict(bench.view, features, event_ms)
        slow = ARCHITECTURES[architecture]
        expected = [
            slow(reader.parameters, reader.inputs(features, i)) for i in range(len(features))
        ]
        np.testing.assert_allclose(np.log(found / (1.0 - found)), expected, rtol=1e-3, atol=1e-4)
    assert np.std(bench.model.predict(bench.view, some, np.full(30, 1000 * second))) > 0.01
