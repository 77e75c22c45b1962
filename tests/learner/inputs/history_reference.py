"""The histories that rows should have, from the examples alone."""

import numpy as np

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.encoder import Encoded
from headrace.learner.inputs.click_histories import ClickHistories
from headrace.learner.inputs.click_slots import item_id
from headrace.learner.inputs.example_inputs import FeatureColumns
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.rows.table import RowTable
from tests.learner.streams import START_MS

LAST = 5
HISTORY = f"""
[fields.recent]
number = 30
transform = "history"
of = "user"
item = "item"
last = {LAST}
"""
WINDOW_MS = 600_000
LATER_MS = START_MS + 7_200_000

Clicks = dict[int, set[tuple[int, int]]]  # user -> (second, item of the history)


def clicks_of(spec: ModelSpec, examples: Examples) -> Clicks:
    columns = [each.name for each in spec.fields.singles]
    user, item = columns.index("user"), columns.index("item")
    number = np.uint64(spec.fields["recent"].number)
    found: Clicks = {}
    for i in range(len(examples)):
        ids = examples.features.ids[i]
        own = found.setdefault(int(ids[user]), set())
        if examples.kinds[i] != Kind.SHOWN and examples.labels[i]:
            closed_ms = WINDOW_MS if examples.kinds[i] == Kind.CLOSED else 0
            second = (int(examples.event_ms[i]) + closed_ms) // 1000
            own.add((second, int(item_id(ids[item], number))))
    return found


def newest_of(clicks: Clicks, user: int, before_ms: int) -> list[int]:
    newest = sorted(each for each in clicks[user] if each[0] < before_ms // 1000)
    return [item for _, item in newest][-LAST:]


def _features(spec: ModelSpec, encoded: Encoded) -> FeatureColumns:
    nothing = np.zeros(0, np.float32)
    of = encoded.ids, encoded.bag_ids, encoded.bag_offsets, encoded.numbers
    return FeatureColumns(*of, spec.fields.number_ids, nothing)


def read_histories(
    spec: ModelSpec, rows: RowTable, encoded: Encoded, at_ms: int
) -> list[list[int]]:
    """Return the history of each impression, from the rows."""
    times = np.full(len(encoded), at_ms, np.int64)
    histories = ClickHistories(spec.fields)
    filled = histories.filled(rows, encoded, _features(spec, encoded), times)
    bag, bags = [each.name for each in spec.fields.bags].index("recent"), len(spec.fields.bags)
    ends = filled.bag_offsets
    return [
        filled.bag_ids[ends[i * bags + bag] : ends[i * bags + bag + 1]].tolist()
        for i in range(len(encoded))
    ]


def assert_histories(spec: ModelSpec, rows: RowTable, examples: Examples) -> None:
    clicks = clicks_of(spec, examples)
    column = [each.name for each in spec.fields.singles].index("user")
    found = read_histories(spec, rows, examples.features, LATER_MS)
    for i, history in enumerate(found):
        assert history == newest_of(clicks, int(examples.features.ids[i, column]), LATER_MS)
