"""TODO."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Integers = npt.NDArray[np.int64]


SHOW, CLICK, RATE, AGE = 0, 1, 2, 3


KINDS = {"show": SHOW, "click": CLICK, "rate": RATE, "age": AGE}


class StatisticsProgram(NamedTuple):
    """What to read and what to cross, as the arrays that a kernel walks through."""

    kinds: Integers  # (levels,) SHOW, CLICK, RATE or AGE
    fields: Integers  # (levels,) column of the single-valued field whose row is read
    prior_clicks: Floats  # (levels,)
    prior_shows: Floats  # (levels,)
    per_doubling: Floats  # (levels,) buckets for each doubling of the value
    numbers: npt.NDArray[np.uint64]  # (statistics,) the low bits of their ids
    starts: Integers  # (statistics + 1,) where in `parts` a statistic begins
    parts: Integers  # level i as i, column j of the single-valued fields as -1 - j


class StatisticRead(NamedTuple):
    """One level: what is read of which field's row."""

    kind: int
    field: int
    """Column of the single-valued field."""
    prior_clicks: float
    prior_shows: float
    per_doubling: float


class CrossRead(NamedTuple):
    """One statistic: a level alone, or several with fields."""

    number: int
    parts: tuple[int, ...]
    """Level i as i, column j of the single-valued fields as -1 - j."""


def program(readings: Sequence[StatisticRead], crossings: Sequence[CrossRead]) -> StatisticsProgram:
    """Return the arrays of a program."""
    lengths = [len(crossing.parts) for crossing in crossings]
    return StatisticsProgram(
        np.array([reading.kind for reading in readings], np.int64),
        np.array([reading.field for reading in readings], np.int64),
        np.array([reading.prior_clicks for reading in readings], np.float64),
        np.array([reading.prior_shows for reading in readings], np.float64),
        np.array([reading.per_doubling for reading in readings], np.float64),
        np.array([crossing.number for crossing in crossings], np.uint64),
        np.cumsum([0, *lengths]).astype(np.int64),
        np.array([part for crossing in crossings for part in crossing.parts], np.int64),
    )
