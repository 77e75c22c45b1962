"""Joins scores with outcomes: what each impression was given, and whether it was clicked.

A learner that was killed scores some impressions a second time when it returns, having seen more
by then. So the first score of an impression counts, and a kill cannot flatter the accuracy or bend
it otherwise. Impressions are joined as whole columns, by Arrow's hash tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.examples.batch import Examples, Kind
from headrace.learner.validation.breakdown import ScoredImpressions

if TYPE_CHECKING:
    from headrace.learner.loop.scores import Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes(ScoredImpressions):
    """Impressions that have a score, in the order they were first shown."""

    impression_ids: pa.Array  # (n,) large_string, unique
    slices: dict[str, pa.Array]  # raw fields that the spec slices by, each (n,)

    def named(self, impression_ids: pa.Array) -> Outcomes:
        """Return those of the impressions named."""
        found = pc.is_in(self.impression_ids, value_set=impression_ids)
        chosen = found.to_numpy(zero_copy_only=False)
        some = self.only(chosen)
        return Outcomes(
            *(some.labels, some.scores, some.event_ms, some.requests, some.weights),
            impression_ids=self.impression_ids.filter(found),
            slices={name: values.filter(found) for name, values in self.slices.items()},
        )


@dataclass(slots=True)
class _Shown:
    ids: list[pa.Array] = field(default_factory=list)
    requests: list[pa.Array] = field(default_factory=list)
    labels: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    event_ms: list[npt.NDArray[np.int64]] = field(default_factory=list)
    weights: list[npt.NDArray[np.float64]] = field(default_factory=list)
    slices: dict[str, list[pa.Array]] = field(default_factory=dict)

    def add(self, batch: Examples) -> None:
        """Take the impressions of a batch, as they were shown."""
        is_first = batch.kinds != Kind.CLICKED
        first = pa.array(is_first)
        self.ids.append(_large(batch.impression_ids.filter(first)))
        self.requests.append(_large(batch.request_ids.filter(first)))
        self.labels.append(batch.labels[is_first])
        self.event_ms.append(batch.shown_ms[is_first])
        if batch.weights is not None:
            self.weights.append(batch.weights[is_first].astype(np.float64))
        for name, values in batch.slices.items():
            self.slices.setdefault(name, []).append(_large(values.filter(first)))


def join_outcomes(examples: Iterable[Examples], scores: Iterable[Scores]) -> Outcomes:
    """Return every impression of `examples` that has a score, with its label.

    Batches in the order of their partition; partitions in any order, since an impression's
    examples and scores are all in one.
    """
    shown, clicked = _Shown(), []
    for batch in examples:
        is_click = batch.kinds == Kind.CLICKED
        clicked.append(_large(batch.impression_ids.filter(pa.array(is_click))))
        shown.add(batch)
    scored_ids, scored = [], []
    for given in scores:
        scored_ids.append(_large(given.impression_ids))
        scored.append(given.scores)
    return _join(shown, _joined(clicked), _joined(scored_ids), _numbers(scored, np.float64))


def _join(
    shown: _Shown, clicked: pa.Array, scored_ids: pa.Array, scored: npt.NDArray[np.float64]
) -> Outcomes:
    ids = _joined(shown.ids)
    once = _first_places(ids)
    ids = ids.take(once)
    labels = _numbers(shown.labels, np.uint8)[once]
    labels |= pc.is_in(ids, value_set=clicked).to_numpy(zero_copy_only=False).astype(np.uint8)
    first_scores = _first_places(scored_ids)
    place = pc.index_in(ids, value_set=scored_ids.take(first_scores))
    found = place.is_valid().to_numpy(zero_copy_only=False)
    place = place.fill_null(0).to_numpy()[found]
    kept = pa.array(found)
    return Outcomes(
        labels[found],
        scored[first_scores][place],
        _numbers(shown.event_ms, np.int64)[once][found],
        _request_numbers(_joined(shown.requests).take(once))[found],
        _numbers(shown.weights, np.float64)[once][found] if shown.weights else None,
        impression_ids=ids.filter(kept),
        slices={name: _joined(each).take(once).filter(kept) for name, each in shown.slices.items()},
    )


def _request_numbers(requests: pa.Array) -> npt.NDArray[np.int64]:
    """Number the requests; an impression without one is a request of its own."""
    codes = requests.dictionary_encode().indices
    alone = -1 - np.arange(len(requests), dtype=np.int64)
    known = codes.is_valid().to_numpy(zero_copy_only=False)
    return np.where(known, codes.fill_null(0).to_numpy().astype(np.int64), alone)


def _first_places(ids: pa.Array) -> npt.NDArray[np.int64]:
    codes = ids.dictionary_encode().indices.to_numpy()
    return np.sort(np.unique(codes, return_index=True)[1])


def _large(ids: pa.Array) -> pa.Array:
    # 64-bit offsets: a day's impression ids are more than 2 GiB of text
    return ids.cast(pa.large_string())


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return pa.concat_arrays(arrays) if arrays else pa.array([], pa.large_string())


def _numbers(arrays: list[Any], kind: type) -> npt.NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, kind)
