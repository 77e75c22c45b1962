"""Runs the plan on a running pipeline, and waits after each step until answers are fresh again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tests.chaos.plan import Fault, Step
from tests.chaos.record import Episode

if TYPE_CHECKING:
    from tests.chaos.faults import Injector
    from tests.chaos.fleet import Fleet
    from tests.chaos.sampler import Sampler
    from tests.chaos.servers import Servers

FRESH_S = 3.0
"""The answers are fresh while no bucket is older, and no more events than of this time wait."""
STAYS_S = 5.0
"""Answers stay fresh for longer than FRESH_S before they count as fresh again: what is broken now
shows in the age no earlier."""
WITHIN_S = 120.0
"""Deadline to be fresh again after a fault was taken back. Beyond it the run has a violation."""
_LOOK_S = 0.2


class Director:
    """Plays steps until the time is over. `episodes` and `violations` grow meanwhile."""

    def __init__(
        self,
        servers: Servers,
        fleet: Fleet,
        injector: Injector,
        sampler: Sampler,
        rate: float,
        tell: Callable[[str], None],
        goes_on: Callable[[], bool],
    ) -> None:
        """`goes_on` is called while waiting: whether to go on, or an error that ends the run."""
        self._servers, self._fleet, self._injector = servers, fleet, injector
        self._sampler, self._rate, self._tell, self._goes_on = sampler, rate, tell, goes_on
        self.episodes: list[Episode] = []
        self.violations: list[str] = []

    def play(self, plan: Iterator[Step], end_s: float) -> None:
        """Play until `end_s`, or until the run is stopped."""
        for step in plan:
            until_s = self._sampler.at_s + step.pause_s
            while self._sampler.at_s < min(until_s, end_s) and self._goes_on():
                time.sleep(_LOOK_S)
            if self._sampler.at_s >= end_s or not self._goes_on():
                return
            self._play(step)

    def _play(self, step: Step) -> None:
        episode = Episode(step, self._sampler.at_s)
        self.episodes.append(episode)
        self._tell(f"{episode.begin_s:6.0f} s  {episode.text}")
        threads = [
            threading.Thread(target=self._inject, args=(fault,), name=fault.kind, daemon=True)
            for fault in step.faults
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        episode.ended_s = self._sampler.at_s
        try:
            self._servers.wait_whole()
        except AssertionError as error:
            self.violations.append(f"after {episode.text}: {error}")
        self.operate()
        episode.fresh_s = self.wait_fresh()
        if episode.fresh_s is not None:
            self._tell(f"{episode.fresh_s:6.0f} s    fresh again {episode.recovery_s:.1f} s after")
        elif self._goes_on():
            last = self._sampler.last
            self.violations.append(
                f"after {episode.text} at {episode.begin_s:.0f} s: expected fresh answers within "
                f"{WITHIN_S:g} s, got {last}"
            )
            self._tell(f"           VIOLATION: {self.violations[-1]}")

    def wait_fresh(self) -> float | None:
        """Return since when the answers are fresh and stay so; None after the deadline."""
        until_s = self._sampler.at_s + WITHIN_S
        since_s: float | None = None
        while self._goes_on():
            now_s = self._sampler.at_s
            if not self._fresh():
                since_s = None
                if now_s > until_s:
                    return None
            elif since_s is None:
                since_s = now_s
            elif now_s - since_s >= STAYS_S:
                return since_s
            self.operate()
            time.sleep(_LOOK_S)
        return None

    def _fresh(self) -> bool:
        last = self._sampler.last
        return (
            last is not None
            and last.answered
            and last.age_s < FRESH_S
            and last.backlog is not None
            and last.backlog < FRESH_S * self._rate
        )

    def _inject(self, fault: Fault) -> None:
        """Run one fault from begin to end. An error of the injection is a violation too."""
        try:
            with self._injector.lasting(fault):
                time.sleep(fault.lasts_s)
        except Exception as error:  # noqa: BLE001  (the run goes on, and reports it)
            self.violations.append(f"{fault}: {type(error).__name__}: {error}")
            self._tell(f"           VIOLATION: {self.violations[-1]}")

    def operate(self) -> None:
        """Start what refused to run, as an operator would, and record it: no fault asks for it."""
        while self._fleet.deaths:
            death = self._fleet.deaths.pop(0)
            self._tell(f"           {death.part} ended with {death.status} and was restarted")
        with contextlib.suppress(KeyError):
            for name, reason in self._fleet.failures().items():
                self.violations.append(f"{name} stayed down: {reason}")
                self._tell(f"           VIOLATION: {name} stayed down: {reason}")
                self._fleet.start(name)
