"""The torch module that torch's exporter writes as ONNX: ids and numbers in, probabilities out.

The module finds rows itself. It holds the ids of all rows in ascending order, and a binary search
of fixed length finds them with `gather` and `where`. So a device needs an ONNX runtime and a hash
function, and no index of its own. *Refused:* `LabelEncoder` of `ai.onnx.ml`, which builds a hash
table when the file is loaded: it needs the second set of operators, and several times the memory.

The initial vector of an id without a row is a function of the id (learner.kernels.initialization).
torch has no operators for uint64, so ids are int64 with the same bits.

Deep models run the module that learns (learner.models.deep.networks), with the learned layers.
"""

import warnings
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from onnx import ModelProto
from torch import Tensor, nn

from headrace.learner.models.deep.networks.architectures import make_module
from headrace.learner.models.deep.networks.contract import NetworkBatch, NetworkShape
from headrace.learner.spec.architecture import DEEP, FACTORIZATION_MACHINE, SEQUENCE
from headrace.learner.spec.model_spec import ModelSpec

Floats = npt.NDArray[np.float32]

_FARTHEST = 35.0
"""As in learner.kernels.loss: no probability is 0 or 1."""
_FARTHEST_CALIBRATED = 15.0
"""As in learner.calibration.platt: log-odds are clipped here before scaling."""
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_A, _MIX_B = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_RARE_PATTERN = 0x5A17C0DE5A17C0DE
"""As in learner.kernels.row_ids."""


class LearnedRows(NamedTuple):
    """The rows of a model as the module holds them. Row 0 is that of missing ids."""

    ids: npt.NDArray[np.int64]  # (rows,) ascending as signed numbers
    weights: Floats  # (rows,)
    vectors: Floats  # (rows, d)


class CommonRows(NamedTuple):
    """What every example reads, and the constants of the search for its rows."""

    number_weights: Floats  # (numbers,)
    number_vectors: Floats  # (numbers, d)
    intercept: float
    """Weight of the intercept, and the log-odds before anything is learned."""
    guarded: npt.NDArray[np.bool_]  # (singles + bags,) whether a rare row replaces a missing one
    high: int
    """Bits of an id that say its bucket."""
    bound: float
    """Of initial vectors."""
    platt: tuple[float, float] | None
    """a and b of a calibration."""


def exported_model(
    spec: ModelSpec, rows: LearnedRows, common: CommonRows, layers: Mapping[str, Floats]
) -> ModelProto:
    """Return the ONNX model that takes the inputs that the spec has, each by its name."""
    fields, count = spec.fields, torch.export.Dim("n")
    longest = torch.export.Dim("longest")
    shapes = {"ids": {0: count}, "numbers": {0: count}, "items": {0: count, 2: longest}}
    some = {
        "ids": torch.zeros(3, len(fields.singles), dtype=torch.int64),
        "numbers": torch.zeros(3, len(fields.numbers)),
        "items": torch.zeros(3, len(fields.bags), 5, dtype=torch.int64),
    }
    some = {name: each for name, each in some.items() if each.shape[1]}
    module = ExportedModel(spec, rows, common, layers).eval()
    with warnings.catch_warnings():
        # torch's exporter uses its own deprecated names
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.onnx.export(
            module,
            kwargs=some,
            dynamic_shapes={name: shapes[name] for name in some},
            input_names=[*some],
            output_names=["probability"],
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    made: ModelProto = program.model_proto
    return made


class ExportedModel(nn.Module):
    """The forward pass of one model, rows included."""

    row_ids: Tensor
    weights: Tensor
    vectors: Tensor
    guarded: Tensor
    number_weights: Tensor
    number_vectors: Tensor

    def __init__(
        self, spec: ModelSpec, rows: LearnedRows, common: CommonRows, layers: Mapping[str, Floats]
    ) -> None:
        super().__init__()
        self._structure, self._platt = spec.structure, common.platt
        self._intercept, self._bound = common.intercept, common.bound
        self._kept, self._rare = common.high | 1023, bool(common.guarded.any())
        fields, self._dimensions = spec.fields, rows.vectors.shape[1]
        self._singles, self._bags = len(fields.singles), len(fields.bags)
        held = {"row_ids": rows.ids, "weights": rows.weights, "vectors": rows.vectors,
                "guarded": common.guarded, "number_weights": common.number_weights,
                "number_vectors": common.number_vectors}  # fmt: skip
        for name, array in held.items():
            self.register_buffer(name, torch.from_numpy(array))
        self._history = self._target = -1
        if self._structure.history:
            self._history = [each.name for each in fields.bags].index(self._structure.history)
            self._target = [each.name for each in fields.singles].index(self._structure.target)
        if self._structure.architecture in DEEP:
            structure, inputs = self._structure, self._singles + len(fields.numbers) + self._bags
            self.network = make_module(
                spec,
                NetworkShape(inputs, self._dimensions, structure.layers, structure.cross_layers,
                             self._target),
            )  # fmt: skip
            self.network.load_state_dict({k: torch.from_numpy(v) for k, v in layers.items()})

    def forward(
        self,
        ids: Tensor | None = None,
        numbers: Tensor | None = None,
        items: Tensor | None = None,
    ) -> Tensor:
        """Return probabilities, (n,).

        ids: (n, singles) int64. numbers: (n, numbers) float32. items: (n, bags, longest) int64,
        padded with 0. An input that the model lacks is None.
        """
        wide, vectors = list[Tensor](), list[Tensor]()
        history = present = None
        if ids is not None:
            weights, of_ids = self._inputs_of(ids, self.guarded[: self._singles])
            wide.append(weights.sum(1))
            vectors.append(of_ids)
        if numbers is not None:
            wide.append((numbers * self.number_weights).sum(1))
            vectors.append(numbers.unsqueeze(2) * self.number_vectors)
        if items is not None:
            guarded = self.guarded[self._singles :].unsqueeze(1)
            weights, of_items = self._inputs_of(items, guarded)
            wide.append(weights.sum((1, 2)))
            if self._structure.architecture == FACTORIZATION_MACHINE:
                vectors.append(of_items.flatten(1, 2))
            else:
                vectors.append(of_items.sum(2))
            if self._history >= 0:
                # an encoder then has as many steps for every example, as its graph must have
                sequence = self._structure.architecture == SEQUENCE
                most = self._structure.history_length if sequence else 1
                history = nn.functional.pad(of_items[:, self._history], (0, 0, 0, most))
                present = nn.functional.pad(items[:, self._history] != 0, (0, most))
        return self._probability(
            self._log_odds(
                torch.stack(wide).sum(0) + self._intercept, torch.cat(vectors, 1), history, present
            )
        )

    def _log_odds(
        self, wide: Tensor, vectors: Tensor, history: Tensor | None, present: Tensor | None
    ) -> Tensor:
        if self._structure.architecture in DEEP:
            if history is None or present is None:
                history, present = vectors[:, :0], vectors[:, :0, 0] != 0
            found: Tensor = self.network(NetworkBatch(wide, vectors, history, present))
            return found
        total = vectors.sum(1)
        return wide + 0.5 * (total * total - (vectors * vectors).sum(1)).sum(1)

    def _probability(self, log_odds: Tensor) -> Tensor:
        if self._platt is not None:
            a, b = self._platt
            log_odds = log_odds.clamp(-_FARTHEST_CALIBRATED, _FARTHEST_CALIBRATED) * (1.0 + a) + b
        return torch.sigmoid(log_odds.clamp(-_FARTHEST, _FARTHEST))

    def _inputs_of(self, ids: Tensor, guarded: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of ids of any shape, and their vectors. An id of 0 is no input.

        guarded: by id, to be broadcast to their shape.
        """
        place, read = self._find(ids), ids
        if self._rare:
            rare = (ids & _signed(self._kept)) | _signed(_RARE_PATTERN & ~self._kept)
            lacking = (place == 0) & guarded
            place = torch.where(lacking, self._find(rare), place)
            read = torch.where(lacking, rare, ids)
        vectors = torch.where((place != 0).unsqueeze(-1), self.vectors[place], self._initial(read))
        return self.weights[place], vectors * (ids != 0).unsqueeze(-1)

    def _find(self, ids: Tensor) -> Tensor:
        """Return the place of each id among the rows, 0 where it has none."""
        last: int = self.row_ids.shape[0] - 1
        place = torch.zeros_like(ids)
        step = 1 << max(last.bit_length() - 1, 0)
        while step:
            further = (place + step).clamp(max=last)
            place = torch.where(self.row_ids[further] <= ids, further, place)
            step >>= 1
        return torch.where(self.row_ids[place] == ids, place, 0)

    def _initial(self, ids: Tensor) -> Tensor:
        """Return the initial vectors of ids: learner.kernels.initialization."""
        begun = _mix(ids ^ _signed(self._structure.seed * _GOLDEN))
        steps = torch.tensor([_signed((at + 1) * _GOLDEN) for at in range(self._dimensions)],
                             dtype=torch.int64)  # fmt: skip
        bits = _shifted(_mix(begun.unsqueeze(-1) + steps), 40)
        return (bits.to(torch.float32) * 2.0**-23 - 1.0) * self._bound


def _mix(words: Tensor) -> Tensor:
    for factor in (_MIX_A, _MIX_B):
        words = (words ^ _shifted(words, 33)) * _signed(factor)
    return words ^ _shifted(words, 33)


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Return int64 words shifted right, with zeros coming in."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _signed(bits: int) -> int:
    """Return the int64 with the bits of a number modulo 2^64."""
    bits &= (1 << 64) - 1
    return bits - (1 << 64) if bits >> 63 else bits
