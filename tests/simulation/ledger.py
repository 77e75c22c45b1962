"""Recomputes the rows of a bucket at every version of its history, slowly and plainly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.pserver.rows.deltas import Deletions, RowDeltas
from headrace.pserver.rows.row_codec import FoldedRows
from tests.simulation.batches import NOTHING, WIDTH

Row = tuple[int, int, int, int, float, float]
"""shows, clicks, first_seen, last_seen, both values"""
NO_ROW: Row = (*NOTHING, 0.0)
"""As a row is that never existed."""


class Broken(AssertionError):
    """A promise did not hold."""


def rows_by_id(rows: FoldedRows | RowDeltas) -> dict[int, Row]:
    """Return rows as they are compared; those that are as if they never existed left out."""
    columns = (rows.shows, rows.clicks, rows.first_seen, rows.last_seen)
    listed = zip(*(c.tolist() for c in columns), *rows.values.T.tolist(), strict=True)
    pairs = zip(rows.ids.tolist(), listed, strict=True)
    return {row_id: row for row_id, row in pairs if row != NO_ROW}


def rows_of(rows: Mapping[int, Row]) -> FoldedRows:
    """Return what `rows_by_id` was given."""
    columns = list(zip(*rows.values(), strict=True)) or [()] * len(NO_ROW)
    return FoldedRows(
        np.array(list(rows), np.uint64),
        np.array(columns[0], np.uint64),
        np.array(columns[1], np.uint64),
        np.array(columns[2], np.uint32),
        np.array(columns[3], np.uint32),
        np.array(columns[4:], np.float32).T.reshape(len(rows), WIDTH),
    )


def differences(found: Mapping[int, object], expected: Mapping[int, object]) -> str:
    """Name some of the rows that are not as expected; empty if all are."""
    wrong = [i for i in found.keys() | expected.keys() if found.get(i) != expected.get(i)]
    shown = "; ".join(f"{i}: {found.get(i)}, not {expected.get(i)}" for i in sorted(wrong)[:3])
    return f"{len(wrong)} rows differ: {shown}" if wrong else ""


class Ledger:
    """One history of one bucket."""

    def __init__(self, version: int, rows: dict[int, Row]) -> None:
        self.head = version
        self._versions = {version: rows}
        self.gone: dict[int, int] = {}
        """FoldedRows that the store lacks because they were removed, as of which version."""
        self.dropped: set[str] = set()
        """Marks of parked messages that were dropped as an operator asked."""

    @property
    def rows(self) -> dict[int, Row]:
        """The rows as they are now."""
        return self._versions[self.head]

    def at(self, version: int) -> dict[int, Row]:
        """Return the rows at a version; none at one that this history did not have."""
        return self._versions.get(version, {})

    def copy(self) -> Ledger:
        """Return a ledger that does not change with this one."""
        copy = Ledger(self.head, {})
        copy._versions, copy.gone = dict(self._versions), dict(self.gone)
        copy.dropped = set(self.dropped)
        return copy

    def add(self, content: RowDeltas | Deletions) -> None:
        """Take in an entry."""
        rows = dict(self.rows)
        if isinstance(content, Deletions):
            for row_id, last_seen in zip(*(c.tolist() for c in content), strict=True):
                if row_id in rows and rows[row_id][3] <= last_seen:
                    del rows[row_id]
        else:
            for row_id, gained in rows_by_id(content).items():
                rows[row_id] = _sum(rows.get(row_id, NO_ROW), gained)
        self.head += 1
        self._versions[self.head] = rows


def _sum(one: Row, other: Row) -> Row:
    return (
        one[0] + other[0],
        one[1] + other[1],
        min(one[2], other[2]),
        max(one[3], other[3]),
        float(np.float32(one[4] + other[4])),
        float(np.float32(one[5] + other[5])),
    )
