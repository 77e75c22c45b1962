"""Which rows a forward pass reads: for who does not hold all rows, and has to get them first.

In two steps, since the ids of statistics depend on the counters of other rows: what the features
name (with the rare rows that may stand for them), and, when those are here, what their levels name.
The rest is read by every example alike: the intercept, the weights of plain numbers, layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.ingest.runtime import kernel, read_only
from headrace.learner.inputs.example_inputs import INTERCEPT, find_asked
from headrace.learner.kernels import rare_id

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.ingest.features import Encoded
    from headrace.learner.inputs.preparation import InputPreparation, RowPuller
    from headrace.pserver.rows import RowTable

    Ids = npt.NDArray[np.uint64]


@kernel
def _list_statistics(columns, program, gate, features, event_ms, scratch, ids):  # type: ignore[no-untyped-def]
    statistics = program.numbers.shape[0]
    for i in range(features.ids.shape[0]):
        count, _ = find_asked(columns, program, gate, features, event_ms[i], i, scratch)
        for k in range(statistics):
            ids[i, k] = scratch.ids[0, count - statistics + k]


@kernel
def _list_rare(guarded, high, ids, rare):  # type: ignore[no-untyped-def]
    """Write the rare rows of the guarded ids among these; return how many."""
    count = 0
    for k in range(ids.shape[0]):
        if guarded[ids[k] & np.uint64(1023)]:
            rare[count] = rare_id(ids[k], high)
            count += 1
    return count


class RequiredRows:
    """Which rows the forward pass of a model reads."""

    def __init__(self, inputs: InputPreparation, layers: Ids) -> None:
        """layers: (n,) ids of what is read of whatever example, beside the inputs' own."""
        self._inputs = inputs
        self.always: Ids = np.unique(
            np.concatenate([np.array([INTERCEPT], np.uint64), inputs.number_ids, layers])
        )
        """(n,) What is read of whatever example."""

    @property
    def statistics(self) -> bool:
        """Whether there are any whose ids depend on other rows."""
        return self._inputs.statistics > 0

    @property
    def rare(self) -> bool:
        """Whether rare rows may stand for what features name."""
        return self._inputs.gate.on

    def pull_with(self, pulling: RowPuller) -> None:
        """From now on, learn only what statistics' rows are here of, and get them if they are not.

        To be called before anything is learned.
        """
        self._inputs.pulling = pulling

    def of_features(self, features: Encoded) -> Ids:
        """Return the ids that features name, each once; shape (n,)."""
        ids = np.unique(np.concatenate([features.ids.reshape(-1), features.bag_ids]))
        gate = self._inputs.gate
        if not gate.on:
            return ids
        rare = np.empty_like(ids)
        count = _list_rare(gate.guarded, gate.high, ids, rare)
        return np.unique(np.concatenate([ids, rare[:count]]))

    def of_statistics(
        self, view: RowTable, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> Ids:
        """Return the ids of the statistics of n impressions shown at `event_ms`, each once.

        view: has the rows of `of_features`, as far as they exist.
        """
        inputs = self._inputs
        ids = np.empty((len(features), inputs.statistics), np.uint64)
        if ids.shape[1]:
            _list_statistics(
                view.columns,
                inputs.program,
                inputs.gate,
                inputs.features(features),
                read_only(event_ms, np.int64),
                inputs.scratch(features, 1),
                ids,
            )
        return np.unique(ids)
