"""The passes written by hand equal those of autograd, with one thread or two."""

import re
import threading

import numpy as np
import pytest

pytest.importorskip("torch", reason="deep models are an extra: pip install headrace[deep]")

from collections.abc import Iterator

import torch

from headrace.learner.inputs.preparation import InputPreparation
from headrace.learner.models.deep.batch_tensors import BatchParts, BatchTensors
from headrace.learner.models.deep.device_module import DeviceModule
from headrace.learner.models.deep.layers import Layers
from headrace.learner.models.deep.networks.architectures import make_module
from headrace.learner.models.deep.passes import Share, SoloPasses, WrittenPasses, layer_threads
from headrace.learner.spec.architecture import DEEPFM, WIDE_AND_DEEP
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from tests.learner.models.deep.deep_architectures import OPTIMIZERS
from tests.learner.streams import random_spec

DIMENSIONS = 5
BOTH = (DEEPFM, WIDE_AND_DEEP)


def spec_of(architecture: str, *, bags: bool) -> ModelSpec:
    model = f'architecture = "{architecture}"\ndimensions = {DIMENSIONS}\nlayers = [9, 6, 4]\n'
    spec = random_spec(np.random.default_rng(5), "window", True, OPTIMIZERS, model)
    if bags:
        return spec
    sections = re.split(r"(?=^\[)", spec.text, flags=re.MULTILINE)
    return parse_spec("".join(each for each in sections if '"bag"' not in each), "test.toml")


class Network:
    """A network with layers, and the passes of both kinds over it."""

    def __init__(self, spec: ModelSpec) -> None:
        torch.set_num_threads(1)  # as a deep model does
        self.arrange = BatchTensors(spec, InputPreparation(spec, 0))
        self.bags = len(spec.fields.bags)
        self._spec = spec

    def passes(self, *, written: bool) -> SoloPasses | WrittenPasses:
        module, again = (make_module(self._spec, self.arrange.form) for _ in range(2))
        layers = Layers(self._spec, module, again)
        own = DeviceModule(module, layers)
        own.set(np.random.default_rng(3).normal(size=own.values.shape).astype(np.float32))
        if written:
            return WrittenPasses(own, self.arrange, pairs=self._spec.architecture == DEEPFM)
        return SoloPasses(own, self.arrange)

    def shares(self, *sizes: int) -> Iterator[tuple[Share, np.ndarray]]:
        """Yield mini-batches of these sizes, with slopes of the loss."""
        rng, fixed = np.random.default_rng(4), self.arrange.form.vectors - self.bags
        for count in sizes:
            lengths = rng.integers(0, 4, count * self.bags)
            offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
            shapes = (count,), (count, fixed, DIMENSIONS), (int(offsets[-1]), DIMENSIONS)
            drawn = (torch.from_numpy(rng.normal(size=each).astype(np.float32)) for each in shapes)
            yield Share(BatchParts(*drawn), offsets, count), rng.normal(size=count).astype("f4")


def layer_threads_now() -> int:
    return sum(each.name.startswith("layers") for each in threading.enumerate())


def copied(found: tuple[BatchParts, np.ndarray]) -> list[np.ndarray]:
    by_parts, by_layers = found
    return [*(each.numpy().copy() for each in by_parts), by_layers.copy()]


@pytest.mark.parametrize("bags", [False, True])
@pytest.mark.parametrize("architecture", BOTH)
def test_written_passes_equal_autograd(architecture: str, bags: bool) -> None:
    network = Network(spec_of(architecture, bags=bags))
    assert bool(network.bags) is bags
    mine, other = network.passes(written=True), network.passes(written=False)
    for share, slopes in network.shares(7, 30, 1, 12):
        log_odds, found = mine.forward(share).copy(), copied(mine.backward(slopes))
        np.testing.assert_array_equal(log_odds, other.forward(share))
        expected = copied(other.backward(slopes))
        for each, wanted in zip(found, expected, strict=True):
            assert each.shape == wanted.shape
            np.testing.assert_allclose(each, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("architecture", BOTH)
def test_a_second_thread_changes_no_bit(architecture: str) -> None:
    spec = spec_of(architecture, bags=True)
    network, made = Network(spec), []
    # the same memory for both: the rounding of matrix products may depend on its alignment
    passes, shares = network.passes(written=True), list(network.shares(600, 700))
    before = layer_threads_now()
    for cores in (1, 2):
        with layer_threads(spec, cores):
            for share, slopes in shares:
                made.append([passes.forward(share).copy(), *copied(passes.backward(slopes))])
        assert layer_threads_now() - before == cores - 1
    for one, two in zip(made[:2], made[2:], strict=True):
        for each, wanted in zip(one, two, strict=True):
            np.testing.assert_array_equal(each, wanted)
