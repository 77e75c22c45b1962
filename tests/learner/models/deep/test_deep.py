"""Deep models equal a plain torch loop, and their rows are like any others."""

import copy
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="deep models are an extra: pip install headrace[deep]")

import torch

from headrace.ingest.examples.batch import Examples
from headrace.learner.errors import UnfitModule
from headrace.learner.models.deep.deep_model import DeepModel
from headrace.learner.models.deep.device_module import DeviceModule
from headrace.learner.models.deep.networks.architectures import make_module
from headrace.learner.models.factory import open_model
from headrace.learner.spec.architecture import DENSE_NUMBER
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.learner.spec.optimizer_spec import floats
from tests.learner.models.deep.torch_reference import TorchReference
from tests.learner.models.model_laws import (
    check_batches_do_not_matter,
    check_learned_buckets_stay,
    check_scores_are_answers,
)
from tests.learner.streams import (
    BUCKETS,
    COUNT,
    Bench,
    of_ids_alone,
    part,
    random_examples,
    random_spec,
)

OPTIMIZERS = {
    "sgd": "alpha = 0.03\ndecay_per_day = 10.0",
    "adagrad": "alpha = 0.05\nepsilon = 0.1\ndecay_per_day = 10.0",
    "ftrl": "alpha = 0.05\nbeta = 0.5\nl1 = 0.02\nl2 = 0.5",
    "adam": "alpha = 0.02\nepsilon = 0.1\ndecay_per_day = 10.0",
    "coin": "alpha = 0.02\nbeta = 1.0",
}
"""Decay removes a third in the hour that the examples take."""
FORMS = {
    "deepfm": "layers = [6, 4]\n",
    "wide_and_deep": "layers = [6]\n",
    "dcn_v2": "layers = [6]\ncross_layers = 2\n",
    "field_weighted_fm": "",
    "din": 'layers = [6]\nhistory = "words"\ntarget = "user"\n',
    "sequence": 'layers = [6]\nhistory = "tags"\ntarget = "item"\nhistory_length = 2\n',
}


def _spec(
    random: np.random.Generator,
    architecture: str = "deepfm",
    policy: str = "immediate",
    mini_batch: int = 8,
    growth: str = "",
    kinds: str = "ftrl adagrad adagrad",
    form: str | None = None,
) -> ModelSpec:
    """kinds: optimizers of weights, embeddings and layers."""
    model = (
        f'architecture = "{architecture}"\ndimensions = 3\ninit_scale = 0.3\nseed = 5\n'
        f"mini_batch = {mini_batch}\n{FORMS[architecture] if form is None else form}"
    )
    weights, *others = kinds.split()
    sections = "".join(
        f'\n[optimizer.{group}]\nname = "{name}"\n{OPTIMIZERS[name]}\n'
        for group, name in zip(("embeddings", "dense"), others, strict=True)
    )
    spec = random_spec(random, policy, True, sections + growth, model)
    if weights == "ftrl":
        return spec
    start, end = (spec.text.index(each) for each in ("[optimizer]", "\n[optimizer.embeddings]"))
    section = f'[optimizer]\nname = "{weights}"\n{OPTIMIZERS[weights]}\n'
    text = spec.text[:start] + section + spec.text[end:]
    return parse_spec(of_ids_alone(text) if "coin" in kinds else text, "test.toml")


def _learned_like_torch(
    spec: ModelSpec, examples: Examples
) -> tuple[Bench, TorchReference, np.ndarray]:
    """Learn examples in mini-batches of 8 and as a plain torch loop does; scores are the same."""
    bench = Bench(spec)
    assert isinstance(bench.model, DeepModel)
    form = bench.model._arrange.form
    targets = [each.name for each in spec.fields.singles]
    assert form.target == (targets.index(spec.structure.target) if spec.structure.target else -1)
    reference = TorchReference(spec, BUCKETS, module=make_module(spec, form))
    reference.begin()
    expected = []
    for begin in range(0, len(examples), 8):
        expected += reference.learn_batch(part(examples, begin, begin + 8))
    found = bench.learn(examples)
    np.testing.assert_allclose(found, expected, rtol=5e-3, atol=1e-3)
    return bench, reference, found


@pytest.mark.parametrize("policy", ["immediate", "window"])
@pytest.mark.parametrize(
    ("architecture", "kinds"),
    [
        ("deepfm", "ftrl adagrad adagrad"),
        ("deepfm", "coin ftrl adam"),
        ("deepfm", "adam adam ftrl"),
        ("wide_and_deep", "adagrad coin sgd"),
        ("dcn_v2", "sgd sgd coin"),
        ("field_weighted_fm", "ftrl adagrad adagrad"),
        ("din", "ftrl adagrad adagrad"),
        ("din", "coin coin coin"),
        ("sequence", "ftrl adagrad adagrad"),
    ],
)
def test_deep_scores_and_rows_equal_a_plain_torch_loop(
    architecture: str, kinds: str, policy: str
) -> None:
    random = np.random.default_rng(len(architecture))
    spec = _spec(random, architecture, policy, kinds=kinds)
    examples = random_examples(random, spec, 120, closed=policy == "window")
    bench, reference, found = _learned_like_torch(spec, examples)
    assert isinstance(bench.model, DeepModel)
    assert np.nanstd(found) > 0.02
    rows = bench.rows()
    ours = rows.ids & np.uint64(1023) != DENSE_NUMBER
    assert rows.ids[ours].tolist() == sorted(reference.rows)
    counted = [reference.rows[row_id].shows for row_id in sorted(reference.rows)]
    assert rows.shows[ours].tolist() == counted
    kept = [reference.kept_in(row_id) for row_id in sorted(reference.rows)]
    np.testing.assert_allclose(rows.values[ours][:, : len(kept[0])], kept, rtol=1e-2, atol=2e-3)
    own = DeviceModule(copy.deepcopy(bench.model._module), bench.model._layers)
    own.follow(bench.model._layers, bench.view, reference.last_second)
    layers = torch.cat([each.detach().flatten() for each in own.module.parameters()]).numpy()
    np.testing.assert_allclose(layers, reference.layers_now(), rtol=1e-2, atol=2e-3)
    assert np.abs(layers - reference.begun_layers).max() > 0.01


def test_pushed_deltas_are_all_that_was_learned_layers_too() -> None:
    random = np.random.default_rng(1)
    spec = _spec(random)
    bench = Bench(spec)
    examples = random_examples(random, spec, 200, closed=False)
    bench.learn(examples)
    gained = bench.gained()
    for mine, view in zip(gained, bench.rows(), strict=True):
        np.testing.assert_array_equal(mine, view)
    layers = gained.ids & np.uint64(1023) == DENSE_NUMBER
    assert np.count_nonzero(layers) == len(bench.model._layers)  # type: ignore[attr-defined]
    assert (gained.shows[layers] == 200).all()
    served = Bench(spec)
    served.view.add(gained)
    features, event_ms = examples.features, examples.event_ms
    np.testing.assert_array_equal(
        served.model.predict(served.view, features, event_ms),
        bench.model.predict(bench.view, features, event_ms),
    )


@pytest.mark.parametrize("kinds", ["sgd sgd adam", "sgd sgd coin", "ftrl sgd adam"])
def test_a_row_has_room_for_a_coordinate_of_a_layer_however_short_vectors_are(kinds: str) -> None:
    """In rows of two floats a chunk of four would write to the row behind it."""
    spec = _spec(np.random.default_rng(9), kinds=kinds)
    spec = parse_spec(spec.text.replace("dimensions = 3", "dimensions = 1"), "test.toml")
    examples = random_examples(np.random.default_rng(9), spec, 64, closed=False)
    bench, _, _ = _learned_like_torch(spec, examples)
    assert spec.width >= floats(bench.spec.optimizers.dense or spec.optimizer, 1)


def test_chunks_of_layers_lie_in_all_buckets() -> None:
    bench = Bench(_spec(np.random.default_rng(2), form="layers = [64, 32]\n"))
    chunks = bench.model._layers.ids  # type: ignore[attr-defined]
    assert np.unique(chunks).shape[0] == chunks.shape[0]
    assert np.unique(bench.shape.bucket_of(chunks)).shape[0] == BUCKETS


@pytest.mark.parametrize("growth", ["", COUNT])
def test_a_deep_model_leaves_buckets_alone_that_have_the_examples(growth: str) -> None:
    random = np.random.default_rng(3)
    spec = _spec(random, growth=growth)
    examples = random_examples(random, spec, 300, closed=False)
    check_learned_buckets_stay(Bench(spec), examples, random)


@pytest.mark.parametrize("growth", ["", COUNT])
def test_a_deep_model_scores_what_predict_would_have_answered(growth: str) -> None:
    random = np.random.default_rng(5)
    spec = _spec(random, mini_batch=1, growth=growth)
    examples = random_examples(random, spec, 120, closed=False)
    check_scores_are_answers(Bench(spec), examples, rel=1e-5)


def test_batch_sizes_that_keep_the_mini_batches_give_the_same_deep_model() -> None:
    random = np.random.default_rng(7)
    spec = _spec(random, mini_batch=10)
    examples = random_examples(random, spec, 240, closed=False)
    check_batches_do_not_matter(Bench(spec), Bench(spec), examples, 30)


class Own(torch.nn.Module):
    """A user module: the wide sum, and a product with one vector."""

    def __init__(self, form: object) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(3)
        self.mix = torch.nn.Parameter(torch.zeros(3))

    def forward(self, batch):  # type: ignore[no-untyped-def]  # as a user would write it
        """Log-odds."""
        return batch.wide + self.norm(batch.vectors.sum(1)) @ self.mix


def _own_spec(name: str) -> ModelSpec:
    random = np.random.default_rng(11)
    return _spec(random, "module", form=f'module = "{name}"\n')


FORMS["module"] = ""


def test_a_user_module_is_trained() -> None:
    spec = _own_spec("tests.learner.models.deep.test_deep:Own")
    bench = Bench(spec)
    examples = random_examples(np.random.default_rng(11), spec, 200, closed=False)
    before = bench.model.predict(bench.view, examples.features, examples.event_ms)
    bench.learn(examples)
    after = bench.model.predict(bench.view, examples.features, examples.event_ms)
    assert np.abs(after - before).max() > 0.05
    model: Any = bench.model
    own = DeviceModule(copy.deepcopy(model._module), model._layers)
    own.follow(model._layers, bench.view, 0)
    named = dict(own.module.named_parameters())
    assert (named["mix"] != 0).all()
    assert not torch.equal(named["norm.weight"], torch.ones(3))
    torch.testing.assert_close(named["norm.weight"], torch.ones(3), rtol=0.5, atol=0.5)


def test_a_prediction_has_the_layers_of_its_moment() -> None:
    random = np.random.default_rng(3)
    spec = _own_spec("tests.learner.models.deep.test_deep:Own")
    bench, other, asking = Bench(spec), Bench(spec), open_model(spec, BUCKETS)
    examples = random_examples(random, spec, 60, closed=False)
    asked = examples.features, examples.event_ms
    other.learn(part(examples, 20, 40))
    for begin in range(0, 60, 20):
        bench.learn(part(examples, begin, begin + 20))
        # the other's rows have changed as often at first
        for view in (bench.view, bench.view, other.view, bench.view):
            expected = open_model(spec, BUCKETS).predict(view, *asked)
            np.testing.assert_array_equal(asking.predict(view, *asked), expected)


def test_a_spec_that_names_no_module_is_refused_with_the_name() -> None:
    with pytest.raises(UnfitModule, match=r"builtins:int.*derived from torch.nn.Module"):
        open_model(_own_spec("builtins:int"))
