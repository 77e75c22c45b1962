"""The forward and backward pass of a mini-batch on one device: by autograd, or by hand.

`SoloPasses` runs any network under autograd. `WrittenPasses` computes Wide & Deep and DeepFM on the
CPU without it: both are a chain of fully connected layers, plus at most the sum of pairs. The
log-odds are those of `networks` bit for bit, the gradients those of autograd but for rounding. They
are written to memory that stays from one mini-batch to the next, and the gradients of layers to
where the optimizer reads them.

In a fit, a second thread computes the gradient by the weights of the first layer, which has most of
them, while the learning thread computes the gradient by its inputs. No sum is divided between the
threads: the result does not depend on their number.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headrace.learner.models.deep.batch_tensors import BatchParts, BatchTensors
from headrace.learner.models.deep.device_module import CPU, DeviceModule
from headrace.learner.models.deep.networks.pairwise import add_pairs, slope_pairs
from headrace.learner.spec.architecture import DEEPFM, WIDE_AND_DEEP
from headrace.learner.spec.model_spec import ModelSpec

Floats = npt.NDArray[np.float32]

WRITTEN = (DEEPFM, WIDE_AND_DEEP)
"""Architectures of `WrittenPasses`."""
_LEAST_SHARED, _LEAST_DIVIDED = 128, 1_024
"""Examples of a mini-batch from which on another thread pays: for a whole product, and for a share
of each operator. Measured on two cores with DeepFM: OpenMP's two threads make 1.1 times as many
steps with 1,024 examples, and 0.9 times as many with 256.
"""
_MOST_THREADS = 4
_second_thread: ContextVar[bool] = ContextVar("_second_thread", default=False)


@contextmanager
def layer_threads(spec: ModelSpec, cores: int) -> Iterator[None]:
    """Compute layers on the CPU with threads for so many cores, in this context.

    A learner and a server share their machine with others, so `DeepModel` sets one thread. A fit
    has the machine to itself. OpenMP's threads divide sums, whose rounding then differs.
    """
    if spec.architecture in WRITTEN and spec.structure.devices == 1:
        token = _second_thread.set(cores > 1)
        try:
            yield
        finally:
            _second_thread.reset(token)
        return
    before = torch.get_num_threads()
    if spec.structure.mini_batch >= _LEAST_DIVIDED:
        torch.set_num_threads(max(1, min(cores, _MOST_THREADS) // spec.structure.devices))
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Share(NamedTuple):
    """Consecutive examples of a mini-batch, as the network takes them."""

    parts: BatchParts
    offsets: npt.NDArray[np.int64]
    """(examples * bags + 1,) of the items of their bags, from 0."""
    examples: int


class SharePass:
    """The forward pass of a share on one device, then the backward pass."""

    def __init__(self, own: DeviceModule, arrange: BatchTensors, share: Share) -> None:
        self._own, self._parts = own, share.parts.to(own.device)
        self._log_odds: Tensor | None = None
        if share.examples:
            for each in self._parts:
                each.requires_grad_()
            batch = arrange.batch(self._parts, share.offsets, share.examples)
            self._log_odds = own.module(batch)

    @property
    def log_odds(self) -> Floats:
        """Of the share's examples."""
        if self._log_odds is None:
            return np.zeros(0, np.float32)
        found: Floats = self._log_odds.detach().cpu().numpy()
        return found

    def gradients(self, slopes: Floats) -> tuple[BatchParts, list[Tensor]]:
        """Return gradients by inputs, on the host, and by layers, on the device.

        slopes: of the loss by each log-odds.
        """
        leaves = [*self._parts, *self._own.parameters]
        if self._log_odds is None:
            by_leaf = [torch.zeros_like(each) for each in leaves]
        else:
            # not `grad_outputs`: torch imports sympy to compare shapes, some seconds and 50 MB
            loss = torch.dot(self._log_odds, torch.from_numpy(slopes).to(self._own.device))
            by_leaf = list(torch.autograd.grad(loss, leaves, materialize_grads=True))
        return BatchParts(*by_leaf[:3]).to(CPU), by_leaf[3:]


class SoloPasses:
    """The passes of mini-batches on one device."""

    def __init__(self, own: DeviceModule, arrange: BatchTensors) -> None:
        self.own, self._arrange = own, arrange
        self._pass: SharePass | None = None

    def forward(self, whole: Share) -> Floats:
        """Return the log-odds of a mini-batch."""
        self._pass = SharePass(self.own, self._arrange, whole)
        return self._pass.log_odds

    def backward(self, slopes: Floats) -> tuple[BatchParts, Floats]:
        """Return gradients by inputs and by layers, the latter valid until the next call."""
        assert self._pass is not None  # after `forward`
        by_parts, by_layers = self._pass.gradients(slopes)
        self._pass = None
        return by_parts, self.own.joined(by_layers)


class WrittenPasses:
    """The passes of Wide & Deep or DeepFM on the CPU, written out. Used by one thread."""

    def __init__(self, own: DeviceModule, arrange: BatchTensors, *, pairs: bool) -> None:
        """pairs: whether the log-odds have the sum of pairs (DeepFM)."""
        self.own, self._arrange, self._pairs = own, arrange, pairs
        linear = [each for each in own.module.modules() if isinstance(each, nn.Linear)]
        # of the same memory as the parameters, which change in place
        self._weights = [each.weight.detach() for each in linear]
        self._biases = [each.bias.detach() for each in linear]
        rooms = iter(own.cut_gradient)
        self._slopes = list(zip(rooms, rooms, strict=True))
        self._capacity = 0
        self._outputs: list[Tensor] = []
        self._by_inputs: list[Tensor] = []
        self._totals = np.zeros((0, 0), np.float32)
        self._whole: Share | None = None
        self._inputs = torch.zeros(0, 0)
        self._other: ThreadPoolExecutor | None = None

    def forward(self, whole: Share) -> Floats:
        """Return the log-odds of a mini-batch (`networks.DeepFM`, `networks.WideAndDeep`)."""
        count, self._whole = whole.examples, whole
        self._reserve(count)
        vectors = self._arrange.batch(whole.parts, whole.offsets, count).vectors.contiguous()
        self._inputs = flow = vectors.flatten(1)
        last = len(self._weights) - 1
        for at, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            flow = torch.addmm(bias, flow, weight.t(), out=self._outputs[at][:count])
            if at < last:
                flow.relu_()
        log_odds = whole.parts.wide
        if self._pairs:
            pairs = np.empty(count, np.float32)
            work = np.empty(vectors.shape[2], np.float32)
            rows = vectors.view(-1, vectors.shape[2]).numpy()
            add_pairs(rows, vectors.shape[1], self._totals[:count], work, pairs)
            log_odds = log_odds + torch.from_numpy(pairs)
        found: Floats = (log_odds + flow.squeeze(1)).numpy()
        return found

    def backward(self, slopes: Floats) -> tuple[BatchParts, Floats]:
        """Return gradients by inputs and by layers, both valid until the next call."""
        assert self._whole is not None  # after `forward`
        whole, count = self._whole, self._whole.examples
        self._whole = None
        by_wide = torch.from_numpy(slopes)
        flow, first = by_wide.unsqueeze(1), None
        for at in range(len(self._weights) - 1, -1, -1):
            before = self._outputs[at - 1][:count] if at else self._inputs
            by_weight, by_bias = self._slopes[at]
            if at:
                torch.mm(flow.t(), before, out=by_weight)
            else:
                first = self._shared(flow.t(), before, by_weight)
            torch.sum(flow, 0, out=by_bias)
            flow = torch.mm(flow, self._weights[at], out=self._by_inputs[at][:count])
            if at:
                _slope_relu(flow, before)
        dimensions = whole.parts.vectors.shape[2]
        by_vectors = flow.view(count, -1, dimensions)
        if self._pairs:
            rows, by_rows = self._inputs.view(-1, dimensions), flow.view(-1, dimensions).numpy()
            each = by_vectors.shape[1]
            slope_pairs(rows.numpy(), each, self._totals[:count], slopes, by_rows, by_rows)
        by_parts = self._arrange.by_parts(by_wide, by_vectors, whole.offsets)
        if first is not None:
            first.result()
        return by_parts, self.own.gradient

    def _reserve(self, count: int) -> None:
        """Make memory for a mini-batch, if the present memory is too small."""
        if count <= self._capacity:
            return
        self._capacity = count
        self._outputs = [torch.empty(count, each.shape[0]) for each in self._weights]
        self._by_inputs = [torch.empty(count, each.shape[1]) for each in self._weights]
        self._totals = np.empty((count, self._arrange.form.dimensions), np.float32)

    def _shared(self, first: Tensor, second: Tensor, product: Tensor) -> Future[Tensor] | None:
        """Multiply in the second thread, if there is one for this: return what to wait for."""
        if second.shape[0] < _LEAST_SHARED or not _second_thread.get():
            torch.mm(first, second, out=product)
            return None
        if self._other is None:
            # torch has a number of threads for each thread
            self._other = ThreadPoolExecutor(1, "layers", torch.set_num_threads, (1,))
        return self._other.submit(torch.mm, first, second, out=product)


def _slope_relu(by_output: Tensor, output: Tensor) -> None:
    """Set the gradient by a ReLU's output to that by its input."""
    torch.ops.aten.threshold_backward.grad_input(by_output, output, 0.0, grad_input=by_output)
