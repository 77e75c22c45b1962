"""Orders the examples of a log in memory as a joiner writes them, and learns them progressively.

A search learns the same impressions by many specs. So their order, times and labels are made once,
and each column is hashed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.ingest.events.contract import TIME
from headrace.ingest.examples.batch import Examples, Kind, reordered
from headrace.ingest.examples.splitting import part_of
from headrace.ingest.features.arrow_columns import ArrowColumns
from headrace.ingest.features.encoder import Encoded, Encoder
from headrace.learner.inputs.slates import cut_between_slates, slate_ends
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.spec.model_spec import ModelSpec
from headrace.learner.suggestion.log_sample import LogSample
from headrace.learner.validation.progressive import log_losses

Ids = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_BATCH = 4096


class Clicks(NamedTuple):
    """The outcomes of n impressions."""

    shown_ms: Ints  # (n,)
    click_ms: Ints  # (n,) -1 without a click


def unlabelled(
    spec: ModelSpec,
    features: Encoded,
    shown_ms: Ints,
    impression_ids: pa.StringArray,
    request_ids: pa.StringArray,
) -> Examples:
    """Return impressions, each an example without a label."""
    return Examples(
        fingerprint=spec.fields.fingerprint,
        watermark_ms=0,
        kinds=np.full(len(features), Kind.CLOSED, np.uint8),
        labels=np.zeros(len(features), np.uint8),
        event_ms=shown_ms,
        shown_ms=shown_ms,
        append_ms=shown_ms,
        impression_ids=impression_ids,
        request_ids=request_ids,
        features=features,
        slices={},
    )


def joined(spec: ModelSpec, shown: Examples, clicks: Clicks) -> tuple[Examples, Ints]:
    """Return the examples of impressions in the order in which a joiner writes them.

    With them, which impression each example is of.
    """
    label, count = spec.fields.label, len(shown)
    late_ms = clicks.click_ms - clicks.shown_ms
    clicked = (clicks.click_ms >= 0) & (late_ms <= label.window_ms)
    if label.policy == "window":
        order = np.argsort(clicks.shown_ms, kind="stable")
        times = clicks.shown_ms[order]
        examples = replace(
            reordered(shown, order),
            labels=clicked[order].astype(np.uint8),
            event_ms=times,
            shown_ms=times,
            append_ms=times + label.window_ms,
        )
        return examples, order
    at_once = clicked & (late_ms <= label.wait_ms) & (label.wait_ms > 0)
    which = np.flatnonzero(clicked & ~at_once)
    both = np.concatenate((np.arange(count), which))
    times = np.concatenate((clicks.shown_ms + label.wait_ms, clicks.click_ms[which]))
    first = np.where(at_once, Kind.CLOSED, Kind.SHOWN).astype(np.uint8)
    kinds = np.concatenate((first, np.full(which.size, Kind.CLICKED, np.uint8)))
    # an impression is taken before a click of the same time, and a wait ends after it
    later = (kinds == Kind.CLICKED) != (label.wait_ms > 0)
    order = np.lexsort((later, times))
    examples = replace(
        reordered(shown, both[order]),
        kinds=kinds[order],
        labels=(kinds[order] != Kind.SHOWN).astype(np.uint8),
        event_ms=times[order],
        shown_ms=clicks.shown_ms[both[order]],
        append_ms=times[order],
    )
    return examples, both[order]


class SampleStream:
    """The examples of a sample, for any fields."""

    def __init__(self, sample: LogSample, spec: ModelSpec) -> None:
        """spec: has the label policy of all specs that learn the stream."""
        numbers = pa.array(np.arange(sample.rows)).cast(pa.string())
        requests = pa.array(sample.requests, mask=sample.requests < 0).cast(pa.string())
        nothing = Encoded(
            np.zeros((sample.rows, 0), np.uint64),
            np.zeros(0, np.uint64),
            np.zeros(1, np.int32),
            np.zeros((sample.rows, 0), np.float32),
        )
        shown = unlabelled(spec, nothing, sample.times, numbers, requests)
        self._examples, which = joined(spec, shown, Clicks(sample.times, sample.click_ms))
        self._columns = _KnownColumns(
            sample.columns | {TIME: pa.array(sample.times)}, pa.array(which), len(which)
        )
        self._shown = np.flatnonzero(self._examples.kinds != Kind.CLICKED)
        self._labels = sample.labels[which[self._shown]].astype(np.uint8)

    def losses(self, spec: ModelSpec, share: float = 1.0) -> Floats:
        """Return the log losses of `scores`."""
        scores = self.scores(spec, share)
        return log_losses(self._labels[: scores.shape[0]], scores)

    def scores(self, spec: ModelSpec, share: float = 1.0) -> Floats:
        """Return the scores of the first impressions, each made before it was learned.

        share: of the impressions; they are in the order of time.
        """
        shown = self._shown
        count = len(self._examples)
        if share < 1.0:
            count = int(shown[int(share * shown.shape[0])])
        features = Encoder(spec.fields).encode_columns(count, replace(self._columns, count=count))
        examples = replace(part_of(self._examples, 0, count), features=features)
        ends = slate_ends(examples)
        begins = [*cut_between_slates(ends, _BATCH), count]
        model, scores = InMemoryModel(spec), np.empty(count)
        for begin, end in pairwise(begins):
            scores[begin:end] = model.learn(part_of(examples, begin, end))
        return scores[shown[: np.searchsorted(shown, count)]]


@dataclass(frozen=True)
class _KnownColumns:
    """Raw columns of a stream, each hashed once for all specs."""

    columns: Mapping[str, pa.Array]
    which: pa.Array
    """(examples,) the row of each example."""
    count: int
    """Examples that are read."""
    known_hashes: dict[str, Ids] = field(default_factory=dict)
    known_reals: dict[str, Floats] = field(default_factory=dict)
    known_items: dict[str, tuple[Ids, Ints]] = field(default_factory=dict)

    def _of(self, source: str) -> ArrowColumns:
        column = self.columns.get(source)
        known = {} if column is None else {source: column.take(self.which)}
        return ArrowColumns(len(self.which), known)

    def hashes(self, source: str) -> Ids:
        """See `RawColumns`."""
        if source not in self.known_hashes:
            self.known_hashes[source] = self._of(source).hashes(source)
        return self.known_hashes[source][: self.count]

    def reals(self, source: str) -> Floats:
        """See `RawColumns`."""
        if source not in self.known_reals:
            self.known_reals[source] = self._of(source).reals(source)
        return self.known_reals[source][: self.count]

    def items(self, source: str) -> tuple[Ids, Ints]:
        """See `RawColumns`."""
        if source not in self.known_items:
            self.known_items[source] = self._of(source).items(source)
        items, lengths = self.known_items[source]
        lengths = lengths[: self.count]
        return items[: int(lengths.sum())], lengths
