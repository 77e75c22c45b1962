"""Prepares the arguments of kernels: inputs, memory of statistics, admission gate, working arrays.

A model has one `InputPreparation`. It knows the inputs that the spec declares, and keeps what is
remembered of impressions (learner.inputs.statistics) and of ids without a row
(learner.inputs.admission). It passes kernels arguments of one type each, so that they are compiled
once for all callers.
"""

import threading
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.encoder import Encoded
from headrace.ingest.features.hashing import hash_strings
from headrace.learner.inputs.admission import AdmissionCounts, counting, gate_of
from headrace.learner.inputs.bag_weights import BagWeights
from headrace.learner.inputs.click_histories import ClickHistories
from headrace.learner.inputs.example_inputs import FeatureColumns, InputScratch, LabelledColumns
from headrace.learner.inputs.slates import slate_ends
from headrace.learner.inputs.statistics import empty_memory, with_room
from headrace.learner.kernels.pending_deltas import PendingColumns
from headrace.learner.spec.admission_and_expiry import COUNT, PROBABILITY
from headrace.learner.spec.architecture import CHOICE
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.rows.table import RowTable
from headrace.runtime.kernels.numba_kernels import read_only


class RowPuller(Protocol):
    """Fetches rows that a batch turns out to need while it is learned."""

    @property
    def gaining(self) -> PendingColumns:
        """The columns of what is pending, which may be new arrays after every pull."""

    def pull_statistics(self, ids: npt.NDArray[np.uint64], examples: Examples, begin: int) -> None:
        """Fetch these rows, of the statistics of example `begin`, and those that the next may need.

        Raises NotPulled.
        """


class InputPreparation:
    """The inputs of a spec, as kernels take them. One thread learns; any number may predict."""

    def __init__(self, spec: ModelSpec, buckets: int = 0) -> None:
        """`buckets`: of the store; required if the spec has an admission.

        Raises ValueError if it is missing then.
        """
        if spec.admission is not None and not buckets:
            raise ValueError(
                f'model "{spec.name}": expected the number of its buckets, because rare '
                "rows are in the buckets of the ids they replace (the spec has an admission), got 0"
            )
        self.program = spec.program
        self.window_ms = spec.fields.label.window_ms
        self.bag_count = len(spec.fields.bags)
        self._bag_weights = BagWeights(spec.fields.bags)
        self.histories = ClickHistories(spec.fields)
        self.fixed_count = 1 + len(spec.fields.singles) + len(spec.fields.numbers)
        """Inputs that every example has, statistics aside."""
        self.number_ids = read_only(spec.fields.number_ids, np.uint64)
        """(numbers,) of the rows that plain numbers are weighed with."""
        self._levels = self.program.kinds.shape[0]
        self.memory = empty_memory(self._levels)
        self._admission, self._buckets = spec.admission, buckets
        self._chosen = spec.structure.loss == CHOICE
        self._weighed = not (self._chosen or spec.fields.label.wait_ms)
        self._calibrates = spec.calibration is not None
        self._own = threading.local()
        self.pulling: RowPuller | None = None
        """Fetches the rows of statistics while a learner that holds only some rows learns."""
        self.gate = gate_of(spec.admission, spec.fields, buckets)

    @property
    def admissions(self) -> AdmissionCounts:
        """Counts of admission decisions so far."""
        return AdmissionCounts(*self.gate.tally.tolist())

    @property
    def statistic_count(self) -> int:
        """Inputs that are statistics of rows."""
        return int(self.program.numbers.shape[0])

    def rows_needed(self, examples: Examples) -> int:
        """Return an upper bound of the rows that the inputs of these examples add."""
        common = 1 + self.number_ids.shape[0]  # the same rows in every example
        each = self.fixed_count - common + self.statistic_count
        items = int(examples.features.bag_ids.shape[0])
        items += self.histories.rows_needed(len(examples))
        return int(common + len(examples) * each + items)

    def begin(self, active: npt.NDArray[np.bool_], examples: Examples) -> LabelledColumns:
        """Make room for what will be remembered of these examples; return what they say."""
        self._open_gate(active)
        followed = bool((examples.kinds != Kind.CLOSED).any())
        remembers = self._levels > 0 and followed
        if remembers:
            shown = int(np.count_nonzero(examples.kinds == Kind.SHOWN))
            self.memory = with_room(self.memory, shown)
        draws = self._admission is not None and self._admission.kind == PROBABILITY
        impressions = np.zeros(0, np.uint64)
        if remembers or draws or (self._calibrates and followed):
            impressions = hash_strings(examples.impression_ids)
        return LabelledColumns(
            read_only(examples.kinds, np.uint8),
            read_only(examples.labels, np.uint8),
            read_only(examples.event_ms, np.int64),
            read_only(examples.shown_ms, np.int64),
            read_only(impressions, np.uint64),
            read_only(np.zeros(0) if examples.weights is None else examples.weights, np.float32),
            read_only(slate_ends(examples), np.int64),
            self._chosen,
            self._weighed,
        )

    def with_histories(
        self,
        view: RowTable,
        gaining: PendingColumns,
        active: npt.NDArray[np.bool_],
        examples: Examples,
        labelled: LabelledColumns,
    ) -> Examples:
        """Return the examples with their histories; write their clicks to the rows."""
        if not self.histories.on:
            return examples
        features = self.features(examples.features)
        return self.histories.learned(view, gaining, active, examples, features, labelled)

    def filled(self, view: RowTable, features: Encoded, event_ms: npt.NDArray[np.int64]) -> Encoded:
        """Return the features with the histories of n impressions shown at `event_ms`."""
        if not self.histories.on:
            return features
        return self.histories.filled(view, features, self.features(features), event_ms)

    def features(self, encoded: Encoded) -> FeatureColumns:
        """Return the features as kernels take them."""
        return FeatureColumns(
            read_only(encoded.ids, np.uint64),
            read_only(encoded.bag_ids, np.uint64),
            read_only(encoded.bag_offsets, np.int32),
            read_only(encoded.numbers, np.float32),
            self.number_ids,
            read_only(self._bag_weights(encoded), np.float32),
        )

    def scratch(self, encoded: Encoded, block: int) -> InputScratch:
        """Return working memory for blocks of these features, this thread's until its next call."""
        inputs = self.most_inputs(encoded)
        kept: InputScratch | None = getattr(self._own, "scratch", None)
        if kept is None or kept.ids.shape[0] < block or kept.ids.shape[1] < inputs:
            kept = self._own.scratch = self._scratch(inputs, block)
        return kept

    def lacking(self, scratch: InputScratch) -> npt.NDArray[np.uint64]:
        """Return a copy of the statistic ids of the example at which the kernel stopped."""
        row = int(scratch.stopped[0])
        fixed = scratch.counts[row]
        return scratch.ids[row, fixed : fixed + self.statistic_count].copy()

    def _scratch(self, inputs: int, block: int) -> InputScratch:
        return InputScratch(
            np.empty((block, inputs), np.uint64),
            np.empty((block, inputs), np.int64),
            np.empty((block, inputs), np.bool_),
            np.empty((block, inputs), np.float32),
            np.empty(inputs, np.int64),
            np.empty(inputs, np.int64),
            np.empty(inputs, np.float32),
            np.empty(inputs, np.float32),
            np.empty(inputs, np.float32),
            np.empty(inputs, np.float32),
            np.zeros(inputs, np.float32),
            np.empty((4, inputs), np.float32),
            np.empty(self._levels, np.int16),
            np.empty(block, np.int64),
            np.empty(block, np.int64),
            np.empty(1, np.int64),
            np.ones(1, np.bool_),
        )

    def most_inputs(self, encoded: Encoded) -> int:
        """Return how many inputs the longest of these examples has."""
        longest = 0
        if self.bag_count and len(encoded):
            ends = encoded.bag_offsets[:: self.bag_count]
            longest = int(np.diff(ends).max())
        return self.fixed_count + longest + self.statistic_count

    def _open_gate(self, active: npt.NDArray[np.bool_]) -> None:
        if self._admission is None:
            return
        if active.shape[0] != self._buckets:
            raise ValueError(f"expected {self._buckets} buckets, found {active.shape[0]}")
        if self._admission.kind == COUNT and not self.gate.filter.counters.shape[0]:
            # a model that only predicts never needs the memory
            self.gate = counting(self.gate, self._admission)
