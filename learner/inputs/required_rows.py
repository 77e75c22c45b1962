"""The rows that a forward pass reads, for callers that must fetch rows first.

It takes two steps, because the ids of statistics depend on the counters of other rows: first the
rows that the features name (with the rare rows that may replace them), then, when these are here,
the rows that their levels name. Every example also reads the intercept, the weights of plain
numbers, and the layers.
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
    """The rows that the forward pass of a model reads."""

    def __init__(self, inputs: InputPreparation, layers: Ids) -> None:
        """layers: (n,) ids of the rows that every example reads, besides those of the inputs."""
        self._inputs = inputs
        self.always: Ids = np.unique(
            np.concatenate([np.array([INTERCEPT], np.uint64), inputs.number_ids, layers])
        )
        """(n,) ids of the rows that every example reads."""

    @property
    def statistics(self) -> bool:
        """Whether the model has statistics, whose ids depend on other rows."""
        return self._inputs.statistics > 0

    @property
    def rare(self) -> bool:
        """Whether rare rows may replace rows that features name."""
        return self._inputs.gate.on

    def pull_with(self, pulling: RowPuller) -> None:
        """Fetch missing rows of statistics with `pulling` from now on, before they are learned.

        Call it before anything is learned.
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
