"""Reads from the rows which share of the learned impressions had a value for each field.

A missing value of a single-valued field is a value with a row of its own. The row counts the
impressions without the field, and the row of the intercept counts all. So a server knows, without
Kafka, whether its requests lack a field that the events have. Bags and plain numbers have no row
for a missing value.
"""

import numpy as np

from headrace.ingest.features.encoder import Encoder
from headrace.ingest.features.fields import FieldSet, Transform
from headrace.learner.inputs.example_inputs import INTERCEPT
from headrace.serving.replicas.status import RowSource
from headrace.serving.requests.candidates import Candidates

_WITH_ABSENT_ROW = (Transform.ID, Transform.LOG_BUCKET)


def learned_shares(fields: FieldSet, rows: RowSource, now_ms: int) -> dict[str, float]:
    """Return the share, from 0 to 1, by field; empty if the rows do not tell.

    It covers the whole life of the model. An absent row that was deleted, or that admission has not
    created, counts as never seen.
    """
    nothing = Candidates({}, [{}])
    features = nothing.encode(Encoder(fields), now_ms)
    table = rows.table_for(features, nothing.times(now_ms))
    all_rows = table.find(np.append(features.ids[0], np.uint64(INTERCEPT)))
    shows = np.where(all_rows >= 0, table.columns.shows[all_rows], 0)
    *absent, total = shows.astype(np.int64).tolist()
    if not total:
        return {}
    return {
        each.name: 1.0 - min(count, total) / total
        for each, count in zip(fields.singles, absent, strict=True)
        if each.transform in _WITH_ABSENT_ROW
    }
