"""Gives examples and requests the items that their user clicked last (learner.inputs.click_slots).

A history is a bag whose items are read from rows, not from the event. They are filled in before a
model sees the features, so every model, pooling and attention has them like those of any bag.

Learner and server fill by the same function: the clicks before the second in which the example was
shown, from the rows at hand. A click is written with the time at which it could be known. With
`policy = "window"` that is the end of the window: an impression shown before that was answered
without the click, and it is learned without it, too.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples
from headrace.ingest.features.encoder import Encoded
from headrace.ingest.features.fields import FieldSet, Transform
from headrace.ingest.features.hashing import ABSENT
from headrace.learner.inputs.click_slots import slot_scratch, slots_of
from headrace.learner.inputs.example_inputs import FeatureColumns, LabelledColumns
from headrace.learner.inputs.history_kernels import (
    FilledBags,
    HistoryProgram,
    fill,
    fill_and_write,
    list_slots,
)
from headrace.learner.kernels.pending_deltas import PendingColumns
from headrace.learner.kernels.row_ids import NUMBER_BITS
from headrace.pserver.rows.table import RowTable
from headrace.runtime.kernels.numba_kernels import read_only

Ids = npt.NDArray[np.uint64]
Times = npt.NDArray[np.int64]


class ClickHistories:
    """The histories of a set of fields. One thread writes; any number may read."""

    def __init__(self, fields: FieldSet) -> None:
        histories = [each for each in fields.bags if each.transform is Transform.HISTORY]
        column = {each.name: i for i, each in enumerate(fields.singles)}
        self.on = bool(histories)
        """Whether there are any."""
        self.most_items = sum(each.last for each in histories)
        """Most items of an example in all of its histories."""
        self._slots = [int(slots_of(each.last)) for each in histories]
        self._program = HistoryProgram(
            np.array([histories.index(b) if b in histories else -1 for b in fields.bags], np.int64),
            np.array([column[each.of[0]] for each in histories], np.int64),
            np.array([column[each.item] for each in histories], np.int64),
            np.array([each.last for each in histories], np.int64),
            np.array([each.number for each in histories], np.uint64),
            np.array([fields.label.window_ms], np.int64),
            np.array([ABSENT & ~NUMBER_BITS], np.uint64),
        )

    def rows_needed(self, examples: int) -> int:
        """Return an upper bound of the rows that the histories of so many examples add."""
        return examples * (self.most_items + len(self._slots))

    def filled(
        self, view: RowTable, encoded: Encoded, features: FeatureColumns, event_ms: Times
    ) -> Encoded:
        """Return the features with the histories of impressions shown at `event_ms`, (n,)."""
        bags = self._filled_bags(encoded)
        seconds = read_only(event_ms // 1000, np.int64)
        scratch = slot_scratch(max(self._slots))
        fill(view.columns, self._program, features, seconds, scratch, bags)
        return _with_bags(encoded, bags)

    def learned(
        self,
        view: RowTable,
        gaining: PendingColumns,
        active: npt.NDArray[np.bool_],
        examples: Examples,
        features: FeatureColumns,
        labelled: LabelledColumns,
    ) -> Examples:
        """Return the examples with their histories, and write their clicks to the rows.

        Each example has the clicks of the slates before its own.
        """
        bags = self._filled_bags(examples.features)
        arguments = (active, self._program, features, labelled, slot_scratch(max(self._slots)))
        fill_and_write(view.columns, gaining, *arguments, bags)
        return replace(examples, features=_with_bags(examples.features, bags))

    def slot_ids(self, features: Encoded, *, learning: bool) -> Ids:
        """Return the ids of the slots that the features read, (n,); ids may repeat.

        learning: and the items that the histories will have if they are clicked.
        """
        slots = np.empty(len(features) * sum(self._slots), np.uint64)
        clicked = np.empty((len(features), len(self._slots)), np.uint64)
        list_slots(self._program, read_only(features.ids, np.uint64), slots, clicked)
        return np.concatenate([slots, clicked.reshape(-1)]) if learning else slots

    def _filled_bags(self, encoded: Encoded) -> FilledBags:
        count, bags = len(encoded), self._program.of_bag.shape[0]
        most_ids = encoded.bag_ids.shape[0] + count * self.most_items
        return FilledBags(np.empty(most_ids, np.uint64), np.empty(count * bags + 1, np.int32))


def _with_bags(encoded: Encoded, bags: FilledBags) -> Encoded:
    return replace(encoded, bag_ids=bags.ids[: bags.offsets[-1]], bag_offsets=bags.offsets)
