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
from headrace.learner.models.deep.device_module import CPU, DeviceModule, find_devices
from headrace.learner.models.deep.networks.contract import NetworkBatch, NetworkShape
from tests.learner.models.deep.deep_architectures import (
    LINES,
    MODULES,
    check_equal,
    learned,
    spec_with,
)
from tests.learner.streams import Bench, random_examples

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")


@pytest.mark.parametrize("architecture", LINES)
def test_layers_copied_to_a_device_and_back_learn_the_same(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, scores = learned(spec_with(architecture, ""))
    monkeypatch.setattr(deep_model, "DeviceModule", partial(DeviceModule, copied=True))
    copied, found = learned(spec_with(architecture, ""))
    np.testing.assert_array_equal(found, scores)
    for mine, other in zip(copied.rows(), bench.rows(), strict=True):
        np.testing.assert_array_equal(mine, other)


@needs_cuda
@pytest.mark.parametrize("architecture", LINES)
def test_layers_learned_on_cuda_equal_those_of_the_cpu(architecture: str) -> None:
    check_equal(spec_with(architecture, 'device = "cuda"'), spec_with(architecture, ""))


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


def test_a_missing_cuda_device_is_refused_when_learning_and_not_when_predicting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    spec = spec_with("deepfm", 'device = "cuda"')
    bench = Bench(spec)
    examples = random_examples(np.random.default_rng(7), spec, 20, closed=True)
    bench.model.predict(bench.view, examples.features, examples.event_ms)
    with pytest.raises(MissingDevice, match=r'device = "cuda": expected a CUDA device, got none'):
        bench.learn(examples)


@pytest.mark.parametrize(
    ("present", "asked", "found"),
    [
        *((2, ("auto", 1, rank), [rank % 2]) for rank in range(4)),  # of learners of one machine
        (2, ("auto", 2), [0, 1]),
        *((2, ("cpu", 2, 1), []), (0, ("auto", 2), [])),
    ],
)
def test_devices_of_a_machine_are_divided_among_its_learners(
    present: int, asked: tuple[Any, ...], found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: present)
    wanted = [torch.device("cuda", at) for at in found]
    assert find_devices(*asked) == (wanted or [CPU, CPU])


def test_more_devices_than_the_machine_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(MissingDevice, match=r"devices = 4: expected as many CUDA devices, got 2"):
        find_devices("cuda", 4)
