"""The expected rows of a bucket, computed in the slow and obvious way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from headrace.pserver.rows.deltas import NEVER
from headrace.pserver.store import Push
from tests.pserver.rows.entries import unpacked

if TYPE_CHECKING:
    from headrace.pserver.replica.replica import Replica

Row = tuple[int, int, int, int, bytes]


def truth(pushes: Iterable[Push]) -> dict[int, Row]:
    """Rows by id after these pushes, in this order, without rows that never changed."""
    rows: dict[int, Row] = {}
    for push in pushes:
        _, deltas = unpacked(push.blob)
        for i, row_id in enumerate(deltas.ids.tolist()):
            nothing = np.zeros(deltas.values.shape[1], np.float32).tobytes()
            shows, clicks, first, last, values = rows.get(row_id, (0, 0, NEVER, 0, nothing))
            rows[row_id] = (
                shows + int(deltas.shows[i]),
                clicks + int(deltas.clicks[i]),
                min(first, int(deltas.first_seen[i])),
                max(last, int(deltas.last_seen[i])),
                (np.frombuffer(values, np.float32) + deltas.values[i]).tobytes(),
            )
    return rows


def rows_of(replica: Replica, bucket: int) -> dict[int, Row]:
    """A replica's rows of a bucket by id, without rows that equal absent ones."""
    rows = replica.table.take(replica.places(bucket))
    found = {}
    for i, row_id in enumerate(rows.ids.tolist()):
        row = (
            int(rows.shows[i]),
            int(rows.clicks[i]),
            int(rows.first_seen[i]),
            int(rows.last_seen[i]),
            rows.values[i].tobytes(),
        )
        if row != (0, 0, NEVER, 0, bytes(4 * rows.values.shape[1])):
            found[row_id] = row
    return found
