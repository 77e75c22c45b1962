"""Computes the results of a run: exact counters, freshness in calm and in fault, and memory.

All functions here are pure. The counters of the rows must equal those of the events, to the unit.
Figures that depend on the machine, such as the time until answers are fresh again, are reported.
Their only bounds are those beyond which the pipeline would not work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos.sampler import Moment

WARM_S = 120.0
"""A process may grow for so long after its start: it compiles, copies rows, and fills its caches
and the window of the join."""
LIFE_S = 240.0
"""A life shorter than this after the warm time says nothing about growth."""
MOST_GROWTH_MB = 64.0
"""Growth below this is not taken for a leak, however steep: heaps and allocators grow in steps."""
MOST_SLOPE_MB_H = 300.0
"""Growth per hour above which a process outgrows its machine within days."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts at the end of a run, each from its source."""

    impressions: int
    """Sent, and acknowledged by Kafka."""
    clicks: int
    impressions_in_kafka: int
    """Different impressions in the topic."""
    clicks_in_kafka: int
    late_clicks: int
    """By the joiner, as the next two."""
    unmatched_clicks: int
    """Clicks that found no impression, although every click has one."""
    dead_letters: int
    held_examples: int
    """Quarantined by learners."""
    shows_by_field: Mapping[str, int]
    clicks_by_field: Mapping[str, int]
    parked: Sequence[str] = ()
    """Place of each message that is parked, and why it is not parked in every bucket, if so."""
    parked_shows: int = 0
    parked_clicks: int = 0


def differences(counted: Counted) -> list[str]:
    """Return every way in which the rows are not the events. Empty: exact."""
    found = []
    for what, sent, kept in (
        ("impressions", counted.impressions, counted.impressions_in_kafka),
        ("clicks", counted.clicks, counted.clicks_in_kafka),
    ):
        if sent != kept:
            found.append(f"{what}: sent {sent:,}, in Kafka {kept:,} ({kept - sent:+,})")
    expected_clicks = counted.clicks_in_kafka - counted.late_clicks - counted.unmatched_clicks
    expected_clicks -= counted.parked_clicks
    expected_shows = counted.impressions_in_kafka - counted.parked_shows
    for name, expected, by_field in (
        ("shows", expected_shows, counted.shows_by_field),
        ("clicks", expected_clicks, counted.clicks_by_field),
    ):
        found += [
            f"{name} of field {field}: expected {expected:,}, got {got:,} ({got - expected:+,})"
            for field, got in by_field.items()
            if got != expected
        ]
    for what, count in (
        ("clicks without their impression", counted.unmatched_clicks),
        ("dead letters", counted.dead_letters),
        ("quarantined examples", counted.held_examples),
    ):
        if count:
            found.append(f"{what}: expected none, got {count:,}")
    found += [f"{each}: expected in all or in none" for each in counted.parked if " of " in each]
    return found


@dataclass(frozen=True, slots=True)
class Freshness:
    """Delays of clicks, from Kafka to the server's replica."""

    clicks: int
    p50_ms: float | None
    p99_ms: float | None


def freshness(moments: Iterable[Moment]) -> Freshness:
    """Sum the delays of these samples."""
    total: dict[float, float] = {}
    for moment in moments:
        for bound, count in moment.delays.items():
            total[bound] = total.get(bound, 0.0) + count
    return Freshness(round(sum(total.values())), quantile_ms(total, 0.5), quantile_ms(total, 0.99))


def quantile_ms(delays: Mapping[float, float], share: float) -> float | None:
    """Return a quantile of counts by upper bound in seconds, linear within an interval."""
    left, below_s = share * sum(delays.values()), 0.0
    for bound_s in sorted(delays):
        count = delays[bound_s]
        if left <= count and count:
            inside = left / count
            return 1000 * (
                bound_s if math.isinf(bound_s) else below_s + inside * (bound_s - below_s)
            )
        left, below_s = left - count, bound_s
    return None


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory of the lives of one process."""

    name: str
    lives: int
    most_mb: float
    slope_mb_h: float | None
    """Steepest growth of a life after its warm time. None: no life was long enough."""
    grown_mb: float
    """Growth of that life after its warm time, from its first to its last quarter."""
    ceiling_mb: float = 0.0
    """Size that the process cannot pass, such as that of a Java heap; growth below it is no leak.
    0: unknown."""

    @property
    def bounded(self) -> bool:
        """Whether the process does not grow without bound, as far as its lives can show."""
        if self.ceiling_mb and self.most_mb <= self.ceiling_mb:
            return True
        steep = self.slope_mb_h is not None and self.slope_mb_h > MOST_SLOPE_MB_H
        return not (steep and self.grown_mb > MOST_GROWTH_MB)


def growth(
    name: str, weighed: Sequence[tuple[float, int, float]], ceiling_mb: float = 0.0
) -> Growth:
    """Return the growth of a process; the samples are time, pid and MB."""
    lives: dict[int, list[tuple[float, float]]] = {}
    for at_s, pid, resident in weighed:
        lives.setdefault(pid, []).append((at_s, resident))
    slope, grown = None, 0.0
    for life in lives.values():
        warm = [(at, mb) for at, mb in life if at >= life[0][0] + WARM_S]
        if warm and warm[-1][0] - warm[0][0] >= LIFE_S:
            steepness = 3600 * slope_of(warm)
            if slope is None or steepness > slope:
                slope = steepness
                grown = _grown_mb(warm)
    most_mb = max(resident for *_, resident in weighed)
    return Growth(name, len(lives), most_mb, slope, grown, ceiling_mb)


def _grown_mb(points: Sequence[tuple[float, float]]) -> float:
    """Return the difference between the least of the first and of the last quarter.

    Memory of an outage comes back some minutes later (`freed_memory`). A leak raises the least.
    The slope times the length of a life would be twice the height of a single step in its middle.
    """
    quarter = len(points) // 4
    return min(mb for _, mb in points[-quarter:]) - min(mb for _, mb in points[:quarter])


def slope_of(points: Sequence[tuple[float, float]]) -> float:
    """Return the median slope between the first and the second half of the points (Theil, Sen)."""
    half = len(points) // 2
    early, late = points[:half], points[-half:]
    return median(
        (b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(early, late, strict=True) if b[0] > a[0]
    )
