"""What the loop asks of a group of learners that step together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from headrace.ingest.examples import Examples
    from headrace.pserver.rows import RowTable


class SyncGroup(Protocol):
    """Where learners step together: each round of each needs all of them."""

    busy: bool
    """Whether anybody had examples in the last round."""

    def rehearse(
        self, view: RowTable, active: npt.NDArray[np.bool_], examples: Examples
    ) -> tuple[npt.NDArray[np.float64], float]:
        """Return what scores learning a batch makes, and the largest float that a row gains of it.

        Changes nothing, and asks nobody else. active: (buckets,) as in learning.
        """

    def idle(self, view: RowTable) -> None:
        """Take part with nothing. Raises GroupBroken."""

    def leave(self, why: str) -> None:
        """Raise GroupBroken, here and soon in all of them."""
