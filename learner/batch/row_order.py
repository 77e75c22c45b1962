"""The order of the rows of a fit: how many come after a newer one.

A fit learns rows in the order of its files. A stream has them in the order of time, so the accuracy
before learning is that of a stream only if the files are in this order.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt


class RowOrder(msgspec.Struct, frozen=True):
    """The order of the rows so far."""

    rows: int = 0
    """0 if the source has no order of time."""
    newest_ms: int = 0
    disordered: int = 0
    """Rows that come after a newer one."""
    furthest_ms: int = 0
    """The longest time by which one comes too late."""

    def after(self, times: npt.NDArray[np.int64]) -> RowOrder:
        """Return the order after further rows with these times; shape (n,)."""
        if not times.size:
            return self
        newest = np.maximum(np.maximum.accumulate(times), self.newest_ms)
        behind = newest - times
        return RowOrder(
            self.rows + times.shape[0],
            int(newest[-1]),
            self.disordered + int(np.count_nonzero(behind)),
            max(self.furthest_ms, int(behind.max())),
        )
