"""Logistic regression on the rows of ids, learned example by example, the model of most CTR teams.

The inputs of an example are the intercept, an id for each single-valued field, a weight times a
number for each plain number, an id for each item of each bag (an item that is there twice is two
inputs), and the statistics of rows. All of them are rows, found by id. `learn` walks a batch in one
compiled kernel: find the rows, take the statistics, add up the weights, note the score, step,
count. Example by example means exactly that: learning a stream in batches of one or of a thousand
gives the same rows, bit for bit.

An id in a bucket that already has the example changes nothing there, but its weight counts in the
sum all the same. The same forward pass answers requests (`predict`), from the rows as they stand.

Where the spec has an admission, an id without a row is learned and read in the rare row of its
field (learner.rare_rows), until it is admitted (learner.admission).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ingest.examples import Kind
from ingest.values import hash_strings
from learner.admission import Admissions, counting, gate_of
from learner.ftrl import constants
from learner.growth import COUNT, PROBABILITY
from learner.logistic_kernels import BLOCK, Features, Labelled, Scratch, learn, predict
from learner.statistics import empty_memory, with_room

if TYPE_CHECKING:
    import numpy.typing as npt

    from ingest.examples import Encoded, Examples
    from learner.pending import Gaining
    from learner.spec import ModelSpec
    from pserver.table import RowTable


class LogisticRegression:
    """The model of a spec. One thread learns; any number may predict from a view of their own."""

    def __init__(self, spec: ModelSpec, buckets: int = 0) -> None:
        """Make the model. Only one with admission has to know how many `buckets` its store has.

        Raises ValueError if it is not told.
        """
        if spec.admission is not None and not buckets:
            raise ValueError(
                f'model "{spec.name}": expected the number of its buckets, since it has an '
                "admission: rare rows lie in the buckets of the ids they stand for; found 0"
            )
        optimizer = spec.optimizer
        self.width = spec.width
        self._ftrl = constants(optimizer.alpha, optimizer.beta, optimizer.l1, optimizer.l2)
        self._program = spec.program
        self._number_ids = _read_only(spec.fields.number_ids, np.uint64)
        self._fixed_inputs = 1 + len(spec.fields.singles) + len(spec.fields.numbers)
        self._bags = len(spec.fields.bags)
        self._window_ms = spec.fields.label.window_ms
        self._levels = self._program.kinds.shape[0]
        self._memory = empty_memory(self._levels)
        self._admission, self._buckets = spec.admission, buckets
        self._gate = gate_of(spec.admission, spec.fields, buckets)

    @property
    def admissions(self) -> Admissions:
        """What was decided of ids without a row so far."""
        return Admissions(*self._gate.tally.tolist())

    def rows_needed(self, examples: Examples) -> int:
        """Return an upper bound of the rows that `learn` adds."""
        each = self._fixed_inputs + int(self._program.numbers.shape[0])
        return len(examples) * each + int(examples.features.bag_ids.shape[0])

    def predict(
        self, view: RowTable, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return the probability of a click of n impressions shown at `event_ms`; shape (n,).

        Statistics are taken from the rows as they stand. Never adds a row.
        """
        inputs = self._features(features)
        scores = np.empty(len(features), np.float64)
        predict(
            view.columns,
            self._ftrl,
            self._program,
            self._gate,
            inputs,
            _read_only(event_ms, np.int64),
            self._scratch(features, 1),
            scores,
        )
        return scores

    def learn(
        self,
        view: RowTable,
        gaining: Gaining,
        active: npt.NDArray[np.bool_],
        examples: Examples,
    ) -> npt.NDArray[np.float64]:
        """Score, then learn, example by example; return the scores, shape (n,), NaN for CLICKED.

        The caller reserved room for `rows_needed` in `view`, and `gaining` has its capacity.
        active: (buckets,) False where the bucket already has these examples: an id there changes
        neither view nor gains.
        """
        self._open_gate(active)
        remembers = self._levels > 0 and bool((examples.kinds != Kind.CLOSED).any())
        if remembers:
            shown = int(np.count_nonzero(examples.kinds == Kind.SHOWN))
            self._memory = with_room(self._memory, shown)
        draws = self._admission is not None and self._admission.kind == PROBABILITY
        impressions = np.zeros(0, np.uint64)
        if remembers or draws:
            impressions = hash_strings(examples.impression_ids)
        labelled = Labelled(
            _read_only(examples.kinds, np.uint8),
            _read_only(examples.labels, np.uint8),
            _read_only(examples.event_ms, np.int64),
            _read_only(examples.shown_ms, np.int64),
            _read_only(impressions, np.uint64),
        )
        scores = np.full(len(examples), np.nan)
        learn(
            view.columns,
            gaining,
            _read_only(active, np.bool_),
            self._ftrl,
            self._program,
            self._memory,
            self._window_ms,
            self._gate,
            self._features(examples.features),
            labelled,
            self._scratch(examples.features, BLOCK),
            scores,
        )
        return scores

    def forget(self) -> None:
        """Drop what is remembered of impressions: their clicks take the rows as they stand then."""
        self._memory = empty_memory(self._levels)

    def _open_gate(self, active: npt.NDArray[np.bool_]) -> None:
        if self._admission is None:
            return
        if active.shape[0] != self._buckets:
            raise ValueError(f"expected {self._buckets} buckets, found {active.shape[0]}")
        if self._admission.kind == COUNT and not self._gate.filter.counters.shape[0]:
            # who only predicts never needs the memory
            self._gate = counting(self._gate, self._admission)

    def _features(self, encoded: Encoded) -> Features:
        return Features(
            _read_only(encoded.ids, np.uint64),
            _read_only(encoded.bag_ids, np.uint64),
            _read_only(encoded.bag_offsets, np.int32),
            _read_only(encoded.numbers, np.float32),
            self._number_ids,
        )

    def _scratch(self, encoded: Encoded, block: int) -> Scratch:
        longest = 0
        if self._bags and len(encoded):
            ends = encoded.bag_offsets[:: self._bags]
            longest = int(np.diff(ends).max())
        inputs = self._fixed_inputs + longest + int(self._program.numbers.shape[0])
        return Scratch(
            np.empty((block, inputs), np.uint64),
            np.empty((block, inputs), np.int64),
            np.empty((block, inputs), np.bool_),
            np.empty((block, inputs), np.float32),
            np.empty(inputs, np.int64),
            np.empty(inputs, np.int64),
            np.empty(inputs, np.float32),
            np.empty(inputs, np.float32),
            np.empty(inputs, np.float32),
            np.empty(self._levels, np.int16),
            np.empty(block, np.int64),
            np.ones(1, np.bool_),
        )


def _read_only(array: npt.NDArray, dtype: type) -> npt.NDArray:
    # one type for every caller, so that kernels are compiled once: what comes from a message is
    # read-only and perhaps unaligned, what a test or a server made is not
    plain = np.require(array, dtype, ["C", "A"]).view()
    plain.flags.writeable = False
    return plain
