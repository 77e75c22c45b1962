"""Layers learned on a device equal those learned on the CPU, and need no more than its own memory.

Machines without CUDA run the same path with the CPU in the device's place, and place tensors on
torch's `meta` device, which holds shapes only and refuses tensors of another device.
"""

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="deep models are an extra: pip install headrace[deep]")

import torch

from headrace.learner.errors import MissingDevice
from headrace.learner.models.deep import deep_model
from headrace.learner.models.deep.device_module import DeviceModule, find_devices
from headrace.learner.models.deep.networks.contract import NetworkBatch, NetworkShape
from headrace.learner.models.deep.networks.pairwise import sum_of_pairs
from headrace.learner.spec.model_spec import ModelSpec
from tests.learner.models.deep.deep_architectures import LINES, MODULES, OPTIMIZERS
from tests.learner.streams import Bench, random_examples, random_spec

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")


def _spec(architecture: str, device: str = "cpu") -> ModelSpec:
    name = "sequence" if architecture in ("gru", "attention") else architecture
    model = f'architecture = "{name}"\ndimensions = 3\ninit_scale = 0.5\nmini_batch = 16\n'
    model += f'device = "{device}"\n{LINES[architecture]}'
    return random_spec(np.random.default_rng(5), "window", True, OPTIMIZERS, model)


def _learned(spec: ModelSpec) -> tuple[Bench, np.ndarray]:
    examples = random_examples(np.random.default_rng(6), spec, 150, closed=True)
    bench = Bench(spec)
    return bench, bench.learn(examples)


@pytest.mark.parametrize("architecture", LINES)
def test_layers_copied_to_a_device_and_back_learn_the_same(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, scores = _learned(_spec(architecture))
    monkeypatch.setattr(deep_model, "DeviceModule", partial(DeviceModule, copied=True))
    copied, found = _learned(_spec(architecture))
    np.testing.assert_array_equal(found, scores)
    for mine, other in zip(copied.rows(), bench.rows(), strict=True):
        np.testing.assert_array_equal(mine, other)


@needs_cuda
@pytest.mark.parametrize("architecture", LINES)
def test_layers_learned_on_cuda_equal_those_of_the_cpu(architecture: str) -> None:
    bench, scores = _learned(_spec(architecture))
    on_cuda, found = _learned(_spec(architecture, "cuda"))
    np.testing.assert_allclose(found, scores, rtol=1e-4, atol=1e-5)
    mine, other = on_cuda.rows(), bench.rows()
    np.testing.assert_array_equal(mine.ids, other.ids)
    np.testing.assert_allclose(mine.values, other.values, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("architecture", sorted(set(MODULES) - {"gru", "attention"}))
def test_a_network_makes_no_tensor_on_another_device(architecture: str) -> None:
    meta, shape = torch.device("meta"), NetworkShape(4, 3, (5,), 2, 1)
    module = copy.deepcopy(MODULES[architecture](shape)).to(meta)
    drawn: dict[str, Any] = {"device": meta, "requires_grad": True}
    batch = NetworkBatch(
        torch.empty(7, **drawn),
        torch.empty(7, 4, 3, **drawn),
        torch.empty(7, 2, 3, **drawn),
        torch.empty(7, 2, dtype=torch.bool, device=meta),
    )
    log_odds = module(batch)
    assert (log_odds.device, log_odds.shape) == (meta, (7,))
    gradients = torch.autograd.grad(log_odds.sum(), [*module.parameters(), batch.vectors])
    assert {each.device for each in gradients} == {meta}


def test_the_sum_of_pairs_has_one_formula_on_every_device() -> None:
    vectors = torch.randn(6, 5, 11, generator=torch.Generator().manual_seed(1))
    pairs, _ = sum_of_pairs(vectors)
    totals = vectors.double().sum(dim=1)
    expected = 0.5 * (totals**2 - (vectors.double() ** 2).sum(dim=1)).sum(dim=1)
    torch.testing.assert_close(pairs.double(), expected, rtol=1e-4, atol=1e-4)


def test_a_missing_cuda_device_is_refused_when_learning_and_not_when_predicting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    spec = _spec("deepfm", "cuda")
    bench = Bench(spec)
    examples = random_examples(np.random.default_rng(7), spec, 20, closed=True)
    bench.model.predict(bench.view, examples.features, examples.event_ms)
    with pytest.raises(MissingDevice, match=r'device = "cuda": expected a CUDA device, got none'):
        bench.learn(examples)
    assert find_devices("auto") == [torch.device("cpu")]


def test_learners_of_a_group_divide_the_devices_of_a_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    found = [find_devices("auto", 1, rank)[0] for rank in range(4)]
    assert found == [torch.device("cuda", index) for index in (0, 1, 0, 1)]
    assert find_devices("cpu", 1, 1) == [torch.device("cpu")]


@pytest.mark.parametrize("architecture", LINES)
def test_the_device_is_no_part_of_the_fingerprint(architecture: str) -> None:
    prints = {_spec(architecture, device).fingerprint for device in ("cpu", "cuda", "auto")}
    assert len(prints) == 1
