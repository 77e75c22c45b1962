"""What the learner's rows gained and the parameter server has not yet acknowledged.

The learner's view of a row is what its replica holds plus what is in flight plus what is pending.
The pending part lies in columns parallel to the view's, so that a kernel which learns adds to both
at the same place, and in a list of the places touched, so that a push costs what it carries and not
what the table holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Gaining(NamedTuple):
    """Pending gains, parallel to the columns of the view (same capacity, same places)."""

    touched: npt.NDArray[np.bool_]  # (capacity,)
    order: npt.NDArray[np.int64]  # (capacity,) places touched since the last push, as they came
    count: npt.NDArray[np.int64]  # (1,) how many of `order` count
    shows: npt.NDArray[np.uint32]  # (capacity,)
    clicks: npt.NDArray[np.uint32]  # (capacity,)
    first_seen: npt.NDArray[np.uint32]  # (capacity,) NEVER if none
    last_seen: npt.NDArray[np.uint32]  # (capacity,)
    values: npt.NDArray[np.float32]  # (capacity, width)
