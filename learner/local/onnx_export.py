"""Exports a model as one ONNX file: its rows, its forward pass, and what a device needs to ask it.

The file is the model at one moment, `as of` its newest example. Decay is applied up to then, and no
row is learned on. Weights and vectors are values, not states of an optimizer, so a row needs
`4 (1 + dimensions)` bytes and 8 for its id.

A device passes ids and numbers, because strings and hashes are not a matter of ONNX. The metadata
`headrace` of the file, in JSON, lists the fields in the order of the columns.

Statistics are refused: they depend on counters, which change with every impression. So is a module
of your own: its operators are not known here. `SUPPORTED` has the other architectures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import fsspec
import numpy as np
import numpy.typing as npt

from headrace.ingest.features.fields import Field, Transform
from headrace.learner.calibration.platt import PlattScaling
from headrace.learner.errors import MissingOnnx, NotExportable
from headrace.learner.inputs.admission import gate_of
from headrace.learner.inputs.example_inputs import INTERCEPT
from headrace.learner.kernels.optimizers import shrink_of
from headrace.learner.kernels.row_ids import NUMBER_BITS
from headrace.learner.kernels.row_values import parameters_of, read_vector, read_weight
from headrace.learner.spec.architecture import CHOICE, MODEL, MODULE
from headrace.learner.spec.calibration_spec import PLATT
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.intrinsics.row_view import row_of
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.runtime.kernels.numba_kernels import kernel

if TYPE_CHECKING:
    from headrace.learner.local.in_memory_model import InMemoryModel
    from headrace.learner.local.onnx_graph import GraphInputs, LearnedRows


Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.uint64]

FORMAT = 1
"""Version of the metadata. A reader refuses a greater one."""
SUPPORTED = tuple(name for name in MODEL.kinds if name != MODULE)
_MOST_BYTES = (1 << 31) - (1 << 20)
"""One protobuf message, which an ONNX file is, has at most 2 GiB."""


class Exported(NamedTuple):
    """The result of an export."""

    rows: int
    """In the file, those of layers aside."""
    size_bytes: int
    opset: int
    as_of_ms: int
    """Time of the newest example that the model has learned."""


_KEYS = {
    Transform.CROSS: ("of",),
    Transform.LOG_BUCKET: ("source", "per_doubling"),
    Transform.NUMBER: ("source", "log1p"),
    Transform.HOUR: ("source", "utc_offset_h"),
    Transform.PERIOD: ("source", "period_s", "offset_s"),
}
"""Keys of a field that a device needs, beside its name, number and transform."""


def export_onnx(model: InMemoryModel, path: Path | str, snapshot: str = "") -> Exported:
    """Write the model to a file or URL; return what was written.

    snapshot: the name that the file gives as its origin. Raises NotExportable for a model that the
    format cannot hold, MissingOnnx without the package onnx.
    """
    spec = model.spec
    _check(spec)
    try:
        from onnx import checker, helper

        from headrace.learner.local.onnx_graph import OPSET, OnnxGraph
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise MissingOnnx from error
    found = model.rows
    as_of_s = int(found.last_seen.max(initial=0))
    rows = _table(spec, found, as_of_s)
    layers = model.layers_at(as_of_s)
    _check_size(spec, rows, layers)
    graph = OnnxGraph(spec.structure, rows, _inputs_of(model, found, as_of_s), layers)
    exported = helper.make_model(
        graph.build(spec.name),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=9,
        producer_name="headrace",
    )
    facts = {
        "format": FORMAT,
        "model": spec.name,
        "snapshot": snapshot,
        "as_of_ms": 1000 * as_of_s,
        "ids": [_facts(each) for each in spec.fields.singles],
        "numbers": [_facts(each) for each in spec.fields.numbers],
        "items": [_facts(each) for each in spec.fields.bags],
        "spec": spec.text,
    }
    helper.set_model_props(exported, {"headrace": json.dumps(facts)})
    checker.check_model(exported)
    blob = exported.SerializeToString()
    with fsspec.open(str(path), "wb") as opened:
        opened.write(blob)
    return Exported(rows.ids.shape[0] - 1, len(blob), OPSET, 1000 * as_of_s)


def _check(spec: ModelSpec) -> None:
    if spec.architecture not in SUPPORTED:
        wanted = f"an architecture whose graph is known ({', '.join(SUPPORTED)})"
        raise NotExportable(spec.name, wanted, spec.architecture)
    if spec.statistics:
        names = ", ".join(each.name for each in spec.statistics)
        raise NotExportable(spec.name, "no [statistics.*], whose counters a device lacks", names)
    if spec.histories:
        wanted = "no field of transform history, whose rows change with every click"
        raise NotExportable(spec.name, wanted, ", ".join(spec.histories))
    pooled = [each.name for each in spec.fields.bags if each.weighted or each.last]
    if pooled:
        wanted = "bags without pooling, decay, last and learned_weights, which the graph lacks"
        raise NotExportable(spec.name, wanted, ", ".join(pooled))
    if spec.structure.loss == CHOICE:
        wanted = 'loss = "logistic", since the graph scores each row by itself'
        raise NotExportable(spec.name, wanted, f'"{CHOICE}"')
    if spec.calibration is not None and spec.calibration.kind != PLATT:
        wanted = 'a [calibration] of kind "platt", or none'
        raise NotExportable(spec.name, wanted, spec.calibration.kind)


def _check_size(spec: ModelSpec, rows: LearnedRows, layers: Mapping[str, Floats]) -> None:
    needed = rows.ids.nbytes + rows.weights.nbytes + rows.vectors.nbytes
    needed += sum(each.nbytes for each in layers.values())
    if needed > _MOST_BYTES:
        raise NotExportable(
            spec.name,
            "at most 2 GiB of rows in one ONNX file (an [expiry] leaves fewer)",
            f"{needed / (1 << 30):.1f} GiB",
        )


def _facts(field: Field) -> dict[str, object]:
    """Return what a device needs to make the input of a field."""
    keys = ("name", "number", "transform", *_KEYS.get(field.transform, ("source",)))
    return {key: getattr(field, key) for key in keys}


def _values_of(
    spec: ModelSpec, values: Floats, last_seen: npt.NDArray[np.uint32], ids: Ids, as_of_s: int
) -> tuple[Floats, Floats]:
    """Return the weights, (n,), and vectors, (n, d), of rows; zeros are a row that is missing."""
    weights = np.zeros(ids.shape[0], np.float32)
    vectors = np.zeros((ids.shape[0], spec.structure.dimensions), np.float32)
    _read(values, last_seen, parameters_of(spec), np.uint32(as_of_s), ids, weights, vectors)
    return weights, vectors


@kernel
def _read(values, last_seen, parameters, now_s, ids, weights, vectors):  # type: ignore[no-untyped-def]
    """Write weights and vectors of rows, decayed to a second."""
    for i in range(ids.shape[0]):
        shrink = shrink_of(parameters.weights, last_seen[i], now_s)
        weights[i] = read_weight(values, parameters, i, shrink)
        if vectors.shape[1]:
            shrink = shrink_of(parameters.vectors, last_seen[i], now_s)
            read_vector(values, parameters, i, ids[i], shrink, row_of(vectors, i))


def _table(spec: ModelSpec, found: FoldedRows, as_of_s: int) -> LearnedRows:
    """Return the rows that ids name, behind a row 0 of zeros for the ids that are missing."""
    from headrace.learner.local.onnx_graph import LearnedRows

    fields, numbers = spec.fields, (found.ids & NUMBER_BITS).astype(np.int64)
    kept = np.isin(numbers, [each.number for each in (*fields.singles, *fields.bags)])
    # to admission, a row that was never counted is missing: the rare row is read in its place
    kept &= ~gate_of(spec.admission, fields, 1).guarded[numbers] | (found.last_seen > 0)
    rows = found.chosen(np.flatnonzero(kept))
    rows = rows.chosen(np.argsort(rows.ids.view(np.int64)))
    weights, vectors = _values_of(spec, rows.values, rows.last_seen, rows.ids, as_of_s)
    return LearnedRows(
        np.concatenate(([np.iinfo(np.int64).min], rows.ids.view(np.int64))),
        np.concatenate((np.zeros(1, np.float32), weights)),
        np.concatenate((np.zeros((1, vectors.shape[1]), np.float32), vectors)),
    )


def _inputs_of(model: InMemoryModel, found: FoldedRows, as_of_s: int) -> GraphInputs:
    from headrace.learner.local.onnx_graph import GraphInputs

    spec, fields = model.spec, model.spec.fields
    gate = gate_of(spec.admission, fields, model.buckets)
    parameters = parameters_of(spec)
    ids = np.concatenate((np.array([INTERCEPT], np.uint64), fields.number_ids))
    weights, vectors = _values_of(spec, *_rows_at(found, ids), ids, as_of_s)
    guarded = [each.number for each in (*fields.singles, *fields.bags)]
    platt = None
    if spec.calibration is not None:
        a, b = _rows_at(found, PlattScaling.ids)[0][:, 0].tolist()
        platt = (a, b)
    return GraphInputs(
        len(fields.singles),
        len(fields.bags),
        weights[1:],
        vectors[1:],
        float(weights[0]) + parameters.offset,
        gate.guarded[guarded],
        int(gate.high),
        int(parameters.seed),
        parameters.bound,
        platt,
        *_places_of(spec),
    )


def _places_of(spec: ModelSpec) -> tuple[int, int]:
    """Return the places of the history among the bags and of its target among the vectors."""
    fields, structure = spec.fields, spec.structure
    if not structure.history:
        return -1, -1
    bags, singles = ([each.name for each in some] for some in (fields.bags, fields.singles))
    return bags.index(structure.history), singles.index(structure.target)


def _rows_at(found: FoldedRows, ids: Ids) -> tuple[Floats, npt.NDArray[np.uint32]]:
    """Return the values and times of rows, zeros where one is missing."""
    values = np.zeros((ids.shape[0], found.values.shape[1]), np.float32)
    last_seen = np.zeros(ids.shape[0], np.uint32)
    for k, row_id in enumerate(ids):
        for place in np.flatnonzero(found.ids == row_id):
            values[k], last_seen[k] = found.values[place], found.last_seen[place]
    return values, last_seen
