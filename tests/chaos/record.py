"""The record of a run: the content of its page, of its closing table, and of `run.json`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tests.chaos.accounting import Counted, Freshness, Growth, freshness
from tests.chaos.plan import Fault, Step

if TYPE_CHECKING:
    from tests.chaos.accuracy import Window
    from tests.chaos.sampler import Moment


@dataclass(slots=True)
class Episode:
    """One step of the plan as it happened. Times are seconds from the begin of the run."""

    step: Step
    begin_s: float
    ended_s: float | None = None
    """The faults were taken back."""
    fresh_s: float | None = None
    """The answers were fresh again."""

    @property
    def name(self) -> str:
        """The kind of the fault, or that there are two."""
        return self.step.name

    @property
    def text(self) -> str:
        """The faults of the step."""
        return " and ".join(_said(fault) for fault in self.step.faults)

    @property
    def recovery_s(self) -> float | None:
        """From the end of the faults until the answers were fresh again."""
        if self.fresh_s is None or self.ended_s is None:
            return None
        return max(0.0, self.fresh_s - self.ended_s)


@dataclass(slots=True)
class Run:
    """A whole run."""

    seed: int
    rate: float
    seconds: float
    machine: str
    """Cores, and load average at the begin and at the end."""
    skipped: list[str]
    """Faults that this machine cannot have, with the reason."""
    episodes: list[Episode] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    growths: list[Growth] = field(default_factory=list)
    memory: dict[str, list[tuple[float, int, float]]] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    counted: Counted | None = None
    violations: list[str] = field(default_factory=list)

    @property
    def events(self) -> int:
        """Events sent."""
        return self.counted.impressions + self.counted.clicks if self.counted else 0

    def calm_and_fault(self) -> tuple[Freshness, Freshness]:
        """Return the freshness between the episodes and within them."""
        calm: list[Moment] = []
        fault: list[Moment] = []
        spans = [(e.begin_s, e.fresh_s or float("inf")) for e in self.episodes]
        for moment in self.moments:
            within = any(begin_s <= moment.at_s <= end_s for begin_s, end_s in spans)
            (fault if within else calm).append(moment)
        return freshness(calm), freshness(fault)

    def by_kind(self) -> list[KindFigures]:
        """Return the figures of each kind of fault, in the order of the alphabet."""
        grouped: dict[str, list[Episode]] = defaultdict(list)
        for episode in self.episodes:
            grouped[episode.name].append(episode)
        return [self._figures(name, grouped[name]) for name in sorted(grouped)]

    def _figures(self, name: str, episodes: Sequence[Episode]) -> KindFigures:
        within = [
            moment
            for episode in episodes
            for moment in self.moments
            if episode.begin_s <= moment.at_s <= (episode.fresh_s or self.seconds)
        ]
        again = [e.recovery_s for e in episodes if e.recovery_s is not None]
        return KindFigures(
            name,
            len(episodes),
            max((moment.age_s for moment in within), default=0.0),
            freshness(within),
            max(again, default=None),
            sum(e.fresh_s is None for e in episodes),
        )


class KindFigures(NamedTuple):
    """Figures of all episodes of one kind."""

    name: str
    times: int
    oldest_s: float
    """Greatest age of the stalest bucket."""
    freshness: Freshness
    longest_s: float | None
    """Longest time from the end of the fault until the answers were fresh again."""
    never_fresh: int


def _said(fault: Fault) -> str:
    which = f"{fault.target} {fault.number + 1}" if fault.servers else fault.target
    lasts = f", {fault.lasts_s:g} s" if fault.lasts_s else ""
    return f"{fault.kind} ({which}{lasts})"
