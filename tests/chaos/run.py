"""Runs the whole path under faults, and counts at the end.

servers, parts and traffic start      three brokers, 3+3 nodes, every part of headrace
faults of the plan                    one after another, each until the answers are fresh again
the traffic ends                      the last clicks are sent, everything is learned
count                                 events in Kafka, counters of the joiner, rows
"""

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headrace.deploy.errors import DeployError
from headrace.deploy.local.drain import Drain
from headrace.deploy.models.shipped import path_of
from headrace.ingest.errors import StreamError
from headrace.pserver.errors import StoreError
from tests.chaos.accounting import Counted, differences, growth
from tests.chaos.counting import count
from tests.chaos.director import Director
from tests.chaos.faults import Injector
from tests.chaos.fleet import Fleet
from tests.chaos.plan import steps
from tests.chaos.record import Run
from tests.chaos.sampler import Sampler
from tests.chaos.servers import BROKER_MB, Servers, serving
from tests.chaos.traffic import Traffic
from tests.chaos.trail import follow

PARTITIONS, BUCKETS = 4, 16
STUCK_S = 120.0
SKIPPED = (
    (
        "the clock of the machine and of servers: stepping it needs root; the wall clock of each "
        "process of headrace is stepped instead"
    ),
    "full file systems: mounting one needs root; the size of files is limited instead",
)


class Options(NamedTuple):
    """Options of a run."""

    minutes: float
    seed: int
    rate: float
    evaluated: bool
    kinds: tuple[str, ...]
    """Play these kinds of faults only. Empty: all."""
    out: Path
    """Directory for the logs, the page and the record."""


def run(options: Options, stop: threading.Event, tell: Callable[[str], None]) -> Run:
    """Run, and return what was found. Raises DeployError, StreamError, StoreError at the start."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-chaos-")))
        tell(f"starting three brokers and six Valkey nodes in {directory}")
        servers = stack.enter_context(serving(directory))
        fleet = Fleet(directory, options.out / "logs", path_of("demo"), servers, BUCKETS)
        stack.callback(fleet.stop)
        tell("starting every part of headrace")
        fleet.start_all(PARTITIONS, evaluated=options.evaluated)
        return _Play(options, servers, fleet, stop, tell).play()


class _Play:
    """One run on a started pipeline."""

    def __init__(
        self,
        options: Options,
        servers: Servers,
        fleet: Fleet,
        stop: threading.Event,
        tell: Callable[[str], None],
    ) -> None:
        self._options, self._servers, self._fleet = options, servers, fleet
        self._stop, self._tell = stop, tell
        self._load = os.getloadavg()[0]
        self._sampler = Sampler(fleet, self._pids, self._sent)
        self._traffic = Traffic(fleet, options.rate, options.seed, self._sampler.began_s)
        injector = Injector(servers, fleet, fleet.directory / "snapshots")
        self._director = Director(
            servers, fleet, injector, self._sampler, options.rate, self._show, self._check
        )

    def play(self) -> Run:
        """Play the plan, end the traffic, count."""
        options, sampler, director = self._options, self._sampler, self._director
        self._traffic.start()
        sampler.start()
        plan = (
            step
            for step in steps(options.seed)
            if not options.kinds or all(fault.kind in options.kinds for fault in step.faults)
        )
        counted, violations = None, director.violations
        try:
            if director.wait_fresh() is None:
                violations.append(f"expected fresh answers after the start, got {sampler.last}")
            director.play(plan, 60.0 * options.minutes)
            seconds = sampler.at_s
            self._tell("the traffic ends; waiting until every event is learned")
            self._traffic.finish()
            counted = self._settle()
        except (DeployError, StoreError, StreamError) as error:
            seconds = sampler.at_s
            violations.append(f"{type(error).__name__}: {error}")
        finally:
            sampler.stop()
            self._traffic.close()
        return self._record(seconds, counted)

    def _settle(self) -> Counted | None:
        """Wait until every event is learned, and count. None if stopped."""
        fleet, traffic = self._fleet, self._traffic
        with contextlib.closing(fleet.open_store()) as store:
            drain = Drain(fleet.kafka, fleet.spec, store)
            try:
                if not drain.wait(self._stop, lambda _: self._director.operate(), STUCK_S):
                    return None
            finally:
                drain.close()
            self._tell("counting")
            counted = count(fleet.kafka, fleet.spec, store, traffic.impressions, traffic.clicks)
        trail = follow(fleet.kafka, fleet.spec)
        self._director.violations += trail.lost + trail.unscored
        return counted

    def _record(self, seconds: float, counted: Counted | None) -> Run:
        options, sampler, asked = self._options, self._sampler, self._traffic.requests
        growths = [
            growth(name, weighed, BROKER_MB if name.startswith("broker") else 0.0)
            for name, weighed in sorted(sampler.memory.items())
        ]
        violations = list(self._director.violations)
        violations += differences(counted) if counted else ["the run did not reach its count"]
        violations += [
            f"{each.name} grew by {each.grown_mb:.0f} MB, {each.slope_mb_h:.0f} MB/h"
            for each in growths
            if not each.bounded
        ]
        return Run(
            options.seed,
            options.rate,
            seconds,
            f"{os.cpu_count()} cores, load {self._load:.1f} at the begin, "
            f"{os.getloadavg()[0]:.1f} at the end",
            list(SKIPPED),
            self._director.episodes,
            sampler.moments,
            self._traffic.accuracy.windows,
            growths,
            sampler.memory,
            {name: self._fleet.restarts(name) for name in self._fleet.names()},
            {
                "asked": asked.requests,
                "answered": asked.answered,
                "skipped": asked.late,
                "unanswered": asked.unanswered,
                "refused": asked.refused,
            },
            counted,
            violations,
        )

    def _check(self) -> bool:
        """Return whether to go on. Raises the error that ended the traffic."""
        if self._traffic.failure is not None:
            raise self._traffic.failure
        return not self._stop.is_set()

    def _pids(self) -> dict[str, int]:
        links = {"links (of the test)": self._servers.links.pid, "this program": os.getpid()}
        return self._fleet.pids() | self._servers.pids() | links

    def _sent(self) -> int:
        return self._traffic.impressions + self._traffic.clicks

    def _show(self, line: str) -> None:
        last = self._sampler.last
        if last is None:
            self._tell(line)
        else:
            waits = "?" if last.backlog is None else f"{last.backlog:,}"
            self._tell(f"{line}  [{last.sent:,} events, age {last.age_s:.1f} s, {waits} wait]")
