"""Tallies of a survey: refusals, order of times, repeated ids, and the join of clicks.

Each takes columns of a block at a time. The memory does not grow with impressions: clicks take 24
bytes each, and ids of impressions share a table of 64 MB.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from headrace.ingest.events.contract import Reason
from headrace.ingest.survey.findings import ClickCounts, EventOrder, RefusedEvents, SurveyedEvents

Longs = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_ID_PLACES_BITS = 26
_CLICK_FILTER_BITS = 22
_LEAST_REPEATED = 0.002
"""Share of impressions below which the estimate of repeated ids is noise."""


class RefusalTally:
    """Refused events by reason, with the first of each."""

    def __init__(self) -> None:
        self._found: dict[Reason, RefusedEvents] = {}

    def add(self, refused: RefusedEvents) -> None:
        """Add events refused for a reason; all but the count is kept of the first."""
        known = self._found.get(refused.reason)
        if known is None:
            self._found[refused.reason] = refused
        else:
            count = known.count + refused.count
            self._found[refused.reason] = replace(known, count=count)

    def knows(self, reason: Reason) -> bool:
        """Whether an example of this reason is known."""
        return reason in self._found

    def result(self) -> tuple[RefusedEvents, ...]:
        """Return the refusals, the most frequent first."""
        return tuple(sorted(self._found.values(), key=lambda each: -each.count))


class OrderTally:
    """The order of the times of impressions."""

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._newest = self._disordered = self._furthest = 0
        self.first_ms = self.last_ms = 0

    def add(self, times: Longs) -> npt.NDArray[np.bool_]:
        """Add times that are valid; return which come more than the window after a newer one."""
        if not times.size:
            return np.zeros(0, np.bool_)
        newest = np.maximum(np.maximum.accumulate(times), self._newest)
        behind = newest - times
        self._disordered += int(np.count_nonzero(behind))
        self._furthest = max(self._furthest, int(behind.max()))
        self._newest = int(newest[-1])
        self.last_ms = self._newest
        first = int(times.min())
        self.first_ms = min(self.first_ms or first, first)
        too_late: npt.NDArray[np.bool_] = behind > self._window_ms
        return too_late

    def result(self) -> EventOrder:
        """Return the order."""
        return EventOrder(self._disordered, self._furthest)


class RepeatedIds:
    """Estimates how many ids were seen before, by linear counting in a table of fixed size."""

    def __init__(self) -> None:
        self._seen = np.zeros(1 << _ID_PLACES_BITS, np.uint8)
        self._count = 0

    def add(self, hashes: Hashes) -> None:
        """Add the hashes of ids."""
        self._seen[hashes >> np.uint64(64 - _ID_PLACES_BITS)] = 1
        self._count += hashes.shape[0]

    def result(self) -> int:
        """Return the estimate, 0 if it is within the noise."""
        if not self._count:
            return 0
        places = self._seen.shape[0]
        empty = places - int(np.count_nonzero(self._seen))
        different = -places * np.log(max(empty, 1) / places)
        repeated = round(self._count - different)
        return repeated if repeated > max(2, _LEAST_REPEATED * self._count) else 0


class ClickTally:
    """Joins clicks with impressions by id: first all clicks are added, then impressions."""

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._parts: list[tuple[Hashes, Longs]] = []
        self._ids = np.zeros(0, np.uint64)
        self._times = self._shown = np.zeros(0, np.int64)
        self._known = np.zeros(1 << _CLICK_FILTER_BITS, np.bool_)
        self._repeated = 0
        self._counts = ClickCounts()

    def add_clicks(self, clicks: SurveyedEvents) -> None:
        """Add clicks."""
        assert clicks.hashes is not None
        self._parts.append((clicks.hashes, clicks.times))

    def begin(self) -> None:
        """Sort the clicks; impressions follow."""
        if not self._parts:
            return
        hashes = np.concatenate([each for each, _ in self._parts])
        times = np.concatenate([each for _, each in self._parts])
        order = np.lexsort((times, hashes))
        self._ids, first = np.unique(hashes[order], return_index=True)
        self._times = times[order][first]
        self._shown = np.zeros(self._ids.shape[0], np.int64)
        self._repeated = hashes.shape[0] - self._ids.shape[0]
        self._known[self._ids >> np.uint64(64 - _CLICK_FILTER_BITS)] = True
        self._parts.clear()

    def add_impressions(self, shown: SurveyedEvents) -> None:
        """Find the clicks of these impressions."""
        hashes, times = shown.hashes, shown.times
        if hashes is None or not self._ids.size:
            return
        maybe = np.flatnonzero(self._known[hashes >> np.uint64(64 - _CLICK_FILTER_BITS)])
        wanted = hashes[maybe]
        places = np.minimum(np.searchsorted(self._ids, wanted), self._ids.shape[0] - 1)
        found = self._ids[places] == wanted
        self._shown[places[found]] = times[maybe[found]]

    def add_pairs(self, shown: SurveyedEvents) -> None:
        """Add clicks that are in the rows of their impressions."""
        if shown.clicked is None:  # of a line that is not a row
            return
        has_click = shown.clicked != 0
        delays = shown.clicked[has_click] - shown.times[has_click]  # no click before its impression
        late = int(np.count_nonzero(delays > self._window_ms))
        known = self._counts
        self._counts = ClickCounts(known.matched + delays.size - late, known.late + late)

    def result(self) -> ClickCounts:
        """Return the counts."""
        delays = (self._times - self._shown)[self._shown != 0]
        late = int(np.count_nonzero(delays > self._window_ms))
        early = int(np.count_nonzero(delays < -self._window_ms))
        return ClickCounts(
            self._counts.matched + delays.size - late - early,
            self._counts.late + late,
            self._ids.size - delays.size,
            self._repeated,
            early,
        )
