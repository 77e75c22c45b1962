"""Explains scores: what each field contributes to the log-odds.

The log-odds of a logistic regression are a sum over inputs, and those of a factorization machine a
sum over inputs and over pairs of inputs. So the contribution of a field, and of a pair of fields,
is exact: the parts sum to the log-odds of the score. A calibration is a part of its own.

A network has no such sum. Its explanation leaves one field out at a time: a part is the change of
the log-odds if the field were absent (Robnik-Sikonja and Kononenko, "Explaining Classifications for
Individual Instances", IEEE TKDE 20(5), 2008). A cross is a field of its own, and statistics follow
the fields whose rows they read. These parts do not sum to the score: two fields that carry the same
information hide each other. Refused: integrated gradients (Sundararajan et al., ICML 2017). Their
path leads from a baseline to the input through values between two ids, which no row has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.features.encoder import Encoded
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.features.hashing import ABSENT
from headrace.learner.kernels.row_ids import NUMBER_BITS
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.rows.table import RowTable

Numbers = npt.NDArray[np.float64]

INTERCEPT_PART, CALIBRATION_PART = "intercept", "calibration"
EXACT, LEAVE_ONE_OUT = "exact", "leave-one-out"


Tables = Callable[[Encoded, npt.NDArray[np.int64]], RowTable]
"""Returns the rows that features need at these times."""


class Explanations(NamedTuple):
    """The parts of the log-odds of n scores."""

    method: str
    """`exact`: the parts and pairs sum to the log-odds; `leave-one-out`: they need not."""
    log_odds: Numbers  # (n,) of the score
    names: list[str]
    """Of the parts: fields and statistics of the spec, `intercept`, `calibration`."""
    parts: Numbers  # (n, names)
    pairs: list[tuple[str, str]]
    pair_parts: Numbers  # (n, pairs)

    def within(self, scores: Numbers) -> Explanations:
        """Return the explanations as those of scores in a request with further candidates.

        scores: (n,) with these candidates. The part `calibration` takes the difference.
        """
        parts, log_odds = self.parts, log_odds_of(scores)
        if CALIBRATION_PART in self.names:
            parts = np.array(parts)
            parts[:, self.names.index(CALIBRATION_PART)] += log_odds - self.log_odds
        return self._replace(log_odds=log_odds, parts=parts)


class PartNames(NamedTuple):
    """The parts of an exact explanation."""

    names: list[str]
    of_number: npt.NDArray[np.int64]  # (1024,) part by the number of a field or statistic


def part_names(spec: ModelSpec) -> PartNames:
    """Return the parts of a model's log-odds: intercept, fields and statistics."""
    fields = spec.fields
    numbers = {
        **{each.name: each.number for each in fields.singles},
        **{each.name: each.number for each in fields.numbers},
        **{each.name: each.number for each in fields.bags},
        **{each.name: each.number for each in spec.statistics},
    }
    of_number = np.zeros(int(NUMBER_BITS) + 1, np.int64)
    for part, number in enumerate(numbers.values(), start=1):
        of_number[number] = part
    return PartNames([INTERCEPT_PART, *numbers], of_number)


def exact(names: PartNames, parts: Numbers, pairs: Numbers, calibration: Numbers) -> Explanations:
    """Return the explanations of a model whose log-odds are a sum.

    parts: (n, names); pairs: (n, names, names), the upper triangle, or (n, 0, 0);
    calibration: (n,) what it adds to the log-odds; (0,) without one.
    """
    total = parts.sum(axis=1) + pairs.sum(axis=(1, 2))
    first, second = np.nonzero(np.any(pairs != 0.0, axis=0))
    kept = list(names.names)
    if calibration.shape[0]:
        kept.append(CALIBRATION_PART)
        parts = np.column_stack((parts, calibration))
        total = total + calibration
    return Explanations(
        EXACT,
        total,
        kept,
        parts,
        [(names.names[a], names.names[b]) for a, b in zip(first, second, strict=True)],
        pairs[:, first, second],
    )


def leave_one_out(
    predict: Callable[[RowTable, Encoded, npt.NDArray[np.int64]], Numbers],
    fields: FieldSet,
    tables: Tables,
    features: Encoded,
    event_ms: npt.NDArray[np.int64],
) -> Explanations:
    """Return the explanations of any model, from its scores with and without each field."""
    whole = log_odds_of(predict(tables(features, event_ms), features, event_ms))
    names, parts = [], []
    for name, fewer in _without_each(fields, features):
        names.append(name)
        parts.append(whole - log_odds_of(predict(tables(fewer, event_ms), fewer, event_ms)))
    none = np.zeros((len(features), 0))
    columns = np.column_stack(parts) if parts else none
    return Explanations(LEAVE_ONE_OUT, whole, names, columns, [], none)


def log_odds_of(probabilities: Numbers) -> Numbers:
    """Return the log-odds of probabilities."""
    odds: Numbers = np.log(probabilities) - np.log1p(-probabilities)
    return odds


def _without_each(fields: FieldSet, features: Encoded) -> Iterator[tuple[str, Encoded]]:
    """Yield each field's name, and the features as if it were absent."""
    for column, field in enumerate(fields.singles):
        ids = np.array(features.ids)
        ids[:, column] = (ABSENT & ~np.uint64(NUMBER_BITS)) | np.uint64(field.number)
        yield field.name, replace(features, ids=ids)
    for column, field in enumerate(fields.numbers):
        numbers = np.array(features.numbers)
        numbers[:, column] = 0.0
        yield field.name, replace(features, numbers=numbers)
    lengths = np.diff(features.bag_offsets)
    for column, field in enumerate(fields.bags):
        bag = np.arange(lengths.shape[0]) % len(fields.bags)
        kept = np.repeat(bag != column, lengths)
        ends = np.cumsum(np.where(bag == column, 0, lengths))
        offsets = np.concatenate(([0], ends)).astype(features.bag_offsets.dtype)
        yield field.name, replace(features, bag_ids=features.bag_ids[kept], bag_offsets=offsets)
