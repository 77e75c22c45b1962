"""The rows that a forward pass reads, for callers that must fetch rows first.

It takes two steps, because the ids of statistics and of the items of histories depend on other
rows: first the rows that the features name (with the rare rows that may replace them, and the slots
of histories), then, when these are here, the rows that levels and slots name. Every example also
reads the intercept, the weights of plain numbers, and the layers.
"""

import numpy as np
import numpy.typing as npt

from headrace.ingest.features.encoder import Encoded
from headrace.learner.inputs.example_inputs import INTERCEPT, find_candidate
from headrace.learner.inputs.preparation import InputPreparation, RowPuller
from headrace.learner.kernels.row_ids import rare_id
from headrace.pserver.rows.table import RowTable
from headrace.runtime.kernels.numba_kernels import kernel, read_only

Ids = npt.NDArray[np.uint64]


@kernel
def _list_statistics(columns, program, gate, features, event_ms, scratch, ids):  # type: ignore[no-untyped-def]
    statistics = program.numbers.shape[0]
    for i in range(features.ids.shape[0]):
        count, _ = find_candidate(columns, program, gate, features, event_ms[i], i, scratch)
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
        """Whether the model has statistics or histories, whose ids depend on other rows."""
        return self._inputs.statistic_count > 0 or self._inputs.histories.on

    @property
    def rare(self) -> bool:
        """Whether rare rows may replace rows that features name."""
        return self._inputs.gate.on

    def pull_with(self, pulling: RowPuller) -> None:
        """Fetch missing rows of statistics with `pulling` from now on, before they are learned.

        Call it before anything is learned.
        """
        self._inputs.pulling = pulling

    @property
    def histories(self) -> bool:
        """Whether the model has histories, whose slots are rows."""
        return self._inputs.histories.on

    def of_features(self, features: Encoded, *, learning: bool = False) -> Ids:
        """Return the ids that features name, each once; shape (n,).

        learning: and the rows that the clicks of these examples add to histories.
        """
        ids = np.unique(np.concatenate([features.ids.reshape(-1), features.bag_ids]))
        found, gate = [ids], self._inputs.gate
        if gate.on:
            rare = np.empty_like(ids)
            count = _list_rare(gate.guarded, gate.high, ids, rare)
            found.append(rare[:count])
        if self.histories:
            found.append(self._inputs.histories.slot_ids(features, learning=learning))
        return ids if len(found) == 1 else np.unique(np.concatenate(found))

    def of_statistics(
        self, view: RowTable, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> Ids:
        """Return the ids of statistics and items of n impressions shown at `event_ms`, each once.

        view: has the rows of `of_features`, as far as they exist.
        """
        inputs, bags = self._inputs, features.bag_ids
        if self.histories:
            bags = inputs.filled(view, features, event_ms).bag_ids
        ids = np.empty((len(features), inputs.statistic_count), np.uint64)
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
        return np.unique(np.concatenate([ids.reshape(-1), bags]) if self.histories else ids)
