"""The ONNX graph of a forward pass: ids and numbers in, probabilities out, rows inside.

The graph finds rows itself. The ids of all rows are in it in ascending order, and a binary search
of fixed length finds them with `Gather` and `Where`. So a device needs an ONNX runtime and a hash
function, and no index of its own. *Refused:* `LabelEncoder` of `ai.onnx.ml`, which builds a hash
table when the file is loaded: it needs the second set of operators, and several times the memory.

The initial vector of an id without a row is a function of the id (learner.kernels.initialization),
in integers of 64 bits. The graph computes it as the kernels do. ONNX shifts unsigned integers only,
and runtimes multiply and compare signed ones, so ids are int64 with the bits of the uint64.

Everything else is float32, as in the kernels.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, TensorProto, ValueInfoProto, helper, numpy_helper

from headrace.learner.calibration.platt import FARTHEST
from headrace.learner.local.onnx_networks import HistoryItems, OnnxNetwork
from headrace.learner.local.onnx_nodes import OnnxNodes
from headrace.learner.spec.architecture import FACTORIZATION_MACHINE, Structure

Floats = npt.NDArray[np.float32]

OPSET = 18
"""Version of the operators: the first with BitwiseAnd, BitwiseOr and BitwiseXor."""
_FARTHEST = 35.0
"""As in learner.kernels.loss: no probability is 0 or 1."""
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_A, _MIX_B = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_RARE_PATTERN = 0x5A17C0DE5A17C0DE
"""As in learner.kernels.row_ids."""


class LearnedRows(NamedTuple):
    """The rows of a model as the graph holds them. Row 0 is that of missing ids."""

    ids: npt.NDArray[np.int64]  # (rows,) ascending as signed numbers
    weights: Floats  # (rows,)
    vectors: Floats  # (rows, d)


class GraphInputs(NamedTuple):
    """The inputs of the graph, and the rows that every example reads."""

    singles: int
    bags: int
    number_weights: Floats  # (numbers,)
    number_vectors: Floats  # (numbers, d)
    intercept: float
    """Weight of the intercept, and the log-odds before anything is learned."""
    guarded: npt.NDArray[np.bool_]  # (singles + bags,) whether a rare row replaces a missing one
    high: int
    """Bits of an id that say its bucket."""
    seed: int
    bound: float
    """Of initial vectors."""
    platt: tuple[float, float] | None
    """a and b of a calibration."""
    history: int
    """The bag whose items a network reads in their order, -1 without one."""
    target: int
    """The vector that these items are compared with, -1 without one."""


class OnnxGraph:
    """Builds the graph of one model. `build` is called once."""

    def __init__(
        self,
        structure: Structure,
        rows: LearnedRows,
        inputs: GraphInputs,
        layers: Mapping[str, Floats],
    ) -> None:
        self._rows, self._inputs, self._nodes = rows, inputs, OnnxNodes()
        self._do = self._nodes.do
        self._architecture = structure.architecture
        self._network = OnnxNetwork(self._nodes, structure, layers, inputs.target)
        self._dimensions = rows.vectors.shape[1]

    def build(self, name: str) -> GraphProto:
        """Return the graph, with the rows and layers as its initializers."""
        inputs, ids, items = self._inputs, "ids", "items"
        taken, history = self._taken(), None
        wide = [self._nodes.constant(np.float32(inputs.intercept), "intercept")]
        vectors = list[str]()
        if inputs.singles:
            weights, of_ids = self._inputs_of(ids, inputs.guarded[: inputs.singles])
            wide.append(self._nodes.total(weights, 1))
            vectors += of_ids
        if inputs.number_weights.shape[0]:
            wide.append(self._nodes.total(self._do("Mul", "numbers", inputs.number_weights), 1))
            if self._dimensions:
                each = self._do("Unsqueeze", "numbers", [2])
                vectors.append(self._do("Mul", each, inputs.number_vectors))
        if inputs.bags:
            guarded = inputs.guarded[inputs.singles :, None]
            weights, of_items = self._inputs_of(items, guarded)
            wide.append(self._nodes.total(weights, 1, 2))
            vectors += self._of_bags(of_items)
            history = self._history(of_items)
        total = wide[0]
        for each in wide[1:]:
            total = self._do("Add", total, each)
        if self._dimensions:
            joined = self._do("Concat", *vectors, axis=1)
            total = self._network.log_odds(total, joined, history)
        self._answer(total)
        initializers = [numpy_helper.from_array(v, k) for k, v in self._nodes.constants.items()]
        answers = [helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["n"])]
        return helper.make_graph(self._nodes.nodes, name, taken, answers, initializers)

    def _taken(self) -> list[ValueInfoProto]:
        inputs, taken = self._inputs, []
        if inputs.singles:
            shape: list[str | int] = ["n", inputs.singles]
            taken.append(helper.make_tensor_value_info("ids", TensorProto.INT64, shape))
        if numbers := inputs.number_weights.shape[0]:
            shape = ["n", numbers]
            taken.append(helper.make_tensor_value_info("numbers", TensorProto.FLOAT, shape))
        if inputs.bags:
            shape = ["n", inputs.bags, "longest"]
            taken.append(helper.make_tensor_value_info("items", TensorProto.INT64, shape))
        return taken

    # ------------------------------------------------------------------------------------ rows

    def _inputs_of(self, ids: str, guarded: npt.NDArray[np.bool_]) -> tuple[str, list[str]]:
        """Return the weights of ids of any shape, and their vectors if there are any.

        An id of 0 is no input. guarded: by id, to be broadcast to their shape.
        """
        place = self._find(ids)
        read = ids
        if guarded.any():
            rare = self._rare(ids)
            missing = self._do("Not", self._do("Cast", place, to=TensorProto.BOOL))
            lacking = self._do("And", missing, guarded)
            place = self._do("Where", lacking, self._find(rare), place)
            read = self._do("Where", lacking, rare, ids)
        weights = self._do("Gather", self._nodes.constant(self._rows.weights, "weights"), place)
        if not self._dimensions:
            return weights, []
        there = self._do("Cast", place, to=TensorProto.BOOL)
        learned = self._do("Gather", self._nodes.constant(self._rows.vectors, "vectors"), place)
        begun = self._initial(self._do("Unsqueeze", read, [-1]))
        vectors = self._do("Where", self._do("Unsqueeze", there, [-1]), learned, begun)
        given = self._do("Cast", self._do("Cast", ids, to=TensorProto.BOOL), to=TensorProto.FLOAT)
        return weights, [self._do("Mul", vectors, self._do("Unsqueeze", given, [-1]))]

    def _find(self, ids: str) -> str:
        """Return the place of each id among the rows, 0 where it has none."""
        known, last = self._nodes.constant(self._rows.ids, "row_ids"), self._rows.ids.shape[0] - 1
        place = self._do("Sub", ids, ids)  # zeros of the same shape
        step = 1 << max(last.bit_length() - 1, 0)
        while step:
            further = self._do("Add", place, np.int64(step))
            further = self._do("Min", further, np.int64(last))
            reached = self._do("LessOrEqual", self._do("Gather", known, further), ids)
            place = self._do("Where", reached, further, place)
            step >>= 1
        found = self._do("Equal", self._do("Gather", known, place), ids)
        return self._do("Where", found, place, np.int64(0))

    def _rare(self, ids: str) -> str:
        """Return the ids of the rare rows of these ids: learner.kernels.row_ids."""
        kept = _word(self._inputs.high | 1023)
        fixed = _word(_RARE_PATTERN & ~self._inputs.high & ~1023)
        return self._do("BitwiseOr", self._do("BitwiseAnd", ids, kept), fixed)

    def _initial(self, ids: str) -> str:
        """Return the initial vectors of ids, (..., 1): learner.kernels.initialization."""
        seed = _word(self._inputs.seed * _GOLDEN)
        begun = self._mix(self._do("BitwiseXor", ids, seed))
        steps = np.array([_word((at + 1) * _GOLDEN) for at in range(self._dimensions)])
        numbered = self._do("Add", begun, steps)
        bits = self._shifted(self._mix(numbered), 40)
        unit = self._do("Mul", self._do("Cast", bits, to=TensorProto.FLOAT), np.float32(2.0**-23))
        unit = self._do("Sub", unit, np.float32(1.0))
        return self._do("Mul", unit, np.float32(self._inputs.bound))

    def _mix(self, words: str) -> str:
        for factor in (_MIX_A, _MIX_B):
            words = self._do("BitwiseXor", words, self._shifted(words, 33))
            words = self._do("Mul", words, _word(factor))
        return self._do("BitwiseXor", words, self._shifted(words, 33))

    def _shifted(self, words: str, bits: int) -> str:
        """Return int64 words shifted right, zeros coming in."""
        unsigned = self._do("Cast", words, to=TensorProto.UINT64)
        shifted = self._do("BitShift", unsigned, np.uint64(bits), direction="RIGHT")
        return self._do("Cast", shifted, to=TensorProto.INT64)

    # ---------------------------------------------------------------------------- bags, answer

    def _of_bags(self, of_items: Sequence[str]) -> list[str]:
        """Return the vectors of bags: each item an input of its own, or their sum to a network."""
        if not of_items:
            return []
        [items] = of_items  # (n, bags, longest, d)
        if self._architecture == FACTORIZATION_MACHINE:
            return [self._do("Reshape", items, [0, -1, self._dimensions])]
        return [self._nodes.total(items, 2)]

    def _history(self, of_items: Sequence[str]) -> HistoryItems | None:
        if not of_items or self._inputs.history < 0:
            return None
        which = np.int64(self._inputs.history)
        ids, vectors = (self._do("Gather", each, which, axis=1) for each in ("items", *of_items))
        return HistoryItems(vectors, self._do("Cast", ids, to=TensorProto.BOOL))

    def _answer(self, log_odds: str) -> None:
        """Add the nodes from log-odds to the output `probability`."""
        if self._inputs.platt is not None:
            a, b = self._inputs.platt
            z = self._clipped(log_odds, FARTHEST)
            scaled = self._do("Mul", z, np.float32(1.0 + a))
            log_odds = self._do("Add", scaled, np.float32(b))
        away = self._do("Exp", self._do("Neg", self._clipped(log_odds, _FARTHEST)))
        odds = self._do("Add", away, np.float32(1.0))
        self._nodes.nodes.append(helper.make_node("Reciprocal", [odds], ["probability"]))

    def _clipped(self, numbers: str, farthest: float) -> str:
        bounds = [np.float32(each) for each in (-farthest, farthest)]
        return self._do("Clip", numbers, *bounds)


def _word(bits: int) -> np.int64:
    """Return the int64 with the bits of a number modulo 2^64."""
    return np.uint64(bits & (1 << 64) - 1).view(np.int64)
