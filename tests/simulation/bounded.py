"""Learners with a bound on rows, and admission.

A bounded learner looks up the rows that a batch needs and evicts others
(learner.loop.row_prefetcher). With admission, an id without a row counts in the rare row of its
field and bucket, or gets its own row by a draw. The choice depends on the rows that the learner
sees at that time. So rows are compared as sums of a field and bucket (`projected`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headrace.ingest.features.encoder import Encoded
from headrace.learner.inputs.admission import AdmissionGate, admits, empty_filter, high_bits
from headrace.learner.inputs.preparation import RowPuller
from headrace.learner.kernels.row_ids import rare_id
from headrace.pserver.rows.table import RowTable
from tests.simulation.batches import NOTHING, CountingModel, Total, added
from tests.simulation.ledger import Broken, Row, rows_by_id
from tests.simulation.plan import Plan

if TYPE_CHECKING:
    from headrace.learner.loop.cached_replica import CachedReplica


def projected(rows: Mapping[int, Any], plan: Plan) -> dict[int, Total]:
    """Return the sum of each field and bucket, under its rare id; without admission the rows."""
    if not plan.admitted:
        return dict(rows)
    sums: dict[int, Total] = {}
    high = high_bits(plan.buckets)
    for row_id, total in rows.items():
        rare = int(rare_id(np.uint64(row_id), high))
        sums[rare] = added(sums.get(rare, NOTHING), total)
    return sums


class AdmittingModel(CountingModel):
    """A model that counts ids without a row in the rare row of their field and bucket.

    `bounded`: a row that is not in the view was never looked up; learning it breaks a promise.
    """

    def __init__(self, plan: Plan, *, bounded: bool) -> None:
        super().__init__()
        self._bounded = bounded
        self._gate = AdmissionGate(
            plan.admitted > 0.0,
            np.ones(1024, np.bool_),
            high_bits(plan.buckets),
            0,
            np.uint64(int(plan.admitted * (2**64 - 1))),
            empty_filter(0, 1, 0.5),
            np.zeros(2, np.int64),
        )

    def row_of(
        self, view: RowTable, row_id: np.uint64, impression: str, *, clicked: bool, shown_s: int
    ) -> np.uint64:
        """Return the row in which an input counts."""
        place = int(view.find(np.array([row_id]))[0])
        if self._bounded and place < 0:
            raise Broken(f"row {row_id} is learned and was never looked up")
        if not self._gate.on:
            return row_id
        columns = view.columns
        seen = place >= 0 and int(columns.last_seen[place]) > 0
        if seen and not (clicked and int(columns.first_seen[place]) > shown_s):
            return row_id
        drawn = np.uint64(int.from_bytes(impression.encode()[-8:], "little"))
        if not clicked and not seen and admits(self._gate, row_id, drawn):
            return row_id
        return np.uint64(rare_id(row_id, self._gate.high))


class AskedRows:
    """The rows that the model reads: `RequiredRows` of a model that only has features."""

    always: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
    statistics = False
    histories = False

    def __init__(self, plan: Plan) -> None:
        self.rare = plan.admitted > 0.0
        self._high = high_bits(plan.buckets)

    def pull_with(self, pulling: RowPuller) -> None:
        """See RequiredRows."""

    def of_features(self, features: Encoded, *, learning: bool = False) -> npt.NDArray[np.uint64]:
        """See RequiredRows."""
        ids = np.unique(features.ids)
        return np.union1d(ids, np.array([rare_id(i, self._high) for i in ids], np.uint64))

    def of_statistics(self, *_: object) -> npt.NDArray[np.uint64]:
        """See RequiredRows."""
        return np.zeros(0, np.uint64)


def held_rows(replica: CachedReplica, bucket: int) -> tuple[list[int], dict[int, Row]]:
    """Return which rows of a bucket a bounded learner holds, and those that exist."""
    ids = replica.table.ids
    mine = np.flatnonzero(replica.shape.bucket_of(ids) == bucket)
    return ids[mine].tolist(), rows_by_id(replica.table.take(mine))
