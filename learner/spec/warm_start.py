"""Selects the rows of a model that a larger one can start with: for a spec with more fields.

Ids contain the number of their field and a hash of the value. Rows of fields, statistics and the
intercept therefore keep their meaning in the new model, if every field of the old spec is in the
new one with the same number and transform, and rows have the same layout. New fields and
statistics start without rows, as every field once did.

Layers of a deep model are different: a network over one more field has other matrices. They are
kept if the network is the same. Otherwise they start anew, over the old embeddings. A calibration
layer is kept if it has the same kind and the log-odds continue.

The new model's examples are its own: they have the new fields, so another joiner makes them, and
marks of the old model do not apply to them. `first_after` finds the offsets to continue from.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import DamagedExamples, unpack
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.kafka.protocols import Record, Source
from headrace.learner.spec.architecture import DENSE_NUMBER, FREE_TO_DIFFER, NETWORK_KEYS
from headrace.learner.spec.calibration_spec import CALIBRATION_NUMBER
from headrace.learner.spec.compatibility import difference
from headrace.learner.spec.model_spec import ModelSpec
from headrace.learner.spec.optimizer_spec import DENSE
from headrace.pserver.errors import WrongModel

_NUMBERS = np.uint64(1023)
_FREE_TO_DIFFER = (*FREE_TO_DIFFER, *NETWORK_KEYS)
"""Keys of a structure that change only the meaning of the rows of layers."""


class KeptRows(NamedTuple):
    """The rows that a larger model starts with."""

    layers: bool
    """Whether layers are kept, because the network is the same."""
    calibration: bool
    """Whether the calibration layer is kept: the same kind, and the log-odds continue."""
    new: tuple[str, ...]
    """Fields and statistics that start empty."""

    def rows(self, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return which of these rows are kept; shape (n,)."""
        numbers, kept = ids & _NUMBERS, np.full(ids.shape, True)
        if not self.layers:
            kept &= numbers != DENSE_NUMBER
        if not self.calibration:
            kept &= numbers != CALIBRATION_NUMBER
        return kept


class StartOffsets(NamedTuple):
    """The offsets of examples at which a larger model starts."""

    offsets: dict[Source, int]
    waiting: tuple[Source, ...]
    """Partitions without examples after the time: the model starts at their end."""


def check_larger(larger: ModelSpec, original: ModelSpec, where: str) -> KeptRows:
    """Return which rows of `original` the model `larger` can start with.

    `where` names the source of the original's spec. Raises WrongModel listing every difference
    that is not allowed.
    """
    problems = [
        f"[model] {key}: expected {before!r}, found {now!r}"
        for key, before, now in _structures(larger, original)
        if before != now
    ]
    if larger.width != original.width:
        problems.append(
            f"rows: expected {original.width} floats, as {where} has, found {larger.width}"
        )
    if larger.optimizers != original.optimizers:
        now, before = larger.optimizers.agreed(), original.optimizers.agreed()
        problems.append(f"[optimizer]: expected {before}, found {now}")
    if larger.fields.label != original.fields.label:
        problems.append(f"[label]: expected {original.fields.label}, found {larger.fields.label}")
    problems += _lacking("fields", _fields(larger), _fields(original))
    problems += _lacking("statistics", _statistics(larger), _statistics(original))
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise WrongModel(
            f'expected "{larger.name}" to declare the same as "{original.name}", except for '
            f"additional fields and statistics, found:\n{listed}\n"
            f"{difference(original.text, larger.text, where)}"
        )
    new = [
        *(name for name in _fields(larger) if name not in _fields(original)),
        *(each.name for each in larger.statistics if each not in original.statistics),
    ]
    same = not new and all(
        getattr(larger.structure, key) == getattr(original.structure, key) for key in NETWORK_KEYS
    )
    goes_on = same or DENSE not in original.structure.groups
    return KeptRows(same, goes_on and larger.calibration == original.calibration, tuple(new))


def first_after(records: Iterable[Record], fields: FieldSet, at_ms: int) -> StartOffsets:
    """Return the first batch of each partition with an example appended after that time.

    records: all records of a topic of examples. The granularity is a batch: of a batch with
    examples from before and after, all are learned. Raises UnreadableExamples.
    """
    offsets: dict[Source, int] = {}
    waiting: set[Source] = set()
    for record in records:
        if record.source in offsets and record.source not in waiting:
            continue
        try:
            examples = unpack(record.value, fields)
        except DamagedExamples as error:
            raise DamagedExamples(f"{record.place}: {error}") from error
        if int(examples.append_ms.max(initial=0)) > at_ms:
            offsets[record.source] = record.offset
            waiting.discard(record.source)
        else:
            offsets[record.source] = record.offset + 1
            waiting.add(record.source)
    return StartOffsets(offsets, tuple(sorted(waiting)))


def _structures(larger: ModelSpec, original: ModelSpec) -> list[tuple[str, object, object]]:
    before, now = original.structure.agreed(), larger.structure.agreed()
    keys = [key for key in (*before, *now) if key not in _FREE_TO_DIFFER]
    pairs = [("architecture", original.architecture, larger.architecture)]
    return [*pairs, *((key, before.get(key), now.get(key)) for key in dict.fromkeys(keys))]


def _fields(spec: ModelSpec) -> dict[str, object]:
    fields = spec.fields
    return {each.name: each for each in (*fields.singles, *fields.bags, *fields.numbers)}


def _statistics(spec: ModelSpec) -> dict[str, object]:
    return {each.name: each for each in spec.statistics}


def _lacking(section: str, larger: dict[str, object], original: dict[str, object]) -> list[str]:
    return [
        f"[{section}.{name}]: expected {each}, found {larger.get(name, 'nothing')}"
        for name, each in original.items()
        if larger.get(name) != each
    ]
