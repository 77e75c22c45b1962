"""The ONNX nodes of each architecture's network, from weights and vectors to log-odds.

They repeat the networks of learner.models.deep in the operators of ONNX. A test compares the two
for every architecture. Items of a history are in order, and padding is behind them.

ONNX counts the gates of a GRU as update, reset, hidden, and torch as reset, update, hidden.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from headrace.learner.local.onnx_nodes import OnnxNodes
from headrace.learner.spec.architecture import (
    ATTENTION,
    DCN_V2,
    DEEPFM,
    DIN,
    FACTORIZATION_MACHINE,
    FIELD_WEIGHTED_FM,
    LOGISTIC_REGRESSION,
    SEQUENCE,
    Structure,
)

Floats = npt.NDArray[np.float32]

_EPSILON = 1e-5
"""Of torch.nn.LayerNorm."""
_HIDDEN = -1e30
"""Score of an item that attention must not see."""


class HistoryItems(NamedTuple):
    """The nodes of a history's items."""

    vectors: str  # (n, longest, d), zero for padding
    present: str  # (n, longest) bool


class OnnxNetwork:
    """Adds the network of one model to a graph."""

    def __init__(
        self,
        nodes: OnnxNodes,
        structure: Structure,
        layers: Mapping[str, Floats],
        target: int = -1,
    ) -> None:
        """target: the vector that items of a history are compared with."""
        self._nodes, self._structure, self._layers = nodes, structure, layers
        self._do = nodes.do
        self._target = target

    def log_odds(self, wide: str, vectors: str, history: HistoryItems | None) -> str:
        """Return log-odds, (n,), of weights, (n,), and vectors, (n, inputs, d)."""
        do, kind = self._do, self._structure.architecture
        if kind == LOGISTIC_REGRESSION:
            return wide
        if kind == FIELD_WEIGHTED_FM:
            return do("Add", wide, self._weighted_pairs(vectors))
        if kind in (FACTORIZATION_MACHINE, DEEPFM):
            wide = do("Add", wide, self._pairs(vectors))
        if kind == FACTORIZATION_MACHINE:
            return wide
        flat = do("Flatten", vectors, axis=1)
        if kind == DCN_V2:
            flat = self._crossed(flat)
        if history is not None and kind == DIN:
            flat = do("Concat", flat, self._interest(vectors, history), axis=1)
        if history is not None and kind == SEQUENCE:
            state = self._state(history)
            shown = do("Gather", vectors, np.int64(self._target), axis=1)
            flat = do("Concat", flat, state, do("Mul", state, shown), axis=1)
        for name in self._linears("deep."):
            flat = do("Relu", self._linear(name, flat))
        last = do("Squeeze", self._linear("last", flat), [1])
        return do("Add", wide, last)

    def _pairs(self, vectors: str) -> str:
        do = self._do
        total, squares = (
            self._nodes.total(vectors, 1),
            self._nodes.total(do("Mul", vectors, vectors), 1),
        )
        pairs = self._nodes.total(do("Sub", do("Mul", total, total), squares), 1)
        return do("Mul", pairs, np.float32(0.5))

    def _weighted_pairs(self, vectors: str) -> str:
        learned = self._layers["strength"]
        # n (n - 1) / 2 pairs of n inputs
        inputs = (1 + math.isqrt(1 + 8 * learned.shape[0])) // 2
        strengths = np.zeros((inputs, inputs), np.float32)
        strengths[np.triu_indices(inputs, 1)] = 1.0 + learned
        others = self._do("MatMul", strengths, vectors)
        return self._nodes.total(self._do("Mul", others, vectors), 1, 2)

    def _crossed(self, x0: str) -> str:
        x, do = x0, self._do
        for name in self._linears("cross."):
            x = do("Add", do("Mul", x0, self._linear(name, x)), x)
        return x

    def _interest(self, vectors: str, history: HistoryItems) -> str:
        """Return the sum of the items as the candidate weighs them, (n, d)."""
        do, items = self._do, history.vectors
        shown = do("Gather", vectors, [self._target], axis=1)
        shown = do("Expand", shown, do("Shape", items))
        compared = do("Sub", items, shown), do("Mul", items, shown)
        hidden = do("Concat", items, shown, *compared, axis=2)
        first, last = self._linears("attention.")
        weights = self._at_each(last, do("Relu", self._at_each(first, hidden)))
        present = do("Cast", history.present, to=TensorProto.FLOAT)
        weights = do("Mul", weights, do("Unsqueeze", present, [2]))
        return self._nodes.total(do("Mul", weights, items), 1)

    # -------------------------------------------------------------------------------- sequence

    def _state(self, history: HistoryItems) -> str:
        """Return the state after the latest item, (n, d); zero if an example has no items."""
        do = self._do
        present = do("Cast", history.present, to=TensorProto.INT64)
        counts = do("ReduceSum", present, [1], keepdims=1)
        kept = do("Min", counts, np.int64(self._structure.history_length))
        items, steps = self._latest(history.vectors, do("Sub", counts, kept))
        ages = do("Sub", do("Sub", kept, [1]), steps)
        if self._structure.encoder == ATTENTION:
            states = self._attended(items, ages, steps)
        else:
            states = self._recurrent(items)
        # items behind the latest are padding. No encoder looks ahead, so they change no state
        is_latest = do("Cast", do("Equal", ages, [0]), to=TensorProto.FLOAT)
        return self._nodes.total(do("Mul", states, do("Unsqueeze", is_latest, [2])), 1)

    def _latest(self, items: str, dropped: str) -> tuple[str, str]:
        """Return items without the oldest, (n, steps, d), and the numbers of the steps, (steps,).

        dropped: (n, 1) how many oldest items each example loses.
        """
        do = self._do
        # one step more, of zeros, so that examples without items have a step
        items = do("Pad", items, [0, 0, 0, 0, 1, 0], np.float32(0.0))
        longest = do("Gather", do("Shape", items), np.int64(1))
        most = np.int64(self._structure.history_length)
        one = np.int64(1)
        count = do("Min", longest, most)
        steps = do("Range", np.int64(0), count, one)
        places = do("Min", do("Add", dropped, steps), do("Sub", longest, one))
        size = do("Shape", do("Slice", items, [0], do("Unsqueeze", count, [0]), [1]))
        places = do("Expand", do("Unsqueeze", places, [2]), size)
        return do("GatherElements", items, places, axis=1), steps

    def _recurrent(self, items: str) -> str:
        """Return the states of the GRU after each item, (n, steps, d)."""
        do = self._do
        steps = do("Transpose", items, perm=[1, 0, 2])
        for at in range(self._structure.encoder_layers):
            weights, biases = (
                [
                    _update_first(self._layers[f"encoder.gru.{kind}_{side}_l{at}"])
                    for side in ("ih", "hh")
                ]
                for kind in ("weight", "bias")
            )
            inputs = [each[None] for each in (*weights, np.concatenate(biases))]
            found = do(
                "GRU", steps, *inputs, hidden_size=weights[1].shape[1], linear_before_reset=1
            )
            steps = do("Squeeze", found, [1])
        return do("Transpose", steps, perm=[1, 0, 2])

    def _attended(self, items: str, ages: str, steps: str) -> str:
        """Return the states of the attention blocks after each item, (n, steps, d)."""
        do = self._do
        positions = self._nodes.constant(self._layers["encoder.positions"], "encoder.positions")
        ages = do("Max", ages, np.int64(0))
        x = do("Add", items, do("Gather", positions, ages))
        later = do("Greater", do("Unsqueeze", steps, [0]), do("Unsqueeze", steps, [1]))
        hidden = do("Mul", do("Cast", later, to=TensorProto.FLOAT), np.float32(_HIDDEN))
        for at in range(self._structure.encoder_layers):
            x = self._block(f"encoder.blocks.{at}.", x, hidden)
        return x

    def _block(self, block: str, x: str, hidden: str) -> str:
        do = self._do
        normal = self._normalized(block + "before_attention", x)
        parts = np.split(self._layers[block + "projections.weight"], 3)
        query, key, value = (do("MatMul", normal, each.T) for each in parts)
        scores = do("MatMul", query, do("Transpose", key, perm=[0, 2, 1]))
        scores = do("Mul", scores, np.float32(1.0 / math.sqrt(parts[0].shape[0])))
        weights = do("Softmax", do("Add", scores, hidden), axis=-1)
        x = do("Add", x, do("MatMul", weights, value))
        inner = self._at_each(block + "network.0", self._normalized(block + "before_network", x))
        return do("Add", x, self._at_each(block + "network.2", do("Relu", inner)))

    # ---------------------------------------------------------------------------------- layers

    def _normalized(self, name: str, x: str) -> str:
        scale, bias = (f"{name}.{kind}" for kind in ("weight", "bias"))
        constants = [self._nodes.constant(self._layers[each], each) for each in (scale, bias)]
        return self._do("LayerNormalization", x, *constants, axis=-1, epsilon=_EPSILON)

    def _linears(self, prefix: str) -> list[str]:
        """Return the names of linear layers below a prefix, in their order."""
        names = [each.removesuffix(".weight") for each in self._layers if each.endswith(".weight")]
        return [each for each in names if each.startswith(prefix)]

    def _linear(self, name: str, x: str) -> str:
        weight, bias = (f"{name}.{kind}" for kind in ("weight", "bias"))
        constants = [self._nodes.constant(self._layers[each], each) for each in (weight, bias)]
        return self._do("Gemm", x, *constants, transB=1)

    def _at_each(self, name: str, x: str) -> str:
        """Return a linear layer of the last axis of (n, steps, width)."""
        weight = self._layers[f"{name}.weight"].T
        bias = self._nodes.constant(self._layers[f"{name}.bias"], f"{name}.bias")
        return self._do("Add", self._do("MatMul", x, weight), bias)


def _update_first(gates: Floats) -> Floats:
    """Return the gates of a GRU in ONNX's order, from torch's, along the first axis."""
    reset, update, hidden = np.split(gates, 3)
    return np.concatenate((update, reset, hidden))
