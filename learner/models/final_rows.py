"""The final weights of rows: the part of a row that the forward pass reads, for a relay.

An optimizer keeps more in a row than a weight. FTRL and coin betting compute the weight from sums,
and no optimizer's sums are needed to predict. `final` replaces the sums of each weight with the
weight, and `restored` returns a row from which every model computes this weight. So the models read
relayed rows like all others.

Beside the weight, a row keeps the sum from which `uncertainty` computes a rate: n of FTRL and
AdaGrad, the sizes of coin. With `half`, it is 65,504 at most, the greatest number of 16 bits. Rates
of ids with more evidence are then not below alpha / (beta + 256), so the uncertainty is never too
small.

Counters are relayed where the forward pass reads them: the rows that statistics read, the slots of
click histories, and `last_seen` if values decay or an admission asks whether an id has its row.

With `half`, weights and vectors have 16 bits, layers and calibrations 32. A weight is then wrong by
at most 2^-11 of it (2^-25 below 2^-14). The log-odds of a logistic regression are wrong by at most
the sum of these over its inputs: 0.001 if the weights' sizes add up to 2. *Refused:* half precision
of layers, whose errors have no such bound.
"""

import numpy as np
import numpy.typing as npt

from headrace.ingest.features.fields import LAST_NUMBER
from headrace.learner.kernels.optimizers import ParameterGroup
from headrace.learner.kernels.row_values import parameters_of
from headrace.learner.spec.architecture import DENSE_NUMBER
from headrace.learner.spec.calibration_spec import CALIBRATION_NUMBER
from headrace.learner.spec.model_spec import ModelSpec
from headrace.learner.spec.optimizer_spec import ADAGRAD, ADAM, COIN, FTRL, SGD, Optimizer, floats
from headrace.pserver.relay.relay_section import COUNTERS, LARGEST_HALF, RelayedColumns, RelayForm
from headrace.pserver.rows.row_codec import FoldedRows

Floats = npt.NDArray[np.float32]

_WHOLE, _PLAIN, _COUNTED, _LAYERS = range(4)
"""Kinds of rows: as they are; inputs; inputs whose counters are read; layers."""
_NUMBERS = np.uint64(1023)
_EVIDENCE = 1
"""The float of this sum in a row, behind the weight."""
_WITH_EVIDENCE = (FTRL, ADAGRAD, COIN)


class FinalRows:
    """The relayed form of a model's rows, and the way back."""

    def __init__(self, spec: ModelSpec, *, half: bool = False) -> None:
        """half: whether to relay weights and vectors in 16 bits."""
        parameters, optimizers = parameters_of(spec), spec.optimizers
        self._weights, self._vectors = parameters.weights, parameters.vectors
        self._items = parameters.items
        weights, vectors = optimizers.weights.name, (optimizers.embeddings or Optimizer()).name
        self._names = weights, vectors, weights
        self._half, self._spec = half, spec
        self._kind = np.full(int(_NUMBERS) + 1, _WHOLE, np.intp)
        self._kind[: LAST_NUMBER + 1] = _PLAIN
        counted = {each.of for each in spec.statistics} | set(spec.histories)
        for each in (*spec.fields.singles, *spec.fields.bags):
            if each.name in counted:
                self._kind[each.number] = _COUNTED
        self._kind[DENSE_NUMBER], self._kind[CALIBRATION_NUMBER] = _LAYERS, _WHOLE

    @property
    def form(self) -> RelayForm:
        """The form in which a relay writes rows."""
        optimizers, first = self._spec.optimizers, self._vectors.offset
        evidence = (_EVIDENCE,) if self._names[0] in _WITH_EVIDENCE else ()
        vectors, items = range(first, first + self._vectors.coordinates), self._items
        importances = range(items.offset, items.offset + items.coordinates)
        kept = (0, *evidence, *vectors, *importances)
        groups = (optimizers.weights, optimizers.embeddings, optimizers.dense)
        decays = any(each is not None and each.decay_per_day > 0.0 for each in groups)
        dated = ("last_seen",) if decays or self._spec.admission is not None else ()
        whole = RelayedColumns.all(self._spec.width)
        sections = (
            whole,
            RelayedColumns(kept, self._half, dated),
            RelayedColumns(kept, self._half, COUNTERS),
            RelayedColumns(self._layer_columns() or whole.kept, counters=dated),
        )
        return RelayForm(sections, self._kinds, self._final)

    def restored(self, rows: FoldedRows) -> FoldedRows:
        """Return rows with the weights given in `rows`, for every forward pass."""
        values, inputs = rows.values.copy(), self._inputs(rows)
        some = values[inputs]
        for group, name, evidence in self._groups(some):
            columns = slice(group.offset, group.offset + group.coordinates)
            some[:, columns] = _restored(some[:, columns], evidence, group, name)
        values[inputs] = some
        return rows._replace(values=values)

    def _final(self, rows: FoldedRows) -> FoldedRows:
        """Return rows with weights in the place of the sums that they are computed from."""
        values, inputs = rows.values.copy(), self._inputs(rows)
        some = values[inputs]
        groups = (self._weights, self._vectors, self._items)
        for group, name in zip(groups, self._names, strict=True):
            columns = slice(group.offset, group.offset + group.coordinates)
            some[:, columns] = _final(some, group, name)
        if self._half and self._names[0] in _WITH_EVIDENCE:
            some[:, _EVIDENCE] = np.minimum(some[:, _EVIDENCE], np.float32(LARGEST_HALF))
        values[inputs] = some
        return rows._replace(values=values)

    def _groups(self, values: Floats) -> tuple[tuple[ParameterGroup, str, Floats], ...]:
        """Return each group, its optimizer, and the sums of evidence that its rows keep."""
        nothing = np.zeros((values.shape[0], 1), np.float32)
        kept = values[:, _EVIDENCE : _EVIDENCE + 1] if self._names[0] in _WITH_EVIDENCE else nothing
        return (
            (self._weights, self._names[0], kept),
            (self._vectors, self._names[1], nothing),
            (self._items, self._names[2], nothing),
        )

    def _kinds(self, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
        kinds: npt.NDArray[np.intp] = self._kind[ids & _NUMBERS]
        return kinds

    def _inputs(self, rows: FoldedRows) -> npt.NDArray[np.bool_]:
        kinds = self._kinds(rows.ids)
        inputs: npt.NDArray[np.bool_] = (kinds == _PLAIN) | (kinds == _COUNTED)
        return inputs

    def _layer_columns(self) -> tuple[int, ...]:
        """Return the floats of a layer's row that are values; empty: all are needed."""
        dense = self._spec.optimizers.dense
        if dense is None or dense.name not in (SGD, ADAGRAD, ADAM):
            return ()
        coordinates = 1
        while floats(dense, coordinates + 1) <= self._spec.width:
            coordinates += 1
        return tuple(range(coordinates))


def _final(values: Floats, group: ParameterGroup, name: str) -> Floats:
    """Return the weights of coordinates, (n, coordinates); decay is left to the reader."""
    parts = [
        values[:, group.offset + k * group.coordinates :][:, : group.coordinates] for k in range(3)
    ]
    if name == FTRL:
        z, n = parts[:2]
        shrunk = np.maximum(np.abs(z) - group.l1, np.float32(0.0))
        return (-np.copysign(shrunk, z) / _ftrl_scale(n, group)).astype(np.float32)
    if name == COIN:
        z, sizes, rewards = parts
        wealth = np.maximum(group.alpha + rewards, np.float32(0.0))
        bets: Floats = (wealth * z / (group.beta * (group.beta + sizes))).astype(np.float32)
        return bets
    plain: Floats = parts[0]
    return plain


def _restored(weights: Floats, evidence: Floats, group: ParameterGroup, name: str) -> Floats:
    """Return the first component of coordinates with these weights, given their evidence."""
    if name == FTRL:
        size = np.abs(weights) * _ftrl_scale(evidence, group) + group.l1
        signed = np.where(weights == 0.0, np.float32(0.0), -np.copysign(size, weights))
        return signed.astype(np.float32)
    if name == COIN:
        return (weights * (group.beta * (group.beta + evidence)) / group.alpha).astype(np.float32)
    return weights


def _ftrl_scale(n: Floats, group: ParameterGroup) -> Floats:
    return ((group.beta + np.sqrt(n)) * group.inverse_alpha + group.l2).astype(np.float32)
